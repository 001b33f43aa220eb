"""The plan state reuses a plan within its window, and always ends rows where the device says."""

from dataclasses import replace

import pytest
import torch

import smla
from smla import errors
from smla.tests.workbench import (
    CONFIG,
    INT32,
    Simulated,
    WholeRows,
    Workbench,
    ints,
    starts_of,
    workbench,
)

SLACK = 32
LONG = replace(CONFIG, index_topk=256, topk_width=260, plan_slack=SLACK)
BOUNDS = (100, 150, 40)


def update(bench: Workbench, bounds, *, exact: bool = False, lengths=None) -> None:
    """One query token per row; the device's lengths are the bounds unless others are given."""
    bench.state.update(
        ints(*bounds),
        exact=exact,
        query_start_loc=starts_of([1] * len(bounds)),
        seq_lens=torch.tensor(bounds if lengths is None else lengths, dtype=INT32),
    )


def counted(bench: Workbench) -> tuple[int, int, int]:
    stats = bench.state.stats
    return stats.plans, stats.reuses, stats.clamps


def scheduled(bench: Workbench, name: str) -> dict[int, int]:
    """Row -> what its work item holds."""
    schedule = bench.state.layout.view(bench.state.int_workspace)
    rows = schedule.array("q_indptr").tolist()
    return dict(sorted(zip(rows, schedule.array(name).tolist(), strict=True)))


def test_a_plan_is_the_bounds_with_slack_up_to_the_largest_count():
    bench = workbench(LONG)
    update(bench, (100, 250, 259))
    assert bench.state.planned_lengths.tolist() == [132, 259, 259]


@pytest.mark.parametrize(
    ("bounds", "reused"),
    [
        (BOUNDS, True),
        ((132, 150, 40), True),  # the upper edge
        ((133, 150, 40), False),
        ((100, 182, 72), True),
        ((100, 182, 73), False),
        ((99, 150, 40), False),  # the lower edge is the bounds planned from
        ((100, 150, 39), False),
        ((100, 150), False),  # another number of rows
        ((100, 150, 40, 40), False),
        ((), False),
    ],
)
def test_a_plan_is_reused_exactly_within_its_window(bounds, reused):
    bench = workbench(LONG)
    update(bench, BOUNDS)
    update(bench, bounds)
    clamps = 2 if bounds else 1
    assert counted(bench) == ((1, 1, clamps) if reused else (2, 0, clamps))


@pytest.mark.parametrize(("bound", "reused"), [(259, True), (227, True), (226, False)])
def test_the_window_of_a_capped_plan_keeps_its_width(bound, reused):
    bench = workbench(LONG)
    update(bench, (240,))
    assert bench.state.planned_lengths.tolist() == [259]
    update(bench, (bound,))
    assert counted(bench)[:2] == ((1, 1) if reused else (2, 0))


def test_a_reused_plan_keeps_its_window():
    bench = workbench(LONG)
    update(bench, (100,))
    for bound in range(101, 133):
        update(bench, (bound,))
    assert counted(bench) == (1, 32, 33)
    update(bench, (133,))
    assert counted(bench) == (2, 32, 34)


def test_without_slack_a_plan_is_reused_for_the_same_bounds_alone():
    bench = workbench(replace(LONG, plan_slack=0))
    for bounds in ((50, 60), (50, 60), (50, 61), (50, 60)):
        update(bench, bounds)
    assert counted(bench) == (3, 1, 4)


def test_exact_lengths_are_planned_as_they_are_each_time_and_never_clamped():
    bench = workbench(LONG)
    for _ in range(2):
        update(bench, BOUNDS, exact=True)
        assert bench.state.planned_lengths.tolist() == [*BOUNDS]
        assert [*scheduled(bench, "kv_end").values()] == [*BOUNDS]
    assert counted(bench) == (2, 0, 0)
    update(bench, BOUNDS)
    assert counted(bench) == (3, 0, 1), "an exact plan was reused"


def test_rows_end_where_the_device_says_and_may_grow_again():
    bench = workbench(LONG)
    lengths = [(100, 150, 40), (90, 3, 1), (100, 0, 40), (300, 301, 302), (95, 149, 39)]
    for step, device in enumerate(lengths):
        update(bench, BOUNDS, lengths=device)
        valid = [c if c <= 256 else 256 + c % 4 for c in device]
        ends = [min(v, b + SLACK) for v, b in zip(valid, BOUNDS, strict=True)]
        assert [*scheduled(bench, "kv_end").values()] == ends, f"step {step}"
        assert [*scheduled(bench, "kv_len").values()] == ends, f"step {step}"
    assert counted(bench) == (1, 4, 5)


def test_a_bound_that_is_too_low_is_flagged_once_the_slack_is_used_up():
    bench = workbench(LONG)
    update(bench, BOUNDS, lengths=(132, 182, 72))
    assert not bench.state.read_flags()
    update(bench, BOUNDS, lengths=(132, 183, 72))
    assert bench.state.read_flags() == smla.Flag.VALID_ABOVE_PLAN
    update(bench, BOUNDS)
    assert bench.state.read_flags() == smla.Flag.VALID_ABOVE_PLAN, "kernels clear no flag"
    bench.state.clear_flags()
    assert not bench.state.read_flags()


@pytest.mark.parametrize("exact", [False, True])
def test_csr_is_packed_and_flat_behind_the_live_rows(exact):
    bench = workbench(LONG)
    update(bench, (200,) * LONG.max_tokens)
    update(bench, BOUNDS, exact=exact)
    slack = 0 if exact else SLACK
    total = sum(BOUNDS) + 3 * slack
    expected = [0, 100 + slack, 250 + 2 * slack, *[total] * (LONG.max_tokens - 2)]
    assert bench.state.kv_indptr.tolist() == expected


@pytest.mark.parametrize("exact", [False, True])
def test_without_rows_the_planner_is_not_called_and_nothing_is_scheduled(exact):
    module = WholeRows()
    bench = workbench(LONG, source=Simulated(module))
    update(bench, BOUNDS)
    module.tamper = lambda info: pytest.fail("the planner was called")
    update(bench, (), exact=exact)
    assert not bench.state.int_workspace.any()
    assert not bench.state.kv_indptr.any()
    assert not bench.state.row_context.any()
    module.tamper = None
    update(bench, BOUNDS)
    assert [*scheduled(bench, "kv_end").values()] == [*BOUNDS]


def test_addresses_and_plan_info_never_change():
    bench = workbench(LONG)
    state = bench.state

    def fixed():
        return state.addresses(), list(state.engine.plan_info)

    first = fixed()
    for bounds, exact in (
        (BOUNDS, False), (BOUNDS, False), ((), False), ((9,) * 12, True), (BOUNDS, False),
    ):  # fmt: skip
        update(bench, bounds, exact=exact)
        assert fixed() == first
    assert state.serial == 5


def test_slack_beyond_the_largest_count_is_no_more_than_that():
    bench = workbench(replace(LONG, plan_slack=2**31 - 1))
    update(bench, (100, 1))
    assert bench.state.planned_lengths.tolist() == [259, 259]
    update(bench, (259, 259))
    assert counted(bench)[:2] == (1, 1)


def test_more_rows_than_reserved_are_refused():
    bench = workbench(LONG)
    rows = LONG.max_tokens + 1
    with pytest.raises(errors.CapacityError, match=str(rows)):
        update(bench, (1,) * rows)


def test_what_fails_once_the_device_changed_leaves_no_metadata_usable(monkeypatch):
    bench = workbench(LONG)
    update(bench, (100, 200))
    serial = bench.state.serial

    def fail(*_):
        raise RuntimeError("the launch failed")

    with monkeypatch.context() as patch:
        patch.setattr(bench.state.runtime, "launch", fail)
        with pytest.raises(RuntimeError, match="the launch failed"):
            update(bench, (10, 20))
    assert bench.state.serial > serial
    update(bench, (10, 20))
    assert scheduled(bench, "kv_end") == {0: 10, 1: 20}


def test_rows_left_to_dense_attention_see_nothing():
    bench = workbench(LONG)
    bench.state.update(
        ints(5),
        exact=False,
        query_start_loc=starts_of([1, 4]),
        seq_lens=torch.tensor([5, 9], dtype=INT32),
    )
    assert bench.state.row_context[:5].tolist() == [5, 0, 0, 0, 0]
