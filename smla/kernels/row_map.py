"""Row map: which request a row belongs to and how many tokens it sees, from device lengths alone.

Rows behind the last live one get request 0, context 0 and no room among the packed indices, so
that nothing is selected or packed for them.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from smla.kernels import Kernel
from smla.runtime import Runtime

_BLOCK = 256


@triton.jit(
    do_not_specialize=["num_requests", "search_steps", "live_rows", "num_rows"],
    do_not_specialize_on_alignment=["query_start_loc", "seq_lens"],
)
def _row_map_triton(
    query_start_loc,
    seq_lens,
    num_requests,
    search_steps,
    row_request,
    row_context,
    kv_indptr,
    live,
    live_rows,
    num_rows,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < num_rows
    # The row's request is the first whose end lies behind the row: requests without query tokens
    # end where they start and are passed over, and a row behind the last live one finds none.
    low = tl.zeros([BLOCK], dtype=tl.int32)
    high = tl.zeros([BLOCK], dtype=tl.int32) + num_requests
    for _ in range(search_steps):
        open_ = low < high
        middle = (low + high) // 2
        end = tl.load(query_start_loc + middle + 1, mask=open_, other=0)
        low = tl.where(open_ & (end <= row), middle + 1, low)
        high = tl.where(open_ & (end > row), middle, high)
    found = inside & (row < live_rows) & (low < num_requests)
    length = tl.load(seq_lens + low, mask=found, other=0)
    end = tl.load(query_start_loc + low + 1, mask=found, other=0)
    context = tl.maximum(length - end + row + 1, 0)
    tl.store(row_request + row, tl.where(found, low, 0), mask=inside)
    tl.store(row_context + row, tl.where(found, context, 0), mask=inside)
    packed = tl.load(kv_indptr + live_rows)
    tl.store(kv_indptr + row + 1, packed, mask=inside & (row >= live_rows))
    if tl.program_id(0) == 0:
        tl.store(live, live_rows)


def _row_map_torch(
    query_start_loc: Tensor,
    seq_lens: Tensor,
    num_requests: int,
    search_steps: int,
    row_request: Tensor,
    row_context: Tensor,
    kv_indptr: Tensor,
    live: Tensor,
    live_rows: int,
    num_rows: int,
    BLOCK: int,
) -> None:
    kv_indptr[live_rows + 1 : num_rows + 1] = kv_indptr[live_rows]
    live[:] = live_rows
    row_request[:num_rows] = 0
    row_context[:num_rows] = 0
    known = min(int(query_start_loc[num_requests]), live_rows)
    if num_requests == 0 or known <= 0:
        return
    rows = torch.arange(known, dtype=torch.int32)
    ends = query_start_loc[1 : num_requests + 1]
    request = torch.searchsorted(ends.contiguous(), rows, right=True)
    row_request[:known] = request.to(torch.int32)
    row_context[:known] = (seq_lens[request] - ends[request] + rows + 1).clamp(min=0)


ROW_MAP = Kernel("row_map", _row_map_triton, _row_map_torch)


def row_map(
    runtime: Runtime,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    row_request: Tensor,
    row_context: Tensor,
    kv_indptr: Tensor,
    live: Tensor,
    *,
    live_rows: int,
) -> None:
    """Fill `row_request` and `row_context` (both int32 [max_tokens]) on the device.

    query_start_loc: int32 [requests + 1]; seq_lens: int32 [requests]; both on the device.
    kv_indptr: int32 [max_tokens + 1], right up to entry live_rows; made flat behind it.
    live: int32 [1], set to live_rows. live_rows: rows that will be computed; the others see
    nothing, prefills that are left to dense attention among them.
    """
    num_requests, num_rows = seq_lens.numel(), row_request.numel()
    args = (
        query_start_loc,
        seq_lens,
        num_requests,
        num_requests.bit_length(),
        row_request,
        row_context,
        kv_indptr,
        live,
        live_rows,
        num_rows,
    )
    runtime.launch(ROW_MAP, (triton.cdiv(num_rows, _BLOCK),), args, {"BLOCK": _BLOCK})
