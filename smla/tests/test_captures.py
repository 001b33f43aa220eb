"""What graphs have baked in is compared at every later build; what they cannot do is refused."""

from dataclasses import replace

import pytest
import torch

import smla
from smla import errors
from smla.tests.workbench import (
    CONFIG,
    FP8_CONFIG,
    INT32,
    assert_refused,
    same_bytes,
    workbench,
)


def captured(bench, *, rows=9, **shape):
    """Build a batch and capture its forward; returns (batch, call, graph)."""
    batch = bench.batch(padded=rows, **shape)
    call, metadata = bench.call(batch), bench.builder.build(batch)
    with bench.runtime.capture() as graph:
        bench.forward(call, metadata)
    return batch, call, graph


def replay(bench, batch, call, graph):
    """Refill the captured tensors with this batch's, build, replay, and check the output."""
    for name, tensor in bench.call(batch).items():
        bench.runtime.write(call[name], tensor)
    bench.builder.build(batch)
    graph.replay()
    bench.check_output(batch, call)


def other_address(table):
    return table.clone()


def other_width(table):
    return table[:, :-1]


def other_row_stride(table):
    return table.new_zeros(3, 18).as_strided((3, 9), (18, 1)).copy_(table)


@pytest.mark.parametrize("other", [other_address, other_width, other_row_stride])
@pytest.mark.parametrize("optimism", [3, None], ids=["bounds", "exact"])
def test_a_build_with_another_block_table_is_refused_and_writes_nothing(other, optimism):
    bench = workbench()
    first, call, graph = captured(bench)
    batch = bench.batch(padded=9, optimism=optimism, table=first.block_table)
    bad = replace(batch, block_table=other(first.block_table))
    before = bench.written()
    assert_refused(
        lambda: bench.builder.build(bad),
        errors.GraphError,
        f"block_table|{first.block_table.data_ptr():#x}|9 blocks a row, row stride 9|"
        "refill that tensor in place|eager=True|captures.forget()",
    )
    for name, value in bench.written().items():
        same = same_bytes if hasattr(value, "shape") else lambda a, b: a == b
        assert same(before[name], value), f"the refused build changed {name}"
    replay(bench, batch, call, graph)


def test_a_block_table_with_other_rows_of_the_same_memory_is_the_same():
    bench = workbench()
    first, call, graph = captured(bench)
    for requests in (1, 2, 3):
        lens = (1, 3, 2)[:requests]
        batch = bench.batch(lens, (20, 40, 60)[:requests], padded=9, table=first.block_table)
        replay(bench, replace(batch, block_table=batch.block_table[:requests]), call, graph)


def test_a_batch_without_requests_fits_any_graph():
    bench = workbench()
    first, call, graph = captured(bench)
    empty = bench.batch((), (), padded=9)
    before = call["out"].clone()
    bench.builder.build(replace(empty, block_table=first.block_table[:0]))
    graph.replay()
    assert same_bytes(before, call["out"]), "a step without rows wrote"


def test_a_graph_captured_without_a_block_table_admits_no_other_one():
    bench = workbench()
    batch = bench.batch((), (), padded=9)
    metadata = bench.builder.build(replace(batch, block_table=batch.block_table[:0]))
    with bench.runtime.capture():
        bench.forward(bench.call(batch), metadata)
    assert_refused(lambda: bench.builder.build(bench.batch()), errors.GraphError, "block_table")


def test_an_eager_step_takes_any_block_table_and_leaves_the_graphs_alone():
    bench = workbench()
    first, call, graph = captured(bench)
    for _ in range(2):
        bench.good_step(eager=True)
        replay(bench, bench.batch(padded=9, table=first.block_table), call, graph)


def test_a_capture_with_another_block_table_than_the_first_one_is_refused():
    bench = workbench()
    first, *_ = captured(bench)
    second = bench.batch(eager=True)
    call, metadata = bench.call(second), bench.builder.build(second)
    with bench.runtime.capture() as graph:
        assert_refused(lambda: bench.forward(call, metadata), errors.GraphError, "block_table")
    before = call["out"].clone()
    graph.replay()
    assert same_bytes(before, call["out"]), "the refused capture recorded something"
    captured(bench, rows=12, table=first.block_table)
    assert bench.state.captures.rows == [9, 12]


def test_forgotten_captures_bind_nothing():
    bench = workbench()
    captured(bench)
    bench.state.captures.forget()
    assert bench.state.captures.rows == []
    bench.good_step()
    batch, call, graph = captured(bench)
    replay(bench, bench.batch(padded=9, table=batch.block_table), call, graph)


def test_captures_bind_their_own_builder_only():
    bench = workbench()
    captured(bench)
    bench.builder = bench.backend.builder()
    bench.state = bench.builder.state
    bench.good_step()


def test_graphs_of_several_sizes_serve_one_builder():
    bench = workbench()
    table = bench.runtime.zeros((3, 9), INT32)
    graphs = {rows: captured(bench, rows=rows, table=table)[1:] for rows in (12, 6, 9)}
    assert bench.state.captures.rows == [12, 6, 9]
    for rows, (call, graph) in graphs.items():
        replay(bench, bench.batch(padded=rows, table=table), call, graph)
    assert not bench.state.read_flags()


@pytest.mark.parametrize("config", [CONFIG, FP8_CONFIG], ids=["bf16", "fp8"])
@pytest.mark.parametrize(("live", "flagged"), [(5, False), (6, False), (7, True), (12, True)])
def test_a_replay_for_more_rows_than_were_captured_is_flagged(live, flagged, config):
    bench = workbench(config)
    first, call, graph = captured(bench, rows=6)
    bench.builder.build(bench.batch((live,), (live + 20,), table=first.block_table))
    before = torch.full(call["out"].shape, 0x3FC5, dtype=torch.int16)
    bench.runtime.write(call["out"].view(torch.int16), before)
    graph.replay()
    assert (smla.Flag.ROWS_BEYOND_FORWARD in bench.state.read_flags()) is flagged
    same = bench.runtime.read(call["out"]).view(torch.int16) == before
    assert bool(same.all()) is flagged, "all that it would compute has no room"


@pytest.mark.parametrize("replan", [False, True], ids=["reused", "replanned"])
def test_a_replay_for_too_many_rows_leaves_the_next_step_whole(replan):
    bench = workbench()
    first, _, graph = captured(bench, rows=6)
    batch = bench.batch((9,), (40,), padded=9, table=first.block_table)
    bench.builder.build(batch)
    plans = bench.state.stats.plans
    graph.replay()
    bench.state.clear_flags()
    later = bench.batch((8,) if replan else (9,), (40,), padded=9, table=first.block_table)
    call, metadata = bench.call(later), bench.builder.build(later)
    assert bench.state.stats.plans - plans == replan
    bench.forward(call, metadata)
    bench.check_output(later, call)
    assert not bench.state.read_flags()


@pytest.mark.parametrize("most", [6, 9])
def test_captured_rows_above_max_graph_tokens_are_refused_and_eager_ones_are_not(most):
    bench = workbench(replace(CONFIG, max_graph_tokens=most))
    first, *_ = captured(bench, rows=most)
    batch = bench.batch(padded=most + 1, table=first.block_table)
    call, metadata = bench.call(batch), bench.builder.build(batch)
    with bench.runtime.capture():
        assert_refused(
            lambda: bench.forward(call, metadata),
            errors.CapacityError,
            f"rows of a captured forward|found {most + 1}|at most {most}|max_graph_tokens",
        )
    assert bench.state.captures.rows == [most]
    bench.good_step(q_lens=(12,), seq_lens=(50,), table=first.block_table)
