"""Convert: a row's selected token positions to cache slots, compacted, with -1 behind, counted.

An entry is valid iff it lies in [0, context) and its block is one of the row's block table and of
the cache. The kernel reads entries as integers and dereferences none of them unchecked.

It runs first in a forward, so it also sees to what a replay cannot be refused for: for a plan of
more rows than the forward has it clears the schedule's launch words. The attention kernel then does
nothing, where it would read queries and write outputs behind their tensors. And it looks at the
scales that the attention kernel will apply.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from smla.flags import Flag
from smla.kernels import Kernel
from smla.runtime import Runtime
from smla.schedule import ScheduleLayout

_CHUNK = 4096


@triton.jit(
    do_not_specialize=[
        "topk_stride",
        "table_stride",
        "table_width",
        "num_blocks",
        "block_stride_rows",
    ],
    do_not_specialize_on_alignment=["topk", "block_table", "device_scale", "group_scales"],
)
def _convert_triton(
    topk,
    topk_stride,
    row_request,
    row_context,
    block_table,
    table_stride,
    table_width,
    num_blocks,
    block_stride_rows,
    slots,
    counts,
    live,
    schedule,
    device_scale,
    scale,
    group_scales,
    flags,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TOPK: tl.constexpr,
    KPOOL: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    GROUPS: tl.constexpr,
    BELOW: tl.constexpr,
    ABOVE: tl.constexpr,
    UNCOVERED: tl.constexpr,
    RESCALED: tl.constexpr,
    SLOT_ZERO: tl.constexpr,
    CHUNK: tl.constexpr,
    MERGES_AT: tl.constexpr,
    MERGES: tl.constexpr,
    WORKS_AT: tl.constexpr,
    WORKS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    if row == 0:
        if tl.load(live) > tl.num_programs(0):
            tl.atomic_or(flags, UNCOVERED)
            for first in range(0, MERGES + WORKS, CHUNK):
                word = first + tl.arange(0, CHUNK)
                at = tl.where(word < MERGES, MERGES_AT + word, WORKS_AT + word - MERGES)
                tl.store(schedule + at, 0, mask=word < MERGES + WORKS)
        if HAS_SCALE:  # noqa: SIM102 (decided when compiled: without one nothing is loaded)
            if tl.load(device_scale) != scale:
                tl.atomic_or(flags, RESCALED)
        for group in tl.static_range(GROUPS):
            finite = tl.abs(tl.load(group_scales + group)) < float("inf")
            if finite == 0:
                tl.atomic_or(flags, SLOT_ZERO)
    request = tl.load(row_request + row).to(tl.int64)
    context = tl.load(row_context + row)
    kept = 0
    for first in range(0, WIDTH, CHUNK):
        column = first + tl.arange(0, CHUNK)
        inside = column < WIDTH
        token = tl.load(topk + row * topk_stride + column, mask=inside, other=-1)
        valid = inside & (token >= 0) & (token < context) & (token // BLOCK_SIZE < table_width)
        entry = block_table + request * table_stride + token // BLOCK_SIZE
        block = tl.load(entry, mask=valid, other=-1)
        valid = valid & (block >= 0) & (block < num_blocks)
        slot = block * block_stride_rows + token % BLOCK_SIZE
        one = valid.to(tl.int32)
        place = kept + tl.cumsum(one, 0) - 1
        tl.store(slots + row * WIDTH + place, slot, mask=valid)
        kept += tl.sum(one, 0)
    for first in range(0, WIDTH, CHUNK):
        column = first + tl.arange(0, CHUNK)
        tl.store(slots + row * WIDTH + column, -1, mask=(column >= kept) & (column < WIDTH))
    tl.store(counts + row, kept)
    formula = tl.where(context <= TOPK, context, TOPK + context % KPOOL)
    if kept < formula:
        tl.atomic_or(flags, BELOW)
    if kept > formula:
        tl.atomic_or(flags, ABOVE)


def _convert_torch(
    topk: Tensor,
    topk_stride: int,
    row_request: Tensor,
    row_context: Tensor,
    block_table: Tensor,
    table_stride: int,
    table_width: int,
    num_blocks: int,
    block_stride_rows: int,
    slots: Tensor,
    counts: Tensor,
    live: Tensor,
    schedule: Tensor,
    device_scale: Tensor,
    scale: float,
    group_scales: Tensor,
    flags: Tensor,
    WIDTH: int,
    BLOCK_SIZE: int,
    TOPK: int,
    KPOOL: int,
    HAS_SCALE: bool,
    GROUPS: int,
    BELOW: int,
    ABOVE: int,
    UNCOVERED: int,
    RESCALED: int,
    SLOT_ZERO: int,
    CHUNK: int,
    MERGES_AT: int,
    MERGES: int,
    WORKS_AT: int,
    WORKS: int,
) -> None:
    rows = counts.numel()
    if int(live[0]) > rows:
        flags |= UNCOVERED
        schedule[MERGES_AT : MERGES_AT + MERGES] = 0
        schedule[WORKS_AT : WORKS_AT + WORKS] = 0
    if HAS_SCALE:
        flags |= RESCALED * int(
            device_scale.view(-1)[0] != torch.tensor(scale, dtype=torch.float32)
        )
    if GROUPS:
        flags |= SLOT_ZERO * int(not group_scales.view(-1)[:GROUPS].isfinite().all())
    token = topk[:rows, :WIDTH].to(torch.int64)
    context = row_context[:rows].to(torch.int64)
    block_number = token.div(BLOCK_SIZE, rounding_mode="floor")
    valid = (token >= 0) & (token < context[:, None]) & (block_number < table_width)
    request = row_request[:rows].to(torch.int64)[:, None]
    if not block_table.numel():  # no entry is valid then, and there is nothing to look up in
        block_table, request = block_table.new_full((1, 1), -1), request * 0
    else:  # as from a pointer: a captured table may have more rows by now
        rows_by_now = int(request.max()) + 1 if rows else 1
        block_table = block_table.as_strided((rows_by_now, table_width), (table_stride, 1))
    block = block_table[request, block_number.where(valid, 0)].to(torch.int64)
    valid &= (block >= 0) & (block < num_blocks)
    slot = (block * block_stride_rows + token % BLOCK_SIZE).to(torch.int32)
    order = torch.argsort(~valid, dim=1, stable=True)
    kept = valid.sum(1)
    behind = torch.arange(WIDTH) >= kept[:, None]
    slots[:rows] = slot.gather(1, order).masked_fill(behind, -1)
    counts[:] = kept
    formula = context.where(context <= TOPK, TOPK + context % KPOOL)
    flags |= BELOW * int((kept < formula).any()) | ABOVE * int((kept > formula).any())


CONVERT = Kernel("convert", _convert_triton, _convert_torch, num_warps=8)


def convert(
    runtime: Runtime,
    topk_indices: Tensor,
    row_request: Tensor,
    row_context: Tensor,
    block_table: Tensor,
    slots: Tensor,
    counts: Tensor,
    live: Tensor,
    schedule: Tensor,
    flags: Tensor,
    *,
    layout: ScheduleLayout,
    rows: int,
    num_blocks: int,
    block_size: int,
    block_stride_rows: int,
    index_topk: int,
    index_kpool: int,
    scale: float = 1.0,
    device_scale: Tensor | None = None,
    group_scales: Tensor | None = None,
) -> None:
    """Fill `slots` [rows, width] and `counts` [rows] from the first `rows` of `topk_indices`.

    All tensors are int32 on the device; topk_indices [>= rows, width], block_table
    [requests, blocks per request], slots [max_tokens, width], counts [max_tokens], live [1]: how
    many rows the newest plan has, flags [1]. schedule: what the attention kernel behind will run,
    laid out as `layout`; it is stopped where `live` exceeds `rows`, until the next clamp.
    device_scale: float32 [1] on the device, the cache's scale as it stands there when this runs;
    one that differs from `scale` (as float32) is flagged.
    group_scales: float32 [cache rows, groups], the cache's; what is not finite in its first row is
    flagged.
    """
    args = (
        topk_indices,
        topk_indices.stride(0),
        row_request,
        row_context,
        block_table,
        block_table.stride(0),
        block_table.shape[1],
        num_blocks,
        block_stride_rows,
        slots,
        counts[:rows],
        live,
        schedule,
        live if device_scale is None else device_scale,
        scale,
        live if group_scales is None else group_scales,
        flags,
    )
    meta = {
        "WIDTH": slots.shape[1],
        "BLOCK_SIZE": block_size,
        "TOPK": index_topk,
        "KPOOL": index_kpool,
        "HAS_SCALE": device_scale is not None,
        "GROUPS": 0 if group_scales is None else group_scales.shape[1],
        "BELOW": int(Flag.COUNT_BELOW_FORMULA),
        "ABOVE": int(Flag.COUNT_ABOVE_FORMULA),
        "UNCOVERED": int(Flag.ROWS_BEYOND_FORWARD),
        "RESCALED": int(Flag.SCALE_CHANGED),
        "SLOT_ZERO": int(Flag.SLOT_ZERO_SCALE),
        "CHUNK": min(_CHUNK, triton.next_power_of_2(slots.shape[1])),
        **layout.launch_meta,
    }
    runtime.launch(CONVERT, (rows,), args, meta)
