"""A step with more work items than one schedule holds is planned and run in chunks."""

from collections import Counter
from dataclasses import replace

import pytest

from golden import Draw
from smla import errors
from smla.schedule import WORK_CAPACITY, ScheduleLayout
from smla.tests.workbench import (
    CONFIG,
    FP8_CONFIG,
    NUM_SMS,
    Simulated,
    WholeRows,
    assert_refused,
    ints,
    same_bytes,
    workbench,
)

ROOM = 3
"""Rows that fit into a pretended schedule whatever their lengths; 11 short ones fit as well."""
ROWS_TO_CHUNKS = [(1, 1), (3, 1), (4, 1), (11, 1), (12, 4), (13, 5), (14, 5)]
MANY = replace(CONFIG, max_tokens=14)


@pytest.fixture
def small(monkeypatch):
    """Pretend that FlashInfer's arrays hold 11 work items: the 8 of its clusters, and 3."""
    monkeypatch.setattr(ScheduleLayout, "capacity", NUM_SMS + ROOM)


@pytest.fixture(params=["0.7", "0.6.18"])
def bench(small, request):
    return workbench(MANY, source=Simulated(WholeRows(copies=request.param == "0.6.18")))


@pytest.mark.parametrize(("rows", "chunks"), ROWS_TO_CHUNKS)
@pytest.mark.parametrize("optimism", [3, None], ids=["bounds", "exact"])
def test_chunked_rows_are_goldens_on_both_sides_of_each_border(bench, rows, chunks, optimism):
    bench.good_step(q_lens=(1, rows - 1), seq_lens=(9, rows + 30), optimism=optimism)
    stats = bench.state.stats
    assert (stats.plans, stats.chunks, len(bench.state.active)) == (1, chunks, chunks)
    assert not bench.state.read_flags()


def test_chunked_rows_of_an_fp8_cache_are_goldens(small):
    bench = workbench(replace(FP8_CONFIG, max_tokens=14))
    bench.good_step(q_lens=(1, 13), seq_lens=(9, 50))
    assert bench.state.stats.chunks == 5


def test_each_schedule_holds_its_own_rows_and_all_rows_are_in_one(bench):
    bench.good_step(q_lens=(14,), seq_lens=(60,))
    view = bench.state.layout.view
    held = [sorted(view(s.workspace).array("q_indptr").tolist()) for s in bench.state.active]
    assert held == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11], [12, 13]]


def test_a_chunked_plan_is_reused_and_each_chunk_clamped(bench):
    for seq_len in (60, 61, 20, 14, 62):  # rows shrink and grow again under one plan
        batch = bench.batch((14,), (seq_len,), optimism=62 - seq_len)
        call = bench.call(batch)
        bench.forward(call, bench.builder.build(batch))
        bench.check_output(batch, call)
    stats = bench.state.stats
    assert (stats.plans, stats.reuses, stats.chunks, stats.clamps) == (1, 4, 5, 5)


def test_steps_of_one_schedule_and_of_several_follow_each_other(bench):
    for step, (rows, chunks) in enumerate([*ROWS_TO_CHUNKS, *reversed(ROWS_TO_CHUNKS)]):
        shape = {"q_lens": (rows,), "seq_lens": (rows + 7 * step,)}
        bench.good_step(**shape, optimism=3 if step % 3 else None)
        assert len(bench.state.active) == chunks, f"step {step}"
    bench.good_step(q_lens=(), seq_lens=())
    bench.good_step(q_lens=(14,), seq_lens=(20,))


def test_a_chunked_step_is_not_captured(bench):
    batch = bench.batch((12,), (50,))
    call, metadata = bench.call(batch), bench.builder.build(batch)
    before = call["out"].clone()
    with bench.runtime.capture() as graph:
        assert_refused(
            lambda: bench.forward(call, metadata),
            errors.CapacityError,
            f"rows of a captured forward|found 12|at most {ROOM}|11 work items|eagerly",
        )
    graph.replay()
    assert same_bytes(before, call["out"]) and bench.state.captures.rows == []
    bench.forward(call, metadata)
    bench.check_output(batch, call)


def test_a_batch_that_fits_by_its_lengths_alone_is_not_captured(bench):
    batch = bench.batch((ROOM + 1,), (50,))
    call, metadata = bench.call(batch), bench.builder.build(batch)
    assert len(bench.state.active) == 1
    with bench.runtime.capture():
        assert_refused(lambda: bench.forward(call, metadata), errors.CapacityError, "at most 3")


def test_a_graph_stays_right_with_chunked_steps_between_its_replays(bench):
    first = bench.batch((1, 1), (9, 30), padded=ROOM)
    call, metadata = bench.call(first), bench.builder.build(first)
    with bench.runtime.capture() as graph:
        bench.forward(call, metadata)
    for lens in ((12, 80), (3, 4)):
        bench.good_step(q_lens=(14,), seq_lens=(60,), eager=True)
        batch = bench.batch((1, 2), lens, padded=ROOM, table=first.block_table)
        for name, tensor in bench.call(batch).items():
            bench.runtime.write(call[name], tensor)
        bench.builder.build(batch)
        graph.replay()
        bench.check_output(batch, call)


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("copies", [False, True])
def test_a_plan_that_fails_in_a_later_chunk_never_leaves_half_of_it_in_force(small, place, copies):
    module = WholeRows(copies=copies)
    bench = workbench(MANY, source=Simulated(module))
    batch = bench.batch((14,), (40,))
    call, metadata = bench.call(batch), bench.builder.build(batch)
    planned: Counter[str] = Counter()

    def fail(info):
        planned["calls"] += 1
        if planned["calls"] > place:
            raise RuntimeError("the planner has no room")
        return info

    module.tamper = fail
    with pytest.raises(RuntimeError, match="no room"):
        bench.builder.build(bench.batch((14,), (14,), optimism=None))
    module.tamper = None
    try:
        bench.forward(call, metadata)
    except errors.OrderError:
        assert bench.state.serial > metadata.serial
    else:
        bench.check_output(batch, call)
    bench.good_step(q_lens=(14,), seq_lens=(40,))


@pytest.mark.parametrize(("rows", "chunks"), [(WORK_CAPACITY, 1), (WORK_CAPACITY + 1, 2)])
@pytest.mark.parametrize("optimism", [0, None], ids=["bounds", "exact"])
def test_flashinfers_own_capacity_is_used_to_the_last_work_item(rows, chunks, optimism):
    bench = workbench(replace(CONFIG, max_tokens=rows))
    metadata = bench.builder.build(bench.batch((rows,), (rows,), optimism=optimism))
    assert (metadata.num_rows, bench.state.stats.chunks) == (rows, chunks)


@pytest.mark.parametrize("seed", range(40))
def test_chunks_are_all_rows_in_order_and_fit_whatever_the_lengths(seed):
    draw = Draw(f"chunks {seed}")
    layout = ScheduleLayout(draw.choice([1, 64, 65, 128]), draw.choice([132, 78, 8]), 512)
    most = layout.most_rows
    rows = draw.choice([0, 1, most - 1, most, most + 1, WORK_CAPACITY, 2 * most, 2 * most + 1])
    longest = draw.choice([1, 33, 300, 2048, 200_000])
    lengths = ints(*draw.ints((rows,), 0, longest + 1).tolist())
    chunks = layout.chunks(lengths)
    assert [row for part in chunks for row in part] == [*range(rows)]
    assert len(chunks) <= layout.most_schedules(rows)
    for part in chunks:
        works = layout.count_works(lengths[part.start : part.stop])
        assert works <= min(layout.capacity, layout.most_works(len(part))), f"{part}: {works}"
