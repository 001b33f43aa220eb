"""NUM: outputs against golden, within the error model."""

from dataclasses import replace

import torch

from conformance.core.bench import Bench
from conformance.core.case import Step
from conformance.core.inputs import StepInputs
from conformance.core.lab import Lab
from conformance.core.requirement import requirement
from conformance.tests.requirements.test_len import SMALL

LENGTHS = ("mixed", "edge", "full", "long")
ALL = (*SMALL, "glm", "v32")
ONE_E4M3 = 0x38


SHARP = 32
"""Queries this much larger give logits of some tens: a row attends to few of its tokens, and the
largest logit of one tile says nothing of the next."""

FAR_BELOW = 200.0
"""By how much all logits of a row may lie below zero: any weight left to nothing would win."""


def check_step(lab: Lab, *, sharp: bool = False, full_range: bool = False) -> None:
    step = lab.step()
    changes = {}
    if full_range:
        # E4M3 reaches 448: elements 2**7 times as large, and a scale that makes up for it.
        config = lab.config(step)
        k_scale = max(config.k_scale, 2.0**-4) * 2.0**-7
        changes = {
            "k_scale": k_scale,
            "sm_scale": config.sm_scale * config.k_scale * 2.0**-7 / k_scale,
        }
    bench = lab.bench(step, changes=changes)
    if full_range:
        raw = bench.world.raw
        normal = (raw & 0x78) > 0
        bench.world.raw = torch.where(normal, raw + (7 << 3), raw)
        bench.set_cache(bench.world.raw)
    inputs = bench.world.draw_step(step)
    if sharp:
        inputs = sharpened(inputs)
    lab.judged_run(bench, step, inputs)
    lab.no_flags(bench)


def sharpened(inputs: StepInputs) -> StepInputs:
    """The same step with logits SHARP times as large."""
    return replace(inputs, q_nope=inputs.q_nope * SHARP, q_pe=inputs.q_pe * SHARP)


@requirement(
    "NUM-1",
    how=("plain", "sharp"),
    dtype=("bf16",),
    geo=ALL,
    lens=LENGTHS,
    loss=("draft", "none"),
    width=("small", "full"),
)
def test_bf16_outputs_are_golden(lab: Lab) -> None:
    check_step(lab, sharp=lab.case["how"] == "sharp")


@requirement(
    "NUM-2",
    how=("plain", "full-range"),
    dtype=("fp8",),
    geo=ALL,
    lens=LENGTHS,
    loss=("draft", "none"),
    width=("small", "full"),
)
def test_per_tensor_fp8_outputs_are_golden(lab: Lab) -> None:
    check_step(lab, full_range=lab.case["how"] == "full-range")


# Caches with rows between their blocks, with a rope part too, are IDX-4's.
@requirement(
    "NUM-4",
    kpe=(64,),
    dtype=("bf16", "fp8"),
    geo=("tiny", "pool", "odd", "glm", "v32"),
    lens=LENGTHS,
    heads=(16, 64, 128),
)
def test_a_rope_part_takes_part(lab: Lab) -> None:
    check_step(lab)


HEADS = tuple(range(1, 129))


@requirement("NUM-5", heads=HEADS, dtype=("bf16", "fp8"), kpe=(0, 64), geo=("flat", "odd"))
def test_every_head_count_is_right(lab: Lab) -> None:
    check_step(lab)


@requirement(
    "NUM-6",
    how=("split", "split-sharp", "unsplit-many", "unsplit-short"),
    dtype=("bf16", "fp8"),
    geo=("flat", "odd"),
    heads=(8, 64),
)
def test_split_and_unsplit_rows_are_right(lab: Lab) -> None:
    how, draw = lab.case["how"], lab.case.draw.fork("split")
    step = lab.step()
    if how.startswith("split"):
        # So few rows that each gets several clusters.
        rows = draw.randint(1, 5)
        long = tuple(70 + draw.randint(0, 200) for _ in range(rows))
        step = Step((1,) * rows, long, long, rows)
    elif how == "unsplit-many":
        # At least as many equal rows as clusters: each one's share is a whole row.
        count = draw.choice((132, 133, 150))
        full = lab.case.geometry.index_topk + lab.case.geometry.index_kpool
        step = Step((1,) * count, (full,) * count, (full,) * count, count)
    else:
        # Planned exactly, since slack alone would make a short row long enough to split.
        short = tuple(n + draw.randint(0, 33 - n) for n in step.q_lens)
        step = replace(step, seq_lens=short)
    bench = lab.bench(step)
    inputs = bench.world.draw_step(step)
    if how == "split-sharp":  # pieces that weigh nothing beside those with the largest logits
        inputs = sharpened(inputs)
    lab.judged_run(bench, step, inputs, host_knows=how != "unsplit-short")
    partials = [work.partial for work in bench.schedule().works()]
    if how.startswith("split"):
        lab.check(max(partials) >= 0, "partials", got="none", expected="split rows")
    else:
        lab.expect(set(partials), {-1}, "partials of unsplit rows")


@requirement(
    "NUM-7",
    how=("near-zero", "far-below"),
    geo=("pool", "odd", "wide", "glm"),
    dtype=("bf16", "fp8"),
    heads=(16, 64, 128),
)
def test_splits_that_the_clamp_empties_contribute_nothing(lab: Lab) -> None:
    draw = lab.case.draw.fork("few")
    rows = draw.randint(1, 9)
    short = tuple(draw.randint(1, 60) for _ in range(rows))
    far = 2 * lab.case.geometry.index_topk + 400
    step = Step((1,) * rows, short, (far,) * rows, rows)
    bench = lab.bench(step)
    inputs = bench.world.draw_step(step)
    if lab.case["how"] == "far-below":
        inputs = far_below(bench, inputs)
    lab.judged_run(bench, step, inputs)
    works = bench.schedule().works()
    emptied = sum(work.end <= work.start and work.partial >= 0 for work in works)
    lab.check(emptied > 0, "emptied splits", got=emptied, expected="some")


def far_below(bench: Bench, inputs: StepInputs) -> StepInputs:
    """Lower all logits by the same: a channel is 1 in the whole cache and far below 0 in queries.

    Exact softmax does not see it. A piece without tokens that weighs "almost" nothing would now
    outweigh all others.
    """
    config, world = bench.config, bench.world
    raw = world.raw.clone()
    typed = raw if config.fp8 else raw.view(torch.bfloat16)
    typed.view(-1, config.head_dim_ckv + config.head_dim_kpe)[:, 0] = ONE_E4M3 if config.fp8 else 1
    world.raw = raw
    bench.set_cache(raw)
    q_nope = inputs.q_nope.clone()
    q_nope[..., 0] = -FAR_BELOW / (config.sm_scale * config.k_scale)
    return replace(inputs, q_nope=q_nope)


@requirement("NUM-9", lens=("dead",), geo=SMALL, dtype=("bf16", "fp8"), loss=("draft", "far"))
def test_rows_without_valid_entries_are_exactly_zero(lab: Lab) -> None:
    step = lab.step()
    ended = (1 if step.q_lens[0] == 0 else step.q_lens[0], *step.q_lens[1:])
    step = replace(
        step,
        q_lens=ended,
        seq_lens=(0, *step.seq_lens[1:]),
        bounds=(max((step.bounds or (1,))[0], ended[0]), *(step.bounds or ())[1:]),
        padded_rows=sum(ended),
    )
    bench = lab.bench(step)
    inputs = bench.world.draw_step(step)
    out = lab.judged_run(bench, step, inputs)
    dead = [row for row, context in enumerate(step.contexts()) if context == 0]
    lab.check(bool(dead), "rows without context", got=0, expected="some")
    lab.expect(int(out[dead].count_nonzero()), 0, "nonzero elements of rows without context")


@requirement("NUM-8", geo=(*SMALL, "glm"), dtype=("bf16", "fp8"), heads=(16, 64, 128))
def test_the_same_plan_and_inputs_give_the_same_bits(lab: Lab) -> None:
    step = lab.step()
    bench = lab.bench(step)
    inputs = bench.world.draw_step(step)
    first = lab.judged_run(bench, step, inputs)
    metadata = bench.build(step)  # inside the window: the same plan
    for again in range(5):
        bench.clear_output()
        bench.forward(metadata, step.padded_rows)
        same = torch.equal(first.view(torch.int16), bench.output(step.rows).view(torch.int16))
        lab.check(same, f"output bits of run {again + 2}", got="changed", expected="the same")
