"""The builder routes rows, bounds them, and feeds captured forwards."""

from dataclasses import replace

import pytest
import torch

import smla
from smla.tests.workbench import CONFIG, same_bytes, starts_of, workbench

LONG = replace(CONFIG, index_topk=256, topk_width=260, max_tokens=200)


@pytest.mark.parametrize(
    ("bound", "force_mqa", "to_mha"),
    [
        (0, False, False), (1, False, True), (255, False, True), (256, False, True),
        (257, False, False), (1, True, False), (256, True, False),
    ],
)  # fmt: skip
def test_prefills_go_to_dense_mha_while_everything_is_selected(bound, force_mqa, to_mha):
    config = replace(LONG, force_mqa=force_mqa)
    assert smla.routes_prefill_to_mha(config, bound) is to_mha


@pytest.mark.parametrize("optimism", [0, None], ids=["bounds", "exact"])
@pytest.mark.parametrize(
    ("prefill", "force_mqa", "rows"), [(256, False, 3), (257, False, 133), (200, True, 133)]
)
def test_the_rows_that_mha_takes_are_neither_planned_nor_written(
    prefill, force_mqa, rows, optimism
):
    bench = workbench(replace(LONG, force_mqa=force_mqa))
    batch = bench.batch((1, 2, 130), (300, 44, prefill), optimism=optimism)
    call = bench.call(batch)
    before = call["out"].clone()
    metadata = bench.builder.build(batch)
    assert (metadata.num_decodes, metadata.num_decode_tokens) == (2, 3)
    assert (metadata.num_rows, metadata.prefill_to_mha) == (rows, rows == 3)
    assert metadata.num_prefill_tokens == 130 and metadata.num_tokens == 133
    assert bench.state.planned_lengths.size == rows
    assert bench.forward(call, metadata) is call["out"]
    assert same_bytes(before[rows:], call["out"][rows:]), "rows of the other path were written"
    if rows == 3:
        call["out"][3:] = 0
        bench.runtime.fill(call["topk_indices"][3:], 0)
        decodes = replace(
            batch,
            query_start_loc_cpu=batch.query_start_loc_cpu[:3],
            query_start_loc=batch.query_start_loc[:3],
            seq_lens=batch.seq_lens[:2],
        )
        bench.check_output(decodes, call)
    else:
        bench.check_output(batch, call)


def test_a_padding_request_is_no_prefill():
    bench = workbench(LONG)
    metadata = bench.builder.build(bench.batch((1, 0, 0), (300, 0, 0), optimism=0, padded=8))
    assert (metadata.num_rows, metadata.num_padded_tokens) == (1, 8)
    assert not metadata.prefill_to_mha and metadata.num_decodes == 3


@pytest.mark.parametrize("shares", [(1, 4, 1), (4, 1, 1), (0, 6, 0), (2, 2, 2)])
@pytest.mark.parametrize("slack", [0, 32])
def test_adaptive_rows_are_right_however_the_device_shares_them_out(shares, slack):
    bench = workbench(replace(LONG, plan_slack=slack))
    batch = bench.batch((2, 2, 2), (20, 200, 10), optimism=2)
    shared = replace(batch, query_start_loc=bench.on_device(starts_of(shares)), adaptive=True)
    call = bench.call(shared)
    bench.forward(call, bench.builder.build(shared))
    assert not bench.state.read_flags()
    bench.check_output(shared, call)


def test_rows_shared_out_behind_the_builders_back_are_flagged():
    bench = workbench(replace(LONG, plan_slack=0))
    batch = bench.batch((2, 2, 2), (20, 200, 10), optimism=2)
    shared = replace(batch, query_start_loc=bench.on_device(starts_of((1, 4, 1))))
    bench.builder.build(shared)
    assert bench.state.read_flags() == smla.Flag.VALID_ABOVE_PLAN


def test_an_output_is_allocated_where_none_is_given():
    bench = workbench()
    batch = bench.batch()
    call = bench.call(batch)
    call["out"] = bench.forward(call, bench.builder.build(batch), out=None)
    assert call["out"].shape == call["q_nope"].shape and call["out"].dtype == torch.bfloat16
    bench.check_output(batch, call)


STEPS = [
    ((1, 3, 2), (7, 40, 100)),
    ((1, 3, 2), (8, 41, 101)),  # reuses the plan
    ((4,), (4,)),
    ((), ()),  # nothing to do
    ((2, 0, 7), (30, 0, 29)),
    ((1, 3, 2), (2, 3, 5)),
]


@pytest.mark.parametrize("optimism", [3, None], ids=["bounds", "exact"])
def test_one_captured_forward_follows_every_later_build(optimism):
    bench = workbench()
    first = bench.batch(optimism=optimism, padded=9)
    call, metadata = bench.call(first), bench.builder.build(first)
    with bench.runtime.capture() as graph:
        bench.forward(call, metadata)
    for q_lens, seq_lens in STEPS:
        table = first.block_table  # graphs keep the tensors they were captured with
        batch = bench.batch(q_lens, seq_lens, optimism=optimism, padded=9, table=table)
        inputs = bench.call(batch)
        for name, tensor in inputs.items():
            bench.runtime.write(call[name], tensor)
        bench.builder.build(batch)
        graph.replay()
        bench.check_output(batch, call)
        live = batch.num_tokens
        assert same_bytes(inputs["out"][live:], call["out"][live:]), "a padding row was written"
        assert not bench.state.read_flags()
