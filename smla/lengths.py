"""Row lengths on the host: contexts, valid counts and row bounds, as pure functions.

A *row* is one query token. All functions take and give numpy integer arrays, touch no device and
have no state. The device derives the same numbers on its own (`smla.kernels`), and the convert
kernel counts them a third time; the three must agree.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.integer[Any]]


def max_valid_count(index_topk: int, index_kpool: int) -> int:
    """Return the largest valid count any context can have: topk + kpool - 1."""
    return index_topk + index_kpool - 1


def valid_counts(contexts: Ints, index_topk: int, index_kpool: int) -> Ints:
    """Return how many entries the indexer selects for each context, same shape and dtype.

    Up to `index_topk` everything is selected; beyond, the top `index_topk` tokens (whole pools)
    and the trailing incomplete pool, which is always kept. Not monotone in the context: with
    topk 2048 and kpool 4, context 2051 has 2051 and context 2052 has 2048.
    """
    return np.where(contexts <= index_topk, contexts, index_topk + contexts % index_kpool)


def row_requests(query_start_loc: Ints) -> Ints:
    """Return the request of each row, int64 [rows], from `query_start_loc` [requests + 1]."""
    q_lens = query_start_loc[1:] - query_start_loc[:-1]
    return np.repeat(np.arange(q_lens.size), q_lens)


def row_contexts(query_start_loc: Ints, seq_lens: Ints) -> Ints:
    """Return each row's context, int64 [rows].

    The j-th of q_len query tokens of a request sees seq_len - q_len + j + 1 tokens; with the
    row number r = query_start_loc[request] + j that is seq_len - query_start_loc[request + 1]
    + r + 1.
    """
    if query_start_loc[-1] == seq_lens.size and (query_start_loc[1:] > query_start_loc[:-1]).all():
        return seq_lens.astype(np.int64)  # one query token per request, as in most steps
    ends = query_start_loc[1:].astype(np.int64)
    contexts = np.repeat(seq_lens - ends + 1, ends - query_start_loc[:-1])
    contexts += np.arange(contexts.size)
    return contexts


def row_bounds(
    query_start_loc: Ints,
    upper_bounds: Ints,
    *,
    max_valid: int,
    num_decode_requests: int = 0,
    adaptive: bool = False,
) -> Ints:
    """Return an upper bound of each row's valid count, int64 [rows].

    `upper_bounds` [requests] is at least each request's length: exact for prefills, optimistic
    for decodes whose drafts may be rejected. A bound is min(context from the bound, max_valid)
    and never the valid-count formula of it: the formula is not monotone, so a shorter context
    can have the larger count.

    adaptive: the device redistributes the draft budget over the verification requests, which are
    the first `num_decode_requests`, so the host does not know which of their rows belongs to
    whom; each of them is bounded by the longest of these requests.
    """
    contexts = row_contexts(query_start_loc, upper_bounds)
    if adaptive and num_decode_requests > 0:
        shared_rows = int(query_start_loc[num_decode_requests])
        contexts[:shared_rows] = upper_bounds[:num_decode_requests].max()
    return np.minimum(contexts, max_valid)
