"""Pack: each row's slots to where the plan put them, with no negative inside a planned row.

Only as many entries as planned are written. Behind the row's counted entries stands a slot of the
same row, a second line of defence behind the clamp. A row without any gets slot 0: read only where
the count is below what the lengths imply, which convert flags.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from smla.kernels import Kernel
from smla.runtime import Runtime

_CHUNK = 256


@triton.jit
def _pack_triton(slots, counts, kv_indptr, kv_indices, WIDTH: tl.constexpr, CHUNK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    start = tl.load(kv_indptr + row)
    planned = tl.load(kv_indptr + row + 1) - start
    count = tl.load(counts + row)
    filler = tl.maximum(tl.load(slots + row * WIDTH), 0)
    inside = (column < planned) & (column < WIDTH)
    slot = tl.load(slots + row * WIDTH + column, mask=inside & (column < count), other=-1)
    packed = tl.where(column < count, slot, filler)
    tl.store(kv_indices + start.to(tl.int64) + column, packed, mask=inside)


def _pack_torch(
    slots: Tensor, counts: Tensor, kv_indptr: Tensor, kv_indices: Tensor, WIDTH: int, CHUNK: int
) -> None:
    rows = counts.numel()
    planned = kv_indptr[1 : rows + 1] - kv_indptr[:rows]
    column = torch.arange(WIDTH)
    inside = column < planned[:, None]
    filler = slots[:rows, :1].clamp(min=0)
    packed = slots[:rows].where(column < counts[:, None], filler)
    place = kv_indptr[:rows, None] + column
    kv_indices[place[inside].to(torch.int64)] = packed[inside]


PACK = Kernel("pack", _pack_triton, _pack_torch)


def pack(
    runtime: Runtime,
    slots: Tensor,
    counts: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    *,
    rows: int,
) -> None:
    """Write `kv_indices` (flat int32) from `slots` [max_tokens, width] for the first `rows`.

    kv_indptr: int32 [max_tokens + 1], the running sum of planned lengths, flat behind the live
    rows (nothing is written for those).
    """
    width = slots.shape[1]
    grid = (rows, triton.cdiv(width, _CHUNK))
    args = (slots, counts[:rows], kv_indptr, kv_indices)
    runtime.launch(PACK, grid, args, {"WIDTH": width, "CHUNK": _CHUNK})
