"""MHA: which rows go to the caller's dense attention, and that every row is computed once."""

from collections.abc import Sequence

import torch

from conformance.core.bench import Bench
from conformance.core.case import Step
from conformance.core.lab import Lab
from conformance.core.requirement import requirement
from conformance.core.subject import Unobservable
from golden import Draw

# The fewest query tokens that make a prefill at 16 heads, beyond every decode threshold's least.
PREFILL = 129


def mixed_step(
    draw: Draw, prefill_lengths: Sequence[int], padding: int = 0, least: int = 0
) -> Step:
    """Return decodes (drafts included) followed by prefills that end at these lengths.

    least: the shortest that a decode's context may be.
    """
    decodes = [draw.randint(1, 5) for _ in range(draw.randint(1, 4))]
    lengths = [draw.randint(max(count, least), 300) for count in decodes]
    bounds = [length + draw.randint(0, 4) for length in lengths]
    chunks = [draw.randint(PREFILL, min(length, 160) + 1) for length in prefill_lengths]
    q_lens = (*decodes, *chunks)
    rows = sum(q_lens)
    return Step(q_lens, (*lengths, *prefill_lengths), (*bounds, *prefill_lengths), rows + padding)


def decode_rows(step: Step) -> int:
    """Rows of the requests that are no prefills."""
    return sum(count for count in step.q_lens if count < PREFILL)


def needs_mha(lab: Lab) -> None:
    if "mha" not in lab.subject.capabilities:
        raise Unobservable("capability mha")


def run_routed(bench: Bench, step: Step, label: str = "") -> tuple[torch.Tensor, int, bool]:
    """Run a step; return the whole output, the rows the metadata names, and the route."""
    inputs = bench.world.draw_step(step, label)
    bench.clear_output()
    metadata = bench.build(step)
    bench.load(inputs)
    bench.forward(metadata, step.padded_rows)
    return bench.output(), metadata.num_rows, metadata.prefill_to_mha


@requirement(
    "MHA-1", how=("below", "at", "above", "one-above", "forced-mqa", "none"), geo=("wide",)
)
def test_prefills_go_to_dense_mha_iff_the_longest_fits(lab: Lab) -> None:
    needs_mha(lab)
    how, topk, draw = lab.case["how"], lab.case.geometry.index_topk, lab.case.draw.fork("mha")
    lengths = {
        "below": [topk - 1],
        "at": [topk, topk - 20],
        "above": [topk + 1],
        "one-above": [topk - 30, topk + 1],
        "forced-mqa": [topk - 1],
        "none": [],
    }[how]
    step = mixed_step(draw, lengths)
    bench = lab.bench(step)
    metadata = bench.build(step)
    routed = how in ("below", "at")
    lab.expect(
        metadata.prefill_to_mha, routed, f"route of prefills of {lengths} tokens, topk {topk}"
    )
    expected = decode_rows(step) if routed else step.rows
    lab.expect(metadata.num_rows, expected, "rows the subject computes")
    works = {work.row for work in bench.schedule().works()}
    lab.expect(works, set(range(expected)), "rows that have work items")


@requirement("MHA-2", geo=("wide",), dtype=("bf16", "fp8"))
def test_decode_rows_do_not_depend_on_where_prefills_go(lab: Lab) -> None:
    needs_mha(lab)
    draw, topk = lab.case.draw.fork("mha"), lab.case.geometry.index_topk
    # Decodes longer than the prefill's rows: planned for those, they would lose tokens.
    routed = mixed_step(draw, [PREFILL + 10], least=PREFILL + 60)
    kept = Step(
        routed.q_lens,
        (*routed.seq_lens[:-1], topk + 7),
        (*(routed.bounds or ())[:-1], topk + 7),
        routed.padded_rows,
    )
    bench = lab.bench(routed, kept)
    rows = decode_rows(routed)
    for step in (routed, kept, routed):
        inputs = bench.world.draw_step(step)
        out, named, to_mha = run_routed(bench, step)
        lab.expect((named, to_mha), (rows, True) if step is routed else (step.rows, False), "route")
        golden = bench.golden(step, inputs)
        mended = golden.out.clone()
        mended[:rows] = out[:rows].to(mended)
        lab.golden(bench, mended, golden, "decode rows")
        lab.no_flags(bench)


@requirement("MHA-3", how=("below-mqa", "at-mqa"), geo=("wide",), dtype=("bf16", "fp8"))
def test_dense_equals_sparse_up_to_topk(lab: Lab) -> None:
    topk, draw = lab.case.geometry.index_topk, lab.case.draw.fork("mha")
    step = mixed_step(draw, [topk if lab.case["how"] == "at-mqa" else topk - 1])
    bench = lab.bench(step)
    inputs = bench.world.draw_step(step)
    out = bench.run(step, inputs)
    sparse = bench.golden(step, inputs)
    everything = [torch.arange(context) for context in step.contexts()]
    dense = bench.golden(step, inputs, tokens=everything)
    short = [row for row, context in enumerate(step.contexts()) if context <= topk]
    error = float((dense.out[short] - sparse.out[short]).abs().max())
    lab.check(error < 1e-12, "dense against sparse oracle", got=error, expected="below 1e-12")
    lab.golden(bench, out, dense if len(short) == step.rows else sparse, "forced MQA output")


@requirement("MHA-4", how=("routed", "kept-mqa"), geo=("wide",), dtype=("bf16", "fp8"))
def test_exactly_the_rows_that_the_metadata_names_change(lab: Lab) -> None:
    needs_mha(lab)
    draw, topk = lab.case.draw.fork("mha"), lab.case.geometry.index_topk
    step = mixed_step(draw, [topk - 2, topk - 40], padding=draw.randint(0, 6))
    bench = lab.bench(step)
    out, named, to_mha = run_routed(bench, step)
    lab.expect(to_mha, lab.case["how"] == "routed", "route")
    lab.expect(named, decode_rows(step) if to_mha else step.rows, "rows the metadata names")
    written = bench.written(out).flatten(1)
    whole = written.all(1).nonzero().flatten().tolist()
    touched = written.any(1).nonzero().flatten().tolist()
    lab.expect(whole, list(range(named)), "rows written in full")
    lab.expect(touched, whole, "rows written at all")
