"""Write: new tokens' BF16 values into an FP8 cache, under one scale or under group scales.

A value is divided by its scale in float32, exactly rounded, then rounded once more to E4M3: ties to
even, beyond 448 to 448. Every NaN becomes code 0x7f. The rounding to E4M3 is done with integers:
Triton's interpreter rounds ties and carries otherwise than a GPU where it converts by itself, and
what cannot be tested without a GPU is not used here.

A slot outside of the cache, negative ones among them (padding), writes nothing.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from smla.kernels import Kernel
from smla.runtime import Runtime
from smla.scale import GROUP

_UNIT = 8
"""Elements of a 16-byte load; inputs are aligned to it, and their row strides multiples of it."""

_ROW_UNIT = 16
"""Bytes that the cache's rows, padded or not, are a multiple of."""

_LARGEST_CODE = 448.0
_LEAST_SCALE = 2.0**-126
"""The smallest normal float32. FlashInfer is compiled with -use_fast_math, which takes smaller ones
for zero."""


@triton.jit
def _float32(value):
    """BF16 values as float32, exactly; the interpreter's own conversion loses subnormal ones."""
    return (value.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)


@triton.jit
def _e4m3(value):
    """E4M3 codes (uint8) of float32 values."""
    bits = value.to(tl.int32, bitcast=True)
    size = tl.minimum(tl.abs(value), 448.0)
    # From 2**-6 on: the 20 bits that E4M3 lacks are rounded off, and the exponent's bias is 7.
    cut = size.to(tl.int32, bitcast=True)
    normal = ((cut + 0x7FFFF + ((cut >> 20) & 1)) >> 20) - 960
    # Below: multiples of 2**-9, which is what float32 rounds to next to 2**14.
    small = (size + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    code = tl.where(size < 0.015625, small, normal) | ((bits >> 24) & 0x80)
    return tl.where(value == value, code, 0x7F).to(tl.uint8)


@triton.jit
def _row(slot_mapping, token, num_blocks, block_stride_rows, BLOCK_SIZE: tl.constexpr):
    """The cache row of a token, -1 where there is none."""
    slot = tl.load(slot_mapping + token)
    block = slot // BLOCK_SIZE
    inside = (slot >= 0) & (block < num_blocks)
    return tl.where(inside, block * block_stride_rows + slot % BLOCK_SIZE, -1)


@triton.jit
def _write_part(
    values, token, units, cache, row, row_units, scale,
    FIRST: tl.constexpr, DIM: tl.constexpr, UNIT: tl.constexpr, ROW_UNIT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Write DIM codes of one token, from column FIRST of the cache row on, under one scale."""
    channel = tl.arange(0, BLOCK)
    inside = channel < DIM
    value = tl.load(values + token * units * UNIT + channel, mask=inside, other=0)
    code = _e4m3(tl.div_rn(_float32(value), scale))
    tl.store(cache + row * row_units * ROW_UNIT + FIRST + channel, code, mask=inside)


@triton.jit(
    do_not_specialize=["ckv_units", "kpe_units", "row_units", "num_blocks", "block_stride_rows"],
    do_not_specialize_on_alignment=["slot_mapping"],
)
def _write_per_tensor_triton(
    ckv, ckv_units, kpe, kpe_units, cache, row_units, slot_mapping, num_blocks, block_stride_rows,
    scale,
    CKV: tl.constexpr, KPE: tl.constexpr, BLOCK_SIZE: tl.constexpr, UNIT: tl.constexpr,
    ROW_UNIT: tl.constexpr,
    CKV_BLOCK: tl.constexpr, KPE_BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    row = _row(slot_mapping, token, num_blocks, block_stride_rows, BLOCK_SIZE)
    if row >= 0:
        _write_part(
            ckv, token, ckv_units, cache, row, row_units, scale, 0, CKV, UNIT, ROW_UNIT, CKV_BLOCK
        )
        if KPE:
            _write_part(
                kpe, token, kpe_units, cache, row, row_units, scale, CKV, KPE, UNIT, ROW_UNIT,
                KPE_BLOCK,
            )  # fmt: skip


@triton.jit(
    do_not_specialize=["ckv_units", "kpe_units", "row_units", "num_blocks", "block_stride_rows"],
    do_not_specialize_on_alignment=["slot_mapping", "scales"],
)
def _write_per_group_triton(
    ckv, ckv_units, kpe, kpe_units, cache, row_units, scales, slot_mapping, num_blocks,
    block_stride_rows, scale,
    CKV: tl.constexpr, KPE: tl.constexpr, BLOCK_SIZE: tl.constexpr, UNIT: tl.constexpr,
    ROW_UNIT: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr, GROUPS_BLOCK: tl.constexpr,
    KPE_BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    row = _row(slot_mapping, token, num_blocks, block_stride_rows, BLOCK_SIZE)
    if row >= 0:
        group = tl.arange(0, GROUPS_BLOCK)
        channel = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        inside = channel < CKV
        value = _float32(tl.load(ckv + token * ckv_units * UNIT + channel, mask=inside, other=0))
        size = tl.abs(value)
        largest = tl.max(tl.where(size < float("inf"), size, 0.0), 1)
        of_group = tl.maximum(tl.div_rn(largest, 448.0), 1.1754943508222875e-38)
        of_group = tl.where(largest > 0, of_group, 1.0)
        tl.store(scales + row * GROUPS + group, of_group, mask=group < GROUPS)
        divisor = of_group[:, None] + tl.zeros([GROUPS_BLOCK, GROUP], dtype=tl.float32)
        code = _e4m3(tl.div_rn(value, divisor))
        tl.store(cache + row * row_units * ROW_UNIT + channel, code, mask=inside)
        if KPE:
            _write_part(
                kpe, token, kpe_units, cache, row, row_units, scale, CKV, KPE, UNIT, ROW_UNIT,
                KPE_BLOCK,
            )  # fmt: skip


def _codes(values: Tensor, scale: Tensor) -> Tensor:
    """E4M3 codes (uint8) of BF16 values over a float32 scale that broadcasts to them."""
    quotient = values.float() / scale
    rounded = quotient.clamp(-_LARGEST_CODE, _LARGEST_CODE).to(torch.float8_e4m3fn)
    return rounded.view(torch.uint8).masked_fill(quotient.isnan(), 0x7F)


def _kept(slot_mapping: Tensor, num_blocks: int, BLOCK_SIZE: int) -> tuple[Tensor, Tensor, Tensor]:
    """Which tokens have a place in the cache, their blocks, and their offsets in those."""
    kept = (slot_mapping >= 0) & (slot_mapping < num_blocks * BLOCK_SIZE)
    slot = slot_mapping[kept]
    return kept, slot // BLOCK_SIZE, slot % BLOCK_SIZE


def _write_per_tensor_torch(
    ckv: Tensor,
    ckv_units: int,
    kpe: Tensor,
    kpe_units: int,
    cache: Tensor,
    row_units: int,
    slot_mapping: Tensor,
    num_blocks: int,
    block_stride_rows: int,
    scale: float,
    CKV: int,
    KPE: int,
    BLOCK_SIZE: int,
    UNIT: int,
    ROW_UNIT: int,
    CKV_BLOCK: int,
    KPE_BLOCK: int,
) -> None:
    kept, block, offset = _kept(slot_mapping, num_blocks, BLOCK_SIZE)
    divisor = torch.tensor(scale, dtype=torch.float32)
    cache[block, offset, :CKV] = _codes(ckv[kept], divisor)
    if KPE:
        cache[block, offset, CKV:] = _codes(kpe[kept], divisor)


def _write_per_group_torch(
    ckv: Tensor,
    ckv_units: int,
    kpe: Tensor,
    kpe_units: int,
    cache: Tensor,
    row_units: int,
    scales: Tensor,
    slot_mapping: Tensor,
    num_blocks: int,
    block_stride_rows: int,
    scale: float,
    CKV: int,
    KPE: int,
    BLOCK_SIZE: int,
    UNIT: int,
    ROW_UNIT: int,
    GROUP: int,
    GROUPS: int,
    GROUPS_BLOCK: int,
    KPE_BLOCK: int,
) -> None:
    kept, block, offset = _kept(slot_mapping, num_blocks, BLOCK_SIZE)
    groups = ckv[kept].unflatten(1, (GROUPS, GROUP))
    size = groups.float().abs()
    largest = size.where(size.isfinite(), 0.0).amax(-1)
    of_group = (largest / _LARGEST_CODE).clamp(min=_LEAST_SCALE).where(largest > 0, 1.0)
    scales[block * block_stride_rows + offset] = of_group
    cache[block, offset, :CKV] = _codes(groups, of_group[..., None]).flatten(1)
    if KPE:
        cache[block, offset, CKV:] = _codes(kpe[kept], torch.tensor(scale, dtype=torch.float32))


WRITE_PER_TENSOR = Kernel("write_per_tensor", _write_per_tensor_triton, _write_per_tensor_torch)
WRITE_PER_GROUP = Kernel("write_per_group", _write_per_group_triton, _write_per_group_torch)


def write_rows(
    runtime: Runtime,
    ckv: Tensor,
    kpe: Tensor,
    cache: Tensor,
    scales: Tensor | None,
    slot_mapping: Tensor,
    *,
    block_stride_rows: int,
    scale: float,
) -> None:
    """Write the rows of `cache` that `slot_mapping` names, and of `scales` where there are any.

    As `smla.cache_write` has checked them: ckv [tokens, dim] and kpe [tokens, dim] BF16, cache
    uint8 [blocks, block size, both dims], scales float32 [rows, groups], slot_mapping int64
    [tokens].
    scale: of all where there are no scales, else of the rope part.
    """
    width, rope = ckv.shape[1], kpe.shape[1]
    meta = {"CKV": width, "KPE": rope, "BLOCK_SIZE": cache.shape[1]}
    meta |= {"UNIT": _UNIT, "ROW_UNIT": _ROW_UNIT}
    of_rope = {"KPE_BLOCK": triton.next_power_of_2(max(rope, 1))}
    grid = (slot_mapping.numel(),)
    if not rope:
        kpe = ckv  # an empty tensor has no address; nothing is read of it
    rows = (cache, cache.stride(1) // _ROW_UNIT)
    values = (ckv, ckv.stride(0) // _UNIT, kpe, kpe.stride(0) // _UNIT, *rows)
    paging = (slot_mapping, cache.shape[0], block_stride_rows, scale)
    if scales is None:
        meta |= {"CKV_BLOCK": triton.next_power_of_2(width), **of_rope}
        runtime.launch(WRITE_PER_TENSOR, grid, (*values, *paging), meta)
    else:
        groups = width // GROUP
        meta |= {"GROUP": GROUP, "GROUPS": groups}
        meta |= {"GROUPS_BLOCK": triton.next_power_of_2(groups), **of_rope}
        runtime.launch(WRITE_PER_GROUP, grid, (*values, scales, *paging), meta)
