"""A batch knows its rows, its decodes and its soundness."""

from dataclasses import replace

import pytest
import torch

import smla
from smla.layout import decode_threshold
from smla.tests.workbench import INT32, same_bytes, starts_of, workbench


def batch_of(q_lens, **fields):
    starts = starts_of(q_lens)
    return smla.BatchLayout(
        query_start_loc_cpu=starts,
        query_start_loc=starts.clone(),
        seq_lens=torch.tensor(q_lens, dtype=INT32),
        block_table=torch.zeros(len(q_lens), 4, dtype=INT32),
        **fields,
    )


@pytest.mark.parametrize(
    ("heads", "threshold"),
    [(1, 128), (16, 128), (32, 128), (33, 256), (64, 256), (65, 1024), (128, 1024)],
)
def test_the_fewer_heads_the_sooner_a_request_is_a_prefill(heads, threshold):
    assert decode_threshold(heads) == threshold


@pytest.mark.parametrize(
    ("q_lens", "expected"),
    [
        ([1, 1, 4], (3, 6)),
        ([1, 4, 5, 1], (2, 5)),  # a short request behind a long one is no decode
        ([5, 1], (0, 0)),
        ([1, 0, 4, 0], (4, 5)),  # padding requests
        ([5], (0, 0)),
        ([0], (1, 0)),
        ([], (0, 0)),
    ],
)
def test_the_decodes_are_the_leading_short_requests(q_lens, expected):
    assert batch_of(q_lens).check(99, torch.device("cpu")).split(4) == expected


def test_rows_are_counted_with_and_without_padding():
    batch = batch_of([1, 3, 0])
    assert (batch.num_requests, batch.num_tokens, batch.padded_tokens) == (3, 4, 4)
    assert replace(batch, num_padded_tokens=7).padded_tokens == 7


SOUND = [
    {},
    {"num_padded_tokens": 8},
    {"seq_lens_cpu_upper_bound": torch.tensor([1, 3, 0], dtype=INT32)},
    {"block_table": torch.zeros(5, 9, dtype=INT32)[:, :4]},  # more rows, and a stride
    {"block_table": torch.zeros(3, 0, dtype=INT32)},
]


@pytest.mark.parametrize("fields", SOUND)
def test_sound_batches_pass(fields):
    replace(batch_of([1, 3, 0]), **fields).check(8, torch.device("cpu"))


def test_a_batch_without_requests_is_sound():
    batch_of([]).check(1, torch.device("cpu"))


def test_device_values_are_not_looked_at():
    # The device may know better: checking would wait for it.
    batch = replace(batch_of([1, 3]), query_start_loc=torch.tensor([9, -1, 0], dtype=INT32))
    batch.check(8, torch.device("cpu"))


def test_a_block_table_without_blocks_selects_nothing_and_is_flagged():
    bench = workbench()
    batch = bench.batch()
    call = bench.call(batch)
    empty = replace(batch, block_table=batch.block_table[:, :0])
    bench.forward(call, bench.builder.build(empty))
    assert not bench.state.counts.any()
    assert smla.Flag.COUNT_BELOW_FORMULA in bench.state.read_flags()
    bench.state.clear_flags()
    bench.good_step()


def test_a_captured_step_without_requests_writes_nothing():
    bench = workbench()
    batch = bench.batch((), (), padded=9)
    call = bench.call(batch)
    before = call["out"].clone()
    metadata = bench.builder.build(replace(batch, block_table=batch.block_table[:0]))
    with bench.runtime.capture() as graph:
        bench.forward(call, metadata)
    graph.replay()
    assert same_bytes(before, call["out"]) and not bench.state.read_flags()
