"""PLAN-8, PLAN-9: the host runs ahead of a device that is held still, and waits for nothing."""

from dataclasses import replace

from conformance.core.case import Step
from conformance.core.lab import Lab
from conformance.core.requirement import requirement
from conformance.core.subject import Unobservable

GEOMETRIES = ("flat", "pool", "odd", "wide")
MANY_TOKENS = 32768
"""Rows reserved at construction: FlashInfer's own plan() waits at this size, in every version."""


@requirement(
    "PLAN-8",
    how=("plan", "reuse", "idle", "plan-large", "reuse-large"),
    dtype=("bf16", "fp8"),
    geo=("flat", "pool", "wide"),
    heads=(16, 128),
)
def test_a_step_waits_for_nothing(lab: Lab) -> None:
    how, draw = lab.case["how"], lab.case.draw.fork("step")
    rows, low = draw.randint(1, 7), 20
    lengths = tuple(draw.randint(1, low) for _ in range(rows))
    step = Step((1,) * rows, lengths, (low,) * rows, rows + draw.choice((0, 0, 1, 3)))
    # A bound so far from the step's that the plan of one does not serve the other.
    far = (3 * lab.case.geometry.index_topk,) * rows
    first = step if how.startswith("reuse") else replace(step, bounds=far)
    changes = {"max_tokens": MANY_TOKENS} if how.endswith("large") else {}
    bench = lab.bench(first, step, clock=True, changes=changes)
    inputs = bench.world.draw_step(step)
    # Everything a step does is done once before, so that nothing is loaded or compiled in between.
    bench.queue(bench.frame(first, inputs))
    bench.queue(bench.frame(step, inputs))
    bench.queue(bench.frame(first, inputs))
    bench.runtime.synchronize()
    if how == "idle":
        step = Step((0,) * len(step.q_lens), step.seq_lens, step.bounds, step.padded_rows)
    frame = bench.frame(step, inputs)
    plans = bench.observe().need("plans")
    if bench.can_block:
        waits = bench.clock.waits if bench.clock is not None else 0
        blocked = bench.block()
        try:
            lab.check(blocked.pending(), "the device before the step", got="idle", expected="held")
            bench.queue(frame)
            held = blocked.pending()
        finally:
            blocked.release()
        lab.check(
            held, "the device after build and forward", got="waited for", expected="still held"
        )
        if bench.clock is not None:
            lab.expect(bench.clock.waits - waits, 0, "waits for the device")
    else:  # the subject runs at once on the twin: it must show by itself what waits
        before = bench.observe().need("waits")
        bench.queue(frame)
        lab.expect(bench.observe().need("waits") - before, 0, "waits for the device")
    made = bench.observe().need("plans") - plans
    lab.expect(made, 0 if how.startswith("reuse") else 1, "plans made by the step")
    if how != "idle":
        lab.golden(bench, bench.read(frame.out[: step.rows]), bench.golden(step, inputs))


@requirement(
    "PLAN-9", how=("4", "4", "9", "64"), geo=GEOMETRIES, dtype=("bf16", "fp8"), heads=(16, 128)
)
def test_plans_in_flight_keep_their_own_schedules(lab: Lab) -> None:
    depth, draw = int(lab.case["how"]), lab.case.draw.fork("queue")
    longest = 2 * lab.case.geometry.index_topk + lab.case.geometry.index_kpool
    steps = []
    for number in range(depth):
        rows = 1 + (number % 4 + draw.choice((0, 0, 0, 1))) % 4  # mostly another than before
        lengths = tuple(draw.randint(1, longest) for _ in range(rows))
        bounds = tuple(n + draw.choice((0, 3, 70)) for n in lengths)
        steps.append(Step((1,) * rows, lengths, bounds, rows + draw.randint(0, 2)))
    bench = lab.bench(*steps, clock=True)
    if not bench.can_block:
        raise Unobservable("capability clock")
    inputs = [bench.world.draw_step(step, label=str(i)) for i, step in enumerate(steps)]
    frames = [bench.frame(step, given) for step, given in zip(steps, inputs, strict=True)]
    bench.queue(frames[0])
    bench.runtime.synchronize()
    plans = bench.observe().need("plans")
    blocked = bench.block()
    try:
        for frame in frames:
            bench.queue(frame)
        held = blocked.pending()
    finally:
        blocked.release()
    lab.check(held, f"the device after {depth} steps", got="waited for", expected="still held")
    try:
        outs = [bench.read(frame.out[: frame.step.rows]) for frame in frames]
    except Exception as problem:  # a schedule of other rows reaches beyond this step's
        lab.expect(str(problem), "", f"what the device says of {depth} steps queued at once")
        raise
    for number, (step, given, out) in enumerate(zip(steps, inputs, outs, strict=True)):
        # The schedule of a past step is gone: golden takes the looser bound of unknown splits.
        golden = bench.world.golden(step, given, split=None)
        lab.golden(bench, out, golden, f"step {number} of {depth} queued at once")
    made = bench.observe().need("plans") - plans
    lab.check(made >= depth // 2, "plans in flight", got=made, expected="half of the steps")
