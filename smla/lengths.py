"""Row lengths on the host: contexts, valid counts and row bounds, as pure functions.

A *row* is one query token. All functions take and give CPU integer tensors, touch no device and
have no state. The device derives the same numbers on its own (`smla.kernels`), and the convert
kernel counts them a third time; the three must agree.
"""

import torch
from torch import Tensor


def max_valid_count(index_topk: int, index_kpool: int) -> int:
    """Return the largest valid count any context can have: topk + kpool - 1."""
    return index_topk + index_kpool - 1


def valid_counts(contexts: Tensor, index_topk: int, index_kpool: int) -> Tensor:
    """Return how many entries the indexer selects for each context, same shape and dtype.

    Up to `index_topk` everything is selected; beyond, the top `index_topk` tokens (whole pools)
    and the trailing incomplete pool, which is always kept. Not monotone in the context: with
    topk 2048 and kpool 4, context 2051 has 2051 and context 2052 has 2048.
    """
    return torch.where(contexts <= index_topk, contexts, index_topk + contexts % index_kpool)


def row_requests(query_start_loc: Tensor) -> Tensor:
    """Return the request of each row, int64 [rows], from `query_start_loc` [requests + 1]."""
    starts = query_start_loc.to(torch.int64)
    return torch.repeat_interleave(starts[1:] - starts[:-1])


def row_contexts(query_start_loc: Tensor, seq_lens: Tensor) -> Tensor:
    """Return each row's context, int64 [rows].

    The j-th of q_len query tokens of a request sees seq_len - q_len + j + 1 tokens; with the
    row number r = query_start_loc[request] + j that is seq_len - query_start_loc[request + 1]
    + r + 1.
    """
    ends = query_start_loc[1:].to(torch.int64)
    first = seq_lens.to(torch.int64) - ends + 1
    requests = row_requests(query_start_loc)
    return first[requests] + torch.arange(requests.numel())


def row_bounds(
    query_start_loc: Tensor,
    upper_bounds: Tensor,
    *,
    max_valid: int,
    num_decode_requests: int = 0,
    adaptive: bool = False,
) -> Tensor:
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
    return contexts.clamp_(max=max_valid)
