"""Lengths equal what a loop over tokens counts."""

import itertools

import numpy as np
import pytest

from smla import lengths
from smla.tests.workbench import ints

TOPK = 2048
CONTEXTS = [*range(1, 6), *range(2047, 2053), *range(4095, 4101), *range(131327, 131330)]
POOLS = [1, 2, 4, 64]


def selected_by_hand(context: int, topk: int, kpool: int) -> int:
    """Count the tokens: all of them, or the best whole pools and the incomplete one behind."""
    if context <= topk:
        return context
    whole = [range(at, at + kpool) for at in range(0, context - kpool + 1, kpool)]
    best = whole[: topk // kpool]
    behind = range(whole[-1].stop, context)
    return sum(map(len, best)) + len(behind)


@pytest.mark.parametrize("kpool", POOLS)
def test_valid_counts_are_what_the_indexer_selects(kpool):
    contexts = ints(*CONTEXTS)
    got = lengths.valid_counts(contexts, TOPK, kpool)
    expected = [selected_by_hand(context, TOPK, kpool) for context in CONTEXTS]
    assert got.tolist() == expected and got.dtype == np.int32


def test_valid_counts_fall_where_a_pool_is_completed():
    assert lengths.valid_counts(ints(2051, 2052), 2048, 4).tolist() == [2051, 2048]


@pytest.mark.parametrize("kpool", POOLS)
def test_the_largest_valid_count_is_reached_and_never_exceeded(kpool):
    counts = lengths.valid_counts(np.arange(1, TOPK + 300), TOPK, kpool)
    assert int(counts.max()) == lengths.max_valid_count(TOPK, kpool) == TOPK + kpool - 1


BATCHES = [
    ([1], [1]),
    ([1, 3, 2], [7, 2051, 4100]),
    ([0, 2, 0, 0, 1, 0], [0, 131329, 0, 5, 2052, 0]),  # padding requests and empty ones
    ([4, 4], [4, 2050]),
    ([0], [0]),
    ([], []),
]


def starts_of(q_lens):
    """query_start_loc as the host holds it."""
    return ints(0, *itertools.accumulate(q_lens))


def rows_by_hand(q_lens, seq_lens):
    """(request, context) of each row, token by token."""
    rows = []
    for request, (count, length) in enumerate(zip(q_lens, seq_lens, strict=True)):
        for token in range(length - count, length):
            rows.append((request, len(range(token + 1))))
    return rows


@pytest.mark.parametrize(("q_lens", "seq_lens"), BATCHES)
def test_rows_know_their_request_and_context(q_lens, seq_lens):
    starts, ends = starts_of(q_lens), ints(*seq_lens)
    requests = lengths.row_requests(starts).tolist()
    contexts = lengths.row_contexts(starts, ends).tolist()
    assert [*zip(requests, contexts, strict=True)] == rows_by_hand(q_lens, seq_lens)


@pytest.mark.parametrize(("q_lens", "upper"), BATCHES)
@pytest.mark.parametrize("kpool", POOLS)
def test_row_bounds_are_contexts_up_to_the_largest_count(q_lens, upper, kpool):
    max_valid = lengths.max_valid_count(TOPK, kpool)
    bounds = ints(*upper)
    got = lengths.row_bounds(starts_of(q_lens), bounds, max_valid=max_valid)
    assert got.tolist() == [min(c, max_valid) for _, c in rows_by_hand(q_lens, upper)]
    assert bounds.tolist() == upper, "the caller's bounds were changed"


@pytest.mark.parametrize("kpool", POOLS)
@pytest.mark.parametrize("upper", [c for c in CONTEXTS if c >= 4])
def test_row_bounds_hold_for_whatever_number_of_drafts_was_rejected(upper, kpool):
    max_valid = lengths.max_valid_count(TOPK, kpool)
    starts = starts_of([3])
    bounds = lengths.row_bounds(starts, ints(upper), max_valid=max_valid)
    for rejected in range(min(upper - 3, 70) + 1):
        contexts = lengths.row_contexts(starts, ints(upper - rejected))
        valid = lengths.valid_counts(contexts, TOPK, kpool)
        assert bool((valid <= bounds).all()), (
            f"{rejected} drafts of {upper} rejected: valid {valid.tolist()}, "
            f"bounds {bounds.tolist()}"
        )


def test_a_bound_does_not_go_through_the_formula():
    # The formula gives 2048 for the bound's 2052 and 2051 for the true context 2051.
    bounds = lengths.row_bounds(starts_of([1]), ints(2052), max_valid=2051)
    assert bounds.tolist() == [2051]


def test_adaptive_bounds_hold_for_every_way_to_share_out_the_rows():
    host, upper, max_valid = [2, 2, 2, 3], [20, 90, 40, 70], 19 * 5
    bounds = lengths.row_bounds(
        starts_of(host),
        ints(*upper),
        max_valid=max_valid,
        num_decode_requests=3,
        adaptive=True,
    )
    assert bounds.tolist() == [90] * 6 + [68, 69, 70]
    for shares in itertools.product(range(7), repeat=3):
        if sum(shares) == 6:
            contexts = lengths.row_contexts(starts_of([*shares, 3]), ints(*upper))
            assert bool((contexts <= bounds).all()), f"{shares}: {contexts.tolist()}"


def test_adaptive_bounds_stop_at_the_largest_count():
    bounds = lengths.row_bounds(
        starts_of([2]), ints(90), max_valid=19, num_decode_requests=1, adaptive=True
    )
    assert bounds.tolist() == [19, 19]


def test_without_verification_requests_adaptive_changes_nothing():
    for adaptive in (False, True):
        got = lengths.row_bounds(starts_of([2, 1]), ints(9, 4), max_valid=19, adaptive=adaptive)
        assert got.tolist() == [8, 9, 4]
