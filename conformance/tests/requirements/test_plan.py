"""PLAN: what is planned, when a plan is reused, and what the clamp leaves of it."""

from dataclasses import replace
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from conformance.core.bench import Bench
from conformance.core.case import Step
from conformance.core.catalogue import PLAN_SLACK
from conformance.core.lab import Lab
from conformance.core.requirement import requirement
from conformance.core.schedule import FIELDS, MERGE_FIELDS
from conformance.core.subject import Unobservable
from conformance.tests.requirements import headers
from conformance.tests.requirements.test_len import SMALL, planned_lengths

Q_TILE = 64


def check_tiling(lab: Lab, bench: Bench, step: Step) -> None:
    """Assert that work items tile [0, valid) of every row, once per query tile."""
    schedule, heads = bench.schedule(), bench.config.num_heads
    tile = Q_TILE * schedule.info["num_blks_x"]
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for work in schedule.works():
        # One that the clamp empties ends where it starts; the kernel counts tiles unsigned.
        lab.check(work.end >= work.start, "end of a work item", got=work, expected="not before")
        ranges = found.setdefault((work.row, work.q_start), [])
        if work.end > work.start:
            ranges.append((work.start, work.end))
    expected_keys = {(row, start) for row in range(step.rows) for start in range(0, heads, tile)}
    lab.expect(set(found), expected_keys, "(row, query tile) pairs that have work items")
    for row, valid in enumerate(bench.valid(step)):
        for start in range(0, heads, tile):
            edge = 0
            for first, last in sorted(found[row, start]):
                lab.expect(first, edge, f"start of a work item of row {row}, query tile {start}")
                edge = last
            lab.expect(edge, valid, f"end of the work items of row {row}, query tile {start}")


@requirement(
    "PLAN-1", how=("bounds", "reuse", "exact"), geo=("tiny", "flat"), dtype=("bf16", "fp8")
)
def test_planning_during_capture_is_refused_and_changes_nothing(lab: Lab) -> None:
    how, step = lab.case["how"], lab.step()
    bench = lab.bench(step)
    inputs = bench.world.draw_step(step)
    lab.judged_run(bench, step, inputs)
    before = bench.observe()
    # Another step than the one that is planned, so that any part of it that is done shows.
    shorter = tuple(max(n - 1, 0) for n in step.seq_lens)
    far = tuple(bound + 60 for bound in step.bounds or ())
    other = replace(step, seq_lens=shorter, bounds=step.bounds if how == "reuse" else far)
    batch = bench.batch(other, host_knows=how != "exact")
    refused = ""
    with bench.runtime.capture():
        try:
            bench.instance.build(batch)
        except Exception as problem:  # any class: the subject's own
            refused = str(problem)
    lab.check("capture" in refused, "planning in capture", got=refused, expected="a refusal")
    after = bench.observe()
    lab.unchanged(before, after, "planning in capture")
    lab.judged_run(bench, step, inputs)


@requirement("PLAN-3", geo=SMALL, lens=("short", "mixed", "full"), heads=(16, 128))
def test_a_plan_is_reused_exactly_inside_its_window(lab: Lab) -> None:
    draw = lab.case.draw.fork("window")
    first = lab.step()
    largest = lab.case.geometry.index_topk + lab.case.geometry.index_kpool - 1
    bench = lab.bench(first)
    # From the bounds of the last plan: both edges of the window and one step beyond each.
    deltas = [0, PLAN_SLACK, PLAN_SLACK + 1, -1, draw.randint(0, PLAN_SLACK), draw.randint(33, 90)]
    anchor = first.bounds or ()
    planned: list[int] | None = None
    steps = [first]
    for delta in draw.shuffle(deltas):
        steps.append(replace(first, bounds=_moved(anchor, first.q_lens, delta)))
    fewer = (first.q_lens[0] + 1, *first.q_lens[1:])
    steps.append(
        replace(first, q_lens=fewer, padded_rows=sum(fewer), bounds=_moved(anchor, fewer, 1))
    )
    less = (*first.q_lens[:-1], 0)
    if sum(less):
        steps.append(replace(first, q_lens=less, padded_rows=sum(less), bounds=anchor))
    plans = bench.observe().need("plans")
    for number, step in enumerate(steps):
        bounds = [min(context, largest) for context in step.contexts(step.bounds)]
        low_enough = planned is not None and len(planned) == len(bounds)
        covered = low_enough and all(
            bound <= length <= bound + PLAN_SLACK
            for bound, length in zip(bounds, planned or (), strict=False)
        )
        if not covered:
            planned = [min(bound + PLAN_SLACK, largest) for bound in bounds]
            plans += 1
        # The device holds less than any of these bounds: the step before must not matter.
        low = tuple(min(n, b) for n, b in zip(step.q_lens, step.bounds or (), strict=True))
        bench.build(replace(step, seq_lens=low))
        lab.expect(planned_lengths(bench, step.rows), planned, f"planned lengths at step {number}")
        lab.expect(bench.observe().need("plans"), plans, f"plans made by step {number}")


def _moved(bounds: tuple[int, ...], q_lens: tuple[int, ...], delta: int) -> tuple[int, ...]:
    return tuple(max(b + delta, n, 0) for b, n in zip(bounds, q_lens, strict=True))


@requirement(
    "PLAN-4",
    geo=(*SMALL, "glm"),
    lens=("mixed", "edge", "long"),
    loss=("draft", "far"),
    heads=(16, 64, 65, 128),
)
def test_after_the_clamp_work_items_tile_the_valid_range(lab: Lab) -> None:
    step = lab.step()
    bench = lab.bench(step)
    bench.build(step)
    check_tiling(lab, bench, step)


@requirement("PLAN-5", geo=(*SMALL, "glm"), lens=("mixed", "short"), loss=("draft", "far"))
def test_offsets_are_packed_and_flat_behind_the_live_rows(lab: Lab) -> None:
    step = lab.step()
    bench = lab.bench(step)
    bench.build(step)
    offsets = bench.observe().need("kv_indptr").tolist()
    largest = bench.config.geometry.index_topk + bench.config.geometry.index_kpool - 1
    bounds = [min(context, largest) for context in step.contexts(step.bounds)]
    expected = [0, *accumulate(min(bound + PLAN_SLACK, largest) for bound in bounds)]
    lab.expect(offsets[: step.rows + 1], expected, "offsets of the live rows")
    behind = offsets[step.rows :]
    lab.expect(behind, [expected[-1]] * len(behind), "offsets behind the live rows")
    wrong = [w for w in bench.schedule().works() if w.kv_indptr != offsets[w.row]]
    lab.expect(wrong, [], "work items whose indices do not start at their row's offset")


@requirement("PLAN-10", how=("replay", "eager"), geo=("tiny", "pool"), heads=(16, 128))
def test_a_step_without_live_rows_leaves_an_empty_schedule(lab: Lab) -> None:
    live = lab.step()
    idle = Step((0,) * len(live.q_lens), live.seq_lens, live.bounds, live.padded_rows)
    bench = lab.bench(live)
    inputs = bench.world.draw_step(live)
    lab.judged_run(bench, live, inputs)
    golden = bench.golden(live, inputs)
    graph = None
    if lab.case["how"] == "replay":
        if "capture" not in lab.subject.capabilities:
            raise Unobservable("capability capture")
        metadata = bench.build(live)
        with bench.runtime.capture() as graph:
            bench.forward(metadata, live.padded_rows)
        bench.clear_output()
        graph.replay()
        lab.golden(bench, bench.output(live.rows), golden, "replay of the live step")
    metadata = bench.build(idle)
    schedule = bench.schedule()
    lab.expect(schedule.num_works, 0, "work items of a step without rows")
    merges = {name: schedule.array(name).count_nonzero().item() for name in MERGE_FIELDS[:2]}
    lab.expect(set(merges.values()), {0}, "merge ranges of a step without rows")
    bench.clear_output()
    if graph is None:
        bench.forward(metadata, live.padded_rows)
    else:
        graph.replay()
    written = int(bench.written(bench.output()).sum())
    lab.expect(written, 0, "elements written by a step without rows")
    bench.build(live)
    if graph is not None:
        graph.replay()
        lab.golden(bench, bench.output(live.rows), golden, "replay once rows are live again")
    else:
        lab.judged_run(bench, live, inputs)


@requirement("PLAN-11", how=("eager", "replay"), geo=SMALL, lens=("mixed", "dead"), heads=(16, 65))
def test_nothing_belongs_to_a_row_that_is_not_live(lab: Lab) -> None:
    step = replace(lab.step(), padded_rows=0)
    step = replace(step, padded_rows=step.rows + lab.case.draw.randint(1, 9))
    bench = lab.bench(step)
    inputs = bench.world.draw_step(step)
    # Padding rows hold a stale selection, as a reused buffer would.
    stale = inputs.topk.clone()
    stale[step.rows :] = stale[0]
    out = bench.run(step, inputs, topk=stale)
    if lab.case["how"] == "replay":
        metadata = bench.build(step)
        with bench.runtime.capture() as graph:
            bench.forward(metadata, step.padded_rows)
        bench.clear_output()
        graph.replay()
        out = bench.output(step.rows)
    lab.golden(bench, out, bench.golden(step, inputs))
    behind = int(bench.written(bench.output())[step.rows :].sum())
    lab.expect(behind, 0, "elements written behind the live rows")
    schedule, heads = bench.schedule(), bench.config.num_heads
    rows = {work.row for work in schedule.works()}
    lab.expect(rows, set(range(step.rows)), "rows that have work items")
    ends = schedule.array("merge_packed_offset_end")
    lab.check(int(ends.max()) <= step.rows * heads, "merged rows", got=ends.max(), expected="live")


KINDS = ("headers", "short", "long", "swapped", "shifted", "grid", "capacity", "zeros")


def _tampered(kind: str, info: list[int]) -> list[int]:
    if kind == "short":
        return info[:-1]
    if kind == "long":
        return [*info, 0]
    if kind == "swapped":  # kv_start and kv_end change places
        return [*info[:13], info[14], info[13], *info[15:]]
    if kind == "shifted":
        return [*info[:2], *(value + 16 for value in info[2:16]), *info[16:]]
    if kind == "grid":
        return [3 - info[0], info[1] * 2 // (3 - info[0]), *info[2:]]
    if kind == "capacity":  # half the room in one work array, as a changed constant would leave
        return [*info[:15], info[14] + 4 * 8192, *info[16:]]
    return [0] * len(info)


class _Tampered:
    """A native module that returns a changed plan-info."""

    def __init__(self, module: Any, kind: str) -> None:
        self.run, self._module, self._kind = module.run, module, kind

    def plan(self, *args: Any) -> Any:
        """Plan, then change what is returned."""
        result = self._module.plan(*args)
        info = result[0] if len(result) == 2 else result
        changed = _tampered(self._kind, [int(value) for value in info])
        return (changed, result[1]) if len(result) == 2 else changed


@requirement("PLAN-13", how=KINDS, heads=(16, 64, 128))
def test_the_plan_info_layout_is_flashinfers_and_no_other(lab: Lab) -> None:
    kind, step = lab.case["how"], lab.step()
    if kind == "headers":
        spec = find_spec("flashinfer")
        if spec is None or not spec.submodule_search_locations:
            pytest.skip("FlashInfer is not installed: no headers to compare with")
        folder = Path(spec.submodule_search_locations[0])
        lab.expect(headers.plan_info_fields(folder), FIELDS, "MLAPlanInfo's fields in order")
        bench = lab.bench(step)
        bench.build(step)
        schedule = bench.schedule()
        lab.expect(set(schedule.array("q_len").tolist()), {1}, "query tokens of the work items")
        check_tiling(lab, bench, step)
        return
    refused = ""
    try:
        lab.bench(step, wrap=lambda module: _Tampered(module, kind))
    except Unobservable:
        raise
    except Exception as problem:  # any class: the subject's own
        refused = str(problem)
    lab.check("plan-info" in refused, f"a {kind} plan-info", got=refused, expected="a refusal")


@requirement("PLAN-14", geo=SMALL, heads=(16, 128), dtype=("bf16", "fp8"))
def test_lengths_may_grow_again_under_one_plan(lab: Lab) -> None:
    draw, geometry = lab.case.draw.fork("grow"), lab.case.geometry
    requests = draw.randint(1, 5)
    bound = draw.randint(2, geometry.index_topk + geometry.index_kpool + 60)
    q_lens, bounds = (1,) * requests, (bound,) * requests
    lengths = [bound, draw.randint(1, bound + 1), 1, draw.randint(1, bound + 1), bound]
    steps = [
        Step(q_lens, tuple(max(n - i, 1) for i in range(requests)), bounds, requests)
        for n in lengths
    ]
    bench = lab.bench(*steps)
    plans = bench.observe().need("plans") + 1
    for number, step in enumerate(steps):
        inputs = bench.world.draw_step(step, label=str(number))
        lab.judged_run(bench, step, inputs)
        check_tiling(lab, bench, step)
        lab.expect(bench.observe().need("plans"), plans, f"plans made by step {number}")
