"""NUM-10: caches with group scales, what is read of the scales, and the write that makes them."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from conformance.core.bench import Bench
from conformance.core.case import Step
from conformance.core.inputs import StepInputs
from conformance.core.lab import Lab
from conformance.core.requirement import requirement
from conformance.core.subject import Unobservable
from conformance.tests.requirements import group_write
from conformance.tests.requirements.test_graph import capture, decodes, replay
from conformance.tests.requirements.test_num import check_step
from conformance.tests.requirements.test_rob import Refusals, forward

ROPE_SCALES = (None, 0.0123, 3.0, 0.0, -1.0, float("nan"), float("inf"))
"""No powers of two: the kernel rounds the rope part's scale to BF16, and each product."""

REFUSALS = 5
"""Bad arguments of a case, out of all that are known."""

SHARP = 4
"""Queries this much larger: logits of some tens, since scales lie apart already."""

POISON = (float("nan"), float("inf"), float("-inf"), 3e38, 0.0)
"""What scales of rows that nothing selects are filled with, an element each."""


def sharpened(inputs: StepInputs) -> StepInputs:
    """The same step with logits SHARP times as large."""
    return replace(inputs, q_nope=inputs.q_nope * SHARP, q_pe=inputs.q_pe * SHARP)


def check_sharp(lab: Lab) -> None:
    """Rows that attend to few of their tokens: one scale too large or small is most of them."""
    step = lab.step()
    bench = lab.bench(step)
    lab.judged_run(bench, step, sharpened(bench.world.draw_step(step)))
    lab.no_flags(bench)


def check_split(lab: Lab) -> None:
    """Few long rows, several clusters each; and short ones planned exactly, which stay whole."""
    draw = lab.case.draw.fork("split")
    rows = draw.randint(1, 5)
    for long in (True, False):
        lengths = tuple(draw.randint(70, 270) if long else draw.randint(1, 33) for _ in range(rows))
        step = Step((1,) * rows, lengths, lengths, rows)
        bench = lab.bench(step)
        inputs = bench.world.draw_step(step)
        inputs = sharpened(inputs) if long and rows % 2 else inputs
        lab.judged_run(bench, step, inputs, host_knows=long)
        partials = {work.partial for work in bench.schedule().works()}
        split = max(partials, default=-1) >= 0
        if not long or lab.case.geometry.index_topk > 16:  # shorter rows are never split
            lab.expect(split, long, f"a split at lengths {lengths}")


def check_dead(lab: Lab) -> None:
    """Rows without context among live ones, and padding: zero, and unwritten."""
    step = replace(lab.step(), device_q_lens=None)
    first = max(step.q_lens[0], 1)
    q_lens, seq_lens = (first, *step.q_lens[1:]), (0, *step.seq_lens[1:])
    bounds = tuple(max(q, n, 1) for q, n in zip(q_lens, seq_lens, strict=True))
    step = Step(q_lens, seq_lens, bounds, sum(q_lens) + 3)
    bench = lab.bench(step)
    out = lab.judged_run(bench, step, bench.world.draw_step(step))
    dead = [row for row, context in enumerate(step.contexts()) if context == 0]
    lab.expect(int(out[dead].count_nonzero()), 0, "nonzero elements of rows without context")
    behind = int(bench.written(bench.output())[step.rows :].sum())
    lab.expect(behind, 0, "elements written behind the live rows")
    lab.no_flags(bench)


def check_replay(lab: Lab) -> None:
    """A padded capture serves other rows, and the scales as they are when it is replayed."""
    draw = lab.case.draw.fork("replays")
    padded = draw.randint(3, 9)
    counts = (draw.randint(1, padded), padded, draw.randint(1, padded))
    steps = [decodes(lab, rows, padded, f"{i}") for i, rows in enumerate(counts)]
    bench = lab.bench(*steps, clock=True)
    world, graph = bench.world, None
    assert world.scales is not None
    for number, step in enumerate(steps):
        metadata = bench.build(step)
        graph = graph or capture(lab, bench, metadata, padded)
        inputs = world.draw_step(step, label=str(number))
        out = replay(lab, bench, graph, step, inputs, f"replay {number}")
        bench.clear_output()
        bench.forward(metadata, padded)
        eager = bench.output(step.rows)
        same = torch.equal(out.view(torch.int16), eager.view(torch.int16))
        lab.check(same, f"bits of replay {number}", got="others", expected="the eager forward's")
        # A cache write between two replays: other scales, the same codes.
        world.scales = world.scales.roll(1, 0).contiguous()
        bench.set_group_scales(world.scales)
    lab.no_flags(bench)


def check_touched(lab: Lab) -> None:
    """By the log: scales are read of the rows selected, and of slot 0 for lanes behind them."""
    log = lab.tier.log
    if log is None:
        check_unselected(lab)  # on a GPU a NaN tells: masked lanes multiply by what they read
        return
    step = lab.step()
    bench = lab.bench(step)
    inputs = bench.world.draw_step(step)
    lab.judged_run(bench, step, inputs)
    valid = bench.valid(step)
    if any(valid) and not log.tiles:
        raise Unobservable("access log")
    selected = slots_of(bench, step, inputs)
    read = log.scale_slots()
    lab.check(read >= selected, "rows whose scales are read", got=read, expected=selected)
    lab.expect(read - selected - {0}, set(), "rows whose scales are read and which nothing selects")
    lab.expect({touch.slot for touch in log.stand_ins()} - {0}, set(), "slots that stand in")
    lab.expect(log.behind(valid), [], "touches behind the valid prefix")
    lab.expect(log.foreign_slots(), [], "touches outside of the cache")


def slots_of(bench: Bench, step: Step, inputs: StepInputs) -> set[int]:
    """Every cache row that a live row of the step selects."""
    pairs = zip(step.row_requests, inputs.tokens, strict=True)
    return {bench.world.slot(owner, token) for owner, row in pairs for token in row.tolist()}


def check_unselected(lab: Lab) -> None:
    """Scales of rows that nothing selects, those between blocks among them, change no bit."""
    step = lab.step()
    bench = lab.bench(step)
    inputs = bench.world.draw_step(step)
    clean = lab.judged_run(bench, step, inputs)
    foreign = [slot for slot in bench.world.unselected(step, inputs.tokens) if slot]
    scales = bench.group_scales()
    draw = lab.case.draw.fork("poison")
    shape = (len(foreign), scales.shape[1])
    scales[foreign] = torch.tensor(POISON)[draw.ints(shape, 0, len(POISON))]
    bench.set_group_scales(scales)
    poisoned = bench.run(step, inputs)
    same = torch.equal(clean.view(torch.int16), poisoned.view(torch.int16))
    lab.check(same, "bits with poison in unselected scales", got="changed", expected="the same")
    lab.no_flags(bench)


def check_slot_zero(lab: Lab) -> None:
    """Lanes behind a row multiply by slot 0's scales: finite ones harm nothing, others are told."""
    draw = lab.case.draw.fork("slot zero")
    step = lab.step()
    bench = lab.bench(step, clock=True)
    inputs = bench.world.draw_step(step)
    clean = lab.judged_run(bench, step, inputs)
    harmless = bench.group_scales()
    if 0 not in slots_of(bench, step, inputs):
        harmless[0] = torch.tensor(draw.choice((0.0, 3e38, -1.0)))
        bench.set_group_scales(harmless)
        again = bench.run(step, inputs)
        same = torch.equal(clean.view(torch.int16), again.view(torch.int16))
        lab.check(same, "bits with another finite scale in slot 0", got="others", expected="same")
    lab.expect(bench.observe().need("flags"), frozenset(), "flags while slot 0's scales are finite")
    bad = harmless.clone()
    bad[0, draw.randint(0, bad.shape[1])] = draw.choice(POISON[:3])
    bench.set_group_scales(bad)
    frame = bench.frame(step, inputs)
    if bench.can_block:
        blocked = bench.block()
        try:
            bench.queue(frame)
            held = blocked.pending()
        finally:
            blocked.release()
        lab.check(held, "the device after the step", got="waited for", expected="still held")
    else:
        bench.queue(frame)
    bench.runtime.synchronize()
    seen = bench.observe().need("flags")
    lab.expect(seen, frozenset({"slot_zero_scale"}), f"flags with {bad[0].tolist()} in slot 0")


def check_refused(lab: Lab) -> None:
    """Scale arrays that the kernel would misread, and rope scales it would round, are errors."""
    refusals = Refusals(lab)
    world, draw = refusals.bench.world, lab.case.draw.fork("refused")
    assert world.scales is not None
    good = world.flat(world.scales)
    wide = torch.cat([good, good], 1)
    arrays = {
        "none": None,
        "float64": good.double(),
        "bf16": good.bfloat16(),
        "flat": good.flatten(),
        "short": good[:-1].contiguous(),
        "wide": wide,
        "loose": wide[:, : good.shape[1]],
    }
    bad: list[tuple[str, dict[str, Any]]] = [
        (f"scale-array-{what}", {"ckv_scale_arr": array}) for what, array in arrays.items()
    ]
    if refusals.bench.config.head_dim_kpe:  # without it no rope scale can do harm
        bad += [(f"scale-rope-{value}", {"k_scale": value}) for value in ROPE_SCALES]
    for what, changes in draw.shuffle(bad)[:REFUSALS]:
        metadata = refusals.bench.build(refusals.step)
        refusals.refuse(partial(forward, refusals, metadata, **changes), what)


CHECKS = {
    "plain": check_step,
    "sharp": check_sharp,
    "split": check_split,
    "dead": check_dead,
    "replay": check_replay,
    "touched": check_touched,
    "unselected": check_unselected,
    "slot-zero": check_slot_zero,
    "refused": check_refused,
    "write-group": group_write.check_groups,
    "write-tensor": group_write.check_per_tensor,
    "write-strange": group_write.check_strange,
    "write-attend": group_write.check_attention,
}


@requirement(
    "NUM-10",
    dtype=("fp8g",),
    heads=(16, 8, 65, 128),
    geo=("tiny", "flat", "pool", "wide", "glm"),
    width=("small", "full"),
    kpe=(0, 64),
    how=tuple(CHECKS),
)
def test_group_scales_are_applied_read_and_written(lab: Lab) -> None:
    CHECKS[lab.case["how"]](lab)
