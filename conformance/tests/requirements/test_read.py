"""READ: nothing behind a row's valid prefix contributes, and nothing there is touched."""

import torch

from conformance.canary.probe import UNMAPPED, Sighting
from conformance.core.inputs import INT32_MAX, INT32_MIN
from conformance.core.lab import Lab
from conformance.core.requirement import requirement
from conformance.core.subject import Unobservable
from conformance.tests.requirements.conftest import Canary
from conformance.tests.requirements.test_graph import capture
from conformance.tests.requirements.test_len import SMALL


@requirement(
    "READ-B",
    how=("garbage", "foreign"),
    geo=(*SMALL, "glm"),
    lens=("short", "mixed", "edge"),
    dtype=("bf16", "fp8"),
    heads=(16, 128),
)
def test_what_stands_behind_the_valid_prefix_changes_no_bit(lab: Lab) -> None:
    step = lab.step()
    bench = lab.bench(step)
    inputs = bench.world.draw_step(step)
    first = lab.judged_run(bench, step, inputs)
    topk, width = inputs.topk.clone(), inputs.topk.shape[1]
    draw = lab.case.draw.fork("tail")
    garbage = torch.tensor([INT32_MIN, INT32_MAX, 1 << 30, 0x7F7F7F7F], dtype=torch.int32)
    for row, (valid, context) in enumerate(zip(bench.valid(step), step.contexts(), strict=True)):
        if lab.case["how"] == "garbage" or context == 0:
            topk[row, valid:] = garbage[draw.ints((width - valid,), 0, 4)]
        else:  # positions the row could well select, but did not
            topk[row, valid:] = draw.ints((width - valid,), 0, context).to(torch.int32)
    second = bench.run(step, inputs, topk=topk)
    same = torch.equal(first.view(torch.int16), second.view(torch.int16))
    lab.check(same, "output bits under another tail", got="changed", expected="the same")


def check_sighting(lab: Lab, sighting: Sighting) -> None:
    """Assert that nothing faulted where it must not, and that the detector is not blind."""
    lab.expect(sighting.safe, "", "fault where nothing may be touched")
    lab.check(bool(sighting.alarm), "detector", got="no fault", expected="a fault where it must be")


@requirement("READ-A", geo=SMALL, dtype=("bf16", "fp8"), heads=(16, 128), kpe=(0, 64))
def test_no_negative_slot_is_dereferenced(lab: Lab, canary: Canary) -> None:
    check_sighting(lab, canary(lab))


@requirement("CANARY-1", dtype=("bf16", "fp8"), geo=("pool", "odd", "wide"), heads=(16, 64, 128))
def test_the_canary_sees_what_the_twin_says_is_touched(lab: Lab, canary: Canary) -> None:
    check_sighting(lab, canary(lab))


@requirement(
    "READ-C",
    geo=(*SMALL, "glm"),
    lens=("short", "mixed", "edge", "dead"),
    loss=("far", "draft"),
    heads=(16, 64, 128),
    dtype=("bf16", "fp8"),
)
def test_nothing_behind_the_valid_prefix_is_touched(lab: Lab, canary: Canary) -> None:
    log = lab.tier.log
    if log is None:
        check_sighting(lab, canary(lab))
        return
    step = lab.step()
    bench = lab.bench(step)
    inputs = bench.world.draw_step(step)
    lab.judged_run(bench, step, inputs)
    valid = bench.valid(step)
    if any(valid) and not log.tiles:
        raise Unobservable("access log")  # it reads by other means than the tier's kernel
    touched = [max(log.touched_positions(row), default=-1) + 1 for row in range(step.rows)]
    lab.expect(touched, valid, "end of what the kernel touched, per row")
    lab.expect(log.behind(valid), [], "touches behind the valid prefix")
    lab.expect(log.foreign_slots(), [], "touches outside of the cache")


@requirement(
    "READ-D",
    how=("nan", "inf", "huge", UNMAPPED),
    geo=(*SMALL, "glm"),
    dtype=("bf16", "fp8"),
    heads=(16, 128),
)
def test_rows_that_nothing_selects_change_no_bit(lab: Lab, canary: Canary) -> None:
    if lab.case["how"] == UNMAPPED:
        check_sighting(lab, canary(lab))
        return
    step = lab.step()
    bench = lab.bench(step)
    inputs = bench.world.draw_step(step)
    clean = lab.judged_run(bench, step, inputs)
    # Slot 0, the null block of many engines, is among them unless a row selects it.
    foreign = bench.world.unselected(step, inputs.tokens)
    bench.set_cache(bench.world.poisoned(foreign, lab.case["how"]))
    poisoned = bench.run(step, inputs)
    same = torch.equal(clean.view(torch.int16), poisoned.view(torch.int16))
    lab.check(
        same, "output bits with poison in unselected rows", got="changed", expected="the same"
    )


@requirement("READ-E", how=("eager", "replay"), geo=SMALL, dtype=("bf16", "fp8"), kpe=(0, 64))
def test_inputs_are_only_read(lab: Lab) -> None:
    step = lab.step()
    bench = lab.bench(step)
    inputs = bench.world.draw_step(step)
    # Holes among the entries and rubbish in padding rows: whatever compacts or packs has to work.
    topk = inputs.topk.flip(1)
    topk[step.rows :] = INT32_MIN
    metadata = bench.build(step)
    bench.load(inputs, topk)
    before = bench.given()
    if lab.case["how"] == "eager":
        bench.forward(metadata, step.padded_rows)
    else:
        # A warm-up as engines do it before a capture; its writes would land in live blocks.
        bench.forward(metadata, step.padded_rows)
        graph = capture(lab, bench, metadata, step.padded_rows)
        graph.replay()
    lab.golden(bench, bench.output(step.rows), bench.golden(step, inputs))
    for name, now in bench.given().items():
        changed = int((now != before[name]).sum())
        lab.expect(changed, 0, f"elements of {name} that changed")
