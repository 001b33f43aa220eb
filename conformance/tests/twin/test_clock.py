"""The clock: what the device has not run yet, when host memory is read, and when the host waits."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest
import torch

from conformance.twin.clock import PAGEABLE_SNAPSHOT_BYTES, Clock
from conformance.twin.errors import CaptureError, TwinDomainError
from conformance.twin.pinned import POISON, HostCopy
from conformance.twin.planner import INFO_FIELDS
from conformance.twin.surface import NativeModule

ROWS = 4


def ints(clock: Clock, count: int = ROWS) -> torch.Tensor:
    return clock.zeros((count,), torch.int32)


def staged(clock: Clock, value: int, count: int = ROWS) -> torch.Tensor:
    return clock.staging((count,), torch.int32).fill_(value)


def test_memory_is_poisoned_zeroed_or_stale() -> None:
    clock = Clock()
    assert bool(clock.empty((2, 3), torch.bfloat16).isnan().all())
    assert bool(clock.empty((2, 3), torch.float8_e4m3fn).float().isnan().all())
    for block in (clock.empty((3,), torch.int32), clock.staging((3,), torch.int32)):
        assert block.view(torch.uint8).tolist() == [POISON] * 12
    assert clock.empty((), torch.int64).shape == ()
    assert clock.staging((0, 4), torch.int32).shape == (0, 4)
    assert not clock.zeros((4,), torch.int32).any()


def test_nothing_runs_until_the_host_waits_or_steps() -> None:
    clock, target = Clock(), ints(Clock())
    clock.fill(target, 1)
    clock.fill(target, 2)
    assert (clock.pending, int(target[0]), clock.waits) == (2, 0, 0)
    assert clock.step() == 1
    assert (clock.pending, int(target[0])) == (1, 1)
    assert clock.read(target).tolist() == [2] * ROWS
    assert (clock.pending, clock.waits, clock.step(5)) == (0, 1, 0)


def test_pinned_memory_is_read_when_the_copy_executes() -> None:
    clock = Clock()
    target, block = ints(clock), staged(clock, 1)
    clock.upload(target, block)
    block.fill_(2)
    assert clock.read(target).tolist() == [2] * ROWS


def test_small_pageable_memory_is_read_when_the_copy_is_issued() -> None:
    clock = Clock()
    target, source = ints(clock), torch.ones(ROWS, dtype=torch.int32)
    clock.upload(target, source)
    source.fill_(2)
    assert clock.waits == 0
    assert clock.read(target).tolist() == [1] * ROWS


def test_large_pageable_memory_waits_first() -> None:
    clock = Clock()
    for nbytes, waits in ((PAGEABLE_SNAPSHOT_BYTES, 0), (PAGEABLE_SNAPSHOT_BYTES + 1, 1)):
        target = clock.zeros((nbytes,), torch.uint8)
        clock.fill(target, 9)
        clock.upload(target, torch.ones(nbytes, dtype=torch.uint8))
        assert clock.waits == waits
        assert clock.pending == (0 if waits else 2)
        with clock.unobserved():
            assert bool((clock.read(target) == 1).all())


def test_a_dropped_block_is_handed_out_again_at_once() -> None:
    clock = Clock()
    block = staged(clock, 5)
    view, address = block[1:], block.data_ptr()
    del block
    other = staged(clock, 6)
    assert other.data_ptr() != address, "a view keeps its block"
    del view
    again = clock.staging((ROWS - 1,), torch.int32)  # another size of the same power of two
    assert again.data_ptr() == address
    assert again.tolist() == [5] * (ROWS - 1), "a reused block holds stale bytes"


def test_a_recorded_copy_keeps_its_block_until_it_ran() -> None:
    clock = Clock()
    targets = [ints(clock) for _ in range(2)]
    addresses = []
    for value, target in enumerate(targets):
        block = staged(clock, value)
        addresses.append(block.data_ptr())
        clock.upload(target, block)
        del block
    assert addresses[0] != addresses[1]
    clock.step(1)
    assert staged(clock, 7).data_ptr() == addresses[0]
    clock.synchronize()
    assert [int(target[0]) for target in targets] == [0, 1]


@pytest.mark.parametrize("retained", [False, True])
def test_an_unrecorded_copy_reads_what_its_block_holds_by_then(retained: bool) -> None:
    clock = Clock()
    target, block = ints(clock), staged(clock, 1)
    clock.enqueue(HostCopy(target, block))  # as a native call that copies by itself
    if retained:
        clock.retain(block)
    del block
    later = staged(clock, 2)
    assert clock.read(target).tolist() == ([1] if retained else [2]) * ROWS
    assert later.tolist() == [2] * ROWS


def test_only_staging_blocks_can_be_retained() -> None:
    with pytest.raises(TwinDomainError, match="staging"):
        Clock().retain(torch.zeros(3))


@pytest.mark.parametrize("fresh", [False, True])
def test_naive_staging_gives_every_plan_in_flight_the_last_one(fresh: bool) -> None:
    clock = Clock()
    targets = [ints(clock) for _ in range(4)]
    only = clock.staging((ROWS,), torch.int32)
    for plan, target in enumerate(targets):
        block = clock.staging((ROWS,), torch.int32) if fresh else only
        block.fill_(plan)
        clock.upload(target, block)
        del block
    seen = [int(clock.read(target)[0]) for target in targets]
    assert seen == ([0, 1, 2, 3] if fresh else [3, 3, 3, 3])


def plan_four_times(version: str, retain: bool) -> list[int]:
    """Which of four batches each of four int workspaces plans, by its row's length."""
    clock = Clock()
    native = NativeModule(version, enqueue=clock.enqueue)
    float_ws = torch.empty(64 << 20, dtype=torch.uint8)
    spaces = [clock.zeros((1 << 20,), torch.uint8) for _ in range(4)]
    at = 0
    for length, int_ws in enumerate(spaces, 1):
        block = clock.staging((1 << 20,), torch.uint8)
        indptr = torch.tensor([0, 1], dtype=torch.int32)
        lengths = torch.tensor([length], dtype=torch.int32)
        planned = clock.native_plan(
            native.plan, float_ws, int_ws, block, indptr, indptr, lengths, 16, 64, False
        )
        if isinstance(planned, tuple):
            info, staged_bytes = planned
            clock.upload(int_ws[:staged_bytes], block[:staged_bytes])
        else:
            info = planned
            if retain:
                clock.retain(block)
        at = info[INFO_FIELDS.index("kv_len")]
        del block
    clock.synchronize()
    return [int(space[at : at + 4].view(torch.int32)) for space in spaces]


def test_a_plan_that_copies_by_itself_needs_its_block_retained() -> None:
    assert plan_four_times("0.7.4", retain=False) == [1, 2, 3, 4]
    assert plan_four_times("0.6.18", retain=True) == [1, 2, 3, 4]
    assert plan_four_times("0.6.18", retain=False) == [4, 4, 4, 4]


def test_events_are_done_once_the_work_before_them_ran() -> None:
    clock = Clock()
    target = ints(clock)
    assert clock.event().done()
    clock.fill(target, 1)
    event = clock.event()
    clock.fill(target, 2)
    assert not event.done()
    clock.step()
    assert event.done()
    assert not clock.event().done()


def test_a_block_holds_what_is_queued_behind_it() -> None:
    clock = Clock()
    target = ints(clock)
    clock.fill(target, 1)
    clock.block()
    clock.fill(target, 2)
    assert clock.step(9) == 1
    assert clock.step(9) == 0
    assert (clock.pending, int(target[0])) == (1, 1)
    clock.release()
    assert clock.step(9) == 1
    assert int(target[0]) == 2


def test_a_wait_ends_a_block_and_is_counted() -> None:
    clock = Clock()
    target = ints(clock)
    clock.block()
    clock.fill(target, 1)
    assert clock.read(target).tolist() == [1] * ROWS
    assert clock.waits == 1
    clock.fill(target, 2)
    assert clock.step() == 1


def test_the_suites_own_waits_are_not_counted() -> None:
    clock = Clock()
    target = ints(clock)
    with clock.unobserved():
        clock.write(target, torch.ones(ROWS, dtype=torch.int32))
        clock.synchronize()
    assert clock.waits == 0
    clock.write(target, torch.ones(ROWS, dtype=torch.int32))
    clock.synchronize()
    assert clock.waits == 2


def double(target: torch.Tensor, by: int, *, GRID: int) -> None:
    target.mul_(by).add_(GRID)


KERNEL = SimpleNamespace(torch=double, triton=None)


def test_a_launch_captures_tensors_by_reference_and_numbers_by_value() -> None:
    clock = Clock()
    target, info = ints(clock), [1]
    clock.fill(target, 3)
    clock.launch(KERNEL, (1,), (target, 2), {"GRID": 1})
    clock.native_run(lambda numbers: target.add_(numbers[0]), info)
    info[0] = 100
    clock.launch(KERNEL, (1, 0), (target, 0), {"GRID": 0})
    assert clock.pending == 3
    assert clock.read(target).tolist() == [8] * ROWS


def test_the_planner_of_a_native_call_runs_at_once() -> None:
    assert Clock().native_plan(divmod, 7, 2) == (3, 1)


def test_a_graph_replays_with_what_its_buffers_hold_by_then() -> None:
    clock = Clock()
    target, block = ints(clock), staged(clock, 1)
    with clock.capture() as graph:
        assert clock.capturing()
        clock.upload(target, block)
        clock.launch(KERNEL, (1,), (target, 10), {"GRID": 0})
    assert not clock.capturing()
    assert (clock.pending, int(target[0])) == (0, 0)
    for value in (2, 3):
        block.fill_(value)
        graph.replay()
        assert clock.pending == 2
        assert clock.read(target).tolist() == [10 * value] * ROWS


def test_a_graph_keeps_no_pinned_block() -> None:
    clock = Clock()
    target, block = ints(clock), staged(clock, 1)
    with clock.capture() as graph:
        clock.upload(target, block)
    del block
    stranger = staged(clock, 2)
    graph.replay()
    assert clock.read(target).tolist() == stranger.tolist()


def test_what_cuda_refuses_in_a_capture_is_refused() -> None:
    clock = Clock()
    target = ints(clock)
    with clock.capture() as graph:
        for refused in (
            clock.synchronize,
            lambda: clock.read(target),
            lambda: clock.write(target, target),
            lambda: clock.upload(target, torch.zeros(ROWS, dtype=torch.int32)),
            graph.replay,
            lambda: clock.capture().__enter__(),
        ):
            with pytest.raises(CaptureError):
                refused()
        with clock.unobserved():
            clock.read(target)
    assert clock.waits == 0
    assert graph.calls == []


def progress(seed: int) -> list[int]:
    clock = Clock(seed)
    target, seen = ints(clock), []
    for number in range(200):
        clock.fill(target, number)
        seen.append(clock.pending)
    return seen


def test_a_seed_repeats_a_history_and_seeds_differ() -> None:
    assert progress(1) == progress(1) != progress(2)
    assert max(progress(1)) > 3
    assert progress(1).count(0) > 3


def test_a_seeded_device_stays_behind_a_block() -> None:
    clock = Clock(3)
    target = ints(clock)
    clock.block()
    for number in range(1, 50):
        clock.fill(target, number)
    assert (clock.pending, int(target[0])) == (49, 0)


def fail() -> None:
    raise ArithmeticError("of the device")


def test_an_error_surfaces_at_the_next_wait_and_empties_the_queue() -> None:
    clock = Clock()
    target = ints(clock)
    clock.enqueue(fail)
    clock.fill(target, 1)
    assert clock.step(1) == 1
    clock.fill(target, 2)
    assert clock.pending == 0
    assert clock.event().done()
    with pytest.raises(ArithmeticError, match="of the device"):
        clock.synchronize()
    clock.fill(target, 3)
    assert clock.read(target).tolist() == [3] * ROWS


def test_an_error_found_by_the_wait_itself_surfaces_there() -> None:
    clock = Clock(seed=0)
    clock.block()
    clock.enqueue(fail)
    with pytest.raises(ArithmeticError):
        clock.read(ints(clock))
    clock.synchronize()


def test_blocks_in_reference_cycles_come_back_when_collected() -> None:
    clock = Clock()
    holder = SimpleNamespace(block=staged(clock, 1))
    holder.itself, address = holder, holder.block.data_ptr()
    del holder
    gc.collect()
    assert staged(clock, 2).data_ptr() == address


def test_interpreted_kernels_need_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(TwinDomainError, match="TRITON_INTERPRET"):
        Clock(kernels="interpret")


def test_interpreted_kernels_run_from_their_triton_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    clock = Clock(kernels="interpret")
    target, grids = ints(clock), []

    class Source:
        def __getitem__(self, grid: tuple[int, ...]) -> object:
            grids.append(grid)
            return double

    clock.launch(SimpleNamespace(torch=None, triton=Source()), (5,), (target, 1), {"GRID": 4})
    assert clock.read(target).tolist() == [4] * ROWS
    assert grids == [(5,)]
