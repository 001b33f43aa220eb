"""DS-MLA: rows of vLLM's fp8_ds_mla cache to BF16 rows, in blocks of any stride on both sides.

A value is its code times its group's scale in float32, rounded to BF16: what FlashInfer's kernel
makes of group-scaled codes. Codes that are NaN, and scales that are not finite, go where this
arithmetic takes them. The rope part is BF16 already and is copied bit for bit.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from smla.kernels import Kernel
from smla.runtime import Runtime

CKV, GROUP, KPE = 512, 128, 64
"""Codes of a row, codes of one scale, and rope values. No other widths exist."""

SCALES_AT, ROPE_AT, ROW_BYTES = 512, 528, 656
"""Bytes from a row's start to its scales, its rope part, and its end."""

UNIT = 16
"""Bytes that addresses and strides are multiples of: strides then fit into 32 bits."""

_ROWS = 8


@triton.jit(
    do_not_specialize=["count", "slots_end", "from_row", "from_block", "to_row", "to_block"],
    do_not_specialize_on_alignment=["slot_mapping"],  # the caches' addresses are checked
)
def _ds_mla_triton(
    codes,
    scales,
    rope,
    target,
    slot_mapping,
    count,
    slots_end,
    from_row,
    from_block,
    to_row,
    to_block,
    BLOCK_SIZE: tl.constexpr,
    HAS_SLOTS: tl.constexpr,
    CKV: tl.constexpr,
    GROUP: tl.constexpr,
    KPE: tl.constexpr,
    SCALES_AT: tl.constexpr,
    ROPE_AT: tl.constexpr,
    UNIT: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    listed = row < count
    if HAS_SLOTS:
        slot = tl.load(slot_mapping + row, mask=listed, other=-1)
    else:
        slot = tl.where(listed, row, -1)
    wanted = ((slot >= 0) & (slot < slots_end))[:, None]
    block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    here = ((block * from_block + offset * from_row) * UNIT)[:, None]
    there = ((block * to_block + offset * to_row) * (UNIT // 2))[:, None]
    channel = tl.arange(0, CKV)[None, :]
    code = tl.load(codes + here + channel, mask=wanted, other=0.0)
    group = (here + SCALES_AT) // 4 + channel // GROUP
    scale = tl.load(scales + group, mask=wanted, other=0.0)
    value = (code.to(tl.float32) * scale).to(tl.bfloat16)
    tl.store(target + there + channel, value, mask=wanted)
    channel = tl.arange(0, KPE)[None, :]
    copied = tl.load(rope + (here + ROPE_AT) // 2 + channel, mask=wanted, other=0.0)
    tl.store(target + there + CKV + channel, copied, mask=wanted)


def _ds_mla_torch(
    codes: Tensor,
    scales: Tensor,
    rope: Tensor,
    target: Tensor,
    slot_mapping: Tensor,
    count: int,
    slots_end: int,
    from_row: int,
    from_block: int,
    to_row: int,
    to_block: int,
    BLOCK_SIZE: int,
    HAS_SLOTS: bool,
    CKV: int,
    GROUP: int,
    KPE: int,
    SCALES_AT: int,
    ROPE_AT: int,
    UNIT: int,
    ROWS: int,
) -> None:
    for first in range(0, count, _TWIN_ROWS):
        last = min(first + _TWIN_ROWS, count)
        slot = slot_mapping[first:last] if HAS_SLOTS else torch.arange(first, last)
        slot = slot[(slot >= 0) & (slot < slots_end)]
        where = (slot // BLOCK_SIZE, slot % BLOCK_SIZE)
        code = codes[where][:, :CKV].float().unflatten(1, (-1, GROUP))
        scale = scales[where][:, SCALES_AT // 4 : ROPE_AT // 4, None]
        value = (code * scale).flatten(1).bfloat16()
        target[where] = torch.cat([value, rope[where][:, ROPE_AT // 2 :]], 1)


_TWIN_ROWS = 4096

DS_MLA = Kernel("ds_mla", _ds_mla_triton, _ds_mla_torch)


def from_ds_mla(
    runtime: Runtime, source: Tensor, target: Tensor, slot_mapping: Tensor | None
) -> None:
    """Write the rows of `source` at `slot_mapping` (all where None) to the same slots of `target`.

    source: uint8 [blocks, block size, 656]; target: BF16 [blocks, block size, 576]; int64
    [tokens] of slots block * block size + offset, those outside of the cache select nothing.
    Addresses and strides on both sides are multiples of UNIT bytes.
    """
    blocks, block_size, _ = source.shape
    slots_end = blocks * block_size
    count = slots_end if slot_mapping is None else slot_mapping.numel()
    scales = source.view(torch.float32)
    args = (
        source.view(torch.float8_e4m3fn),
        scales,
        source.view(torch.bfloat16),
        target,
        scales if slot_mapping is None else slot_mapping,
        count,
        slots_end,
        *(source.stride(axis) // UNIT for axis in (1, 0)),
        *(target.stride(axis) * 2 // UNIT for axis in (1, 0)),
    )
    meta = {
        "BLOCK_SIZE": block_size,
        "HAS_SLOTS": slot_mapping is not None,
        "CKV": CKV,
        "GROUP": GROUP,
        "KPE": KPE,
        "SCALES_AT": SCALES_AT,
        "ROPE_AT": ROPE_AT,
        "UNIT": UNIT,
        "ROWS": _ROWS,
    }
    runtime.launch(DS_MLA, (triton.cdiv(count, _ROWS),), args, meta)
