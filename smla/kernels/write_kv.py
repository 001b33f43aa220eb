"""Write: new tokens' BF16 values into an FP8 cache, under one scale or under group scales.

A value is divided by its scale in float32, exactly rounded, then rounded once more to E4M3: ties to
even, beyond 448 to 448. Every NaN becomes code 0x7f.

A GPU has an instruction for the second step, and for the first a multiplication by the inverse with
one correction: `_quotient`. Triton's interpreter rounds ties and carries to E4M3 otherwise; there
the second is done with integers. From Triton 3.9 on it rounds a fused multiplication and addition
once; before that the first is a division there.

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

_TOKENS = 4
"""Tokens of a program, one scale for all."""

_TOKENS_OF_GROUPS, _TOKENS_OF_ROPE = 2, 16
"""Tokens of a program that writes compressed parts under group scales, and of one that writes rope
parts. These programs have one warp: no group then waits for those of another warp."""


def _rounds_once() -> bool:
    """Whether a fused multiplication and addition rounds once where these kernels run."""
    if not triton.knobs.runtime.interpret:
        return True
    try:
        from triton._C.libtriton import interpreter
    except ImportError:
        return False
    return hasattr(interpreter, "fma_fp32")


_INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
_FUSED = tl.constexpr(_rounds_once())


@triton.jit
def _bits(value):
    """The bits of BF16 values, as int32."""
    return value.to(tl.int16, bitcast=True).to(tl.int32)


@triton.jit
def _float32(bits):
    """BF16 values as float32, exactly; the interpreter's own conversion loses subnormal ones."""
    return (bits << 16).to(tl.float32, bitcast=True)


@triton.jit
def _quotient(value, scale, inverse, FINITE: tl.constexpr):
    """value / scale in float32, exactly rounded; `inverse` is 1 / scale, exactly rounded.

    value: BF16 numbers. scale: within 2**-60 and 2**60. Values below 2**-90 may give a last bit
    that is off: their quotients are far below what E4M3 tells from 0. FINITE: no value is infinite
    or NaN, and no quotient beyond float32.

    The product is at most one step off, the remainder is exact, and so is the sum of both: for
    all 2**30 pairs of significands the quotient was compared with a division, on an H200. A zero
    keeps its sign, as the remainder is taken from the product and not from the value.
    """
    if not _FUSED:
        return tl.div_rn(value, scale)
    near = value * inverse
    exact = tl.fma(tl.fma(near, scale, -value), -inverse, near)
    return exact if FINITE else tl.where(tl.abs(near) < float("inf"), exact, near)


@triton.jit
def _e4m3(value):
    """E4M3 codes (uint8) of float32 values."""
    if not _INTERPRETED:
        return value.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
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
def _rows(slot_mapping, token, tokens, num_blocks, block_stride_rows, BLOCK_SIZE: tl.constexpr):
    """The cache rows of tokens, and which of them have one."""
    slot = tl.load(slot_mapping + token, mask=token < tokens, other=-1)
    placed = (slot >= 0) & (slot < num_blocks.to(tl.int64) * BLOCK_SIZE)
    slot = tl.where(placed, slot, 0).to(tl.int32)  # a cache has at most 2**31 slots
    return (slot // BLOCK_SIZE).to(tl.int64) * block_stride_rows + slot % BLOCK_SIZE, placed


@triton.jit
def _write_part(
    values, first, tokens, units, cache, row_units, slot_mapping, num_blocks, block_stride_rows,
    scale,
    FIRST: tl.constexpr, DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, UNIT: tl.constexpr,
    ROW_UNIT: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write DIM codes of TOKENS tokens, from column FIRST of the cache rows on, under one scale."""
    token = first + tl.arange(0, TOKENS)
    channel = tl.arange(0, BLOCK)
    inside = (token < tokens)[:, None] & (channel < DIM)[None, :]
    from_ = (token * units * UNIT)[:, None] + channel[None, :]
    value = _float32(_bits(tl.load(values + from_, mask=inside, other=0)))
    row, placed = _rows(
        slot_mapping, token, tokens, num_blocks, block_stride_rows, BLOCK_SIZE
    )  # fmt: skip
    into = cache + (row * row_units * ROW_UNIT + FIRST)[:, None] + channel[None, :]
    inside = inside & placed[:, None]
    divisor = tl.full(value.shape, scale, tl.float32)
    inverse = tl.div_rn(tl.full(value.shape, 1.0, tl.float32), divisor)
    tl.store(into, _e4m3(_quotient(value, divisor, inverse, False)), mask=inside)


@triton.jit(
    do_not_specialize=[
        "tokens", "ckv_units", "kpe_units", "row_units", "num_blocks", "block_stride_rows"
    ],
    do_not_specialize_on_alignment=["slot_mapping"],
)  # fmt: skip
def _write_per_tensor_triton(
    ckv, ckv_units, kpe, kpe_units, cache, row_units, slot_mapping, tokens, num_blocks,
    block_stride_rows, scale,
    CKV: tl.constexpr, KPE: tl.constexpr, BLOCK_SIZE: tl.constexpr, UNIT: tl.constexpr,
    ROW_UNIT: tl.constexpr, TOKENS: tl.constexpr, CKV_BLOCK: tl.constexpr, KPE_BLOCK: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0).to(tl.int64) * TOKENS
    _write_part(
        ckv, first, tokens, ckv_units, cache, row_units, slot_mapping, num_blocks,
        block_stride_rows, scale, 0, CKV, BLOCK_SIZE, UNIT, ROW_UNIT, TOKENS, CKV_BLOCK,
    )  # fmt: skip
    if KPE:
        _write_part(
            kpe, first, tokens, kpe_units, cache, row_units, slot_mapping, num_blocks,
            block_stride_rows, scale, CKV, KPE, BLOCK_SIZE, UNIT, ROW_UNIT, TOKENS, KPE_BLOCK,
        )  # fmt: skip


@triton.jit(
    do_not_specialize=[
        "tokens", "ckv_units", "kpe_units", "row_units", "num_blocks", "block_stride_rows"
    ],
    do_not_specialize_on_alignment=["slot_mapping", "scales"],
)  # fmt: skip
def _write_per_group_triton(
    ckv, ckv_units, kpe, kpe_units, cache, row_units, scales, slot_mapping, tokens, num_blocks,
    block_stride_rows, scale,
    CKV: tl.constexpr, KPE: tl.constexpr, BLOCK_SIZE: tl.constexpr, UNIT: tl.constexpr,
    ROW_UNIT: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr, GROUPS_BLOCK: tl.constexpr,
    TOKENS: tl.constexpr, ROPE_TOKENS: tl.constexpr, KPE_BLOCK: tl.constexpr,
):  # fmt: skip
    """The programs in front write rope parts, if any; those behind them a line for each group."""
    program = tl.program_id(0).to(tl.int64)
    ropes = tl.cdiv(tokens, ROPE_TOKENS) if KPE else 0
    if program < ropes:
        _write_part(
            kpe, program * ROPE_TOKENS, tokens, kpe_units, cache, row_units, slot_mapping,
            num_blocks, block_stride_rows, scale, CKV, KPE, BLOCK_SIZE, UNIT, ROW_UNIT,
            ROPE_TOKENS, KPE_BLOCK,
        )  # fmt: skip
    else:
        line = tl.arange(0, TOKENS * GROUPS_BLOCK)
        token, group = (program - ropes) * TOKENS + line // GROUPS_BLOCK, line % GROUPS_BLOCK
        channel = tl.arange(0, GROUP)
        inside = (token < tokens) & (group < GROUPS)
        from_ = (token * ckv_units * UNIT + group * GROUP)[:, None] + channel[None, :]
        bits = _bits(tl.load(ckv + from_, mask=inside[:, None], other=0))
        row, placed = _rows(
            slot_mapping, token, tokens, num_blocks, block_stride_rows, BLOCK_SIZE
        )  # fmt: skip
        inside = inside & placed
        into = cache + (row * row_units * ROW_UNIT + group * GROUP)[:, None] + channel[None, :]
        value = _float32(bits)
        # Numbers alone in every line, the largest 0 or within 2**-50 and 2**60: the common case.
        most = tl.where(inside, tl.max(bits & 0x7FFF, 1), 0)
        common = (most == 0) | ((most >= 0x2680) & (most < 0x5D80))
        if tl.min(common.to(tl.int32), 0) != 0:
            largest = _float32(most)
            of_448 = tl.full(largest.shape, 448.0, tl.float32)
            by_448 = tl.full(largest.shape, 0.002232142857142857, tl.float32)
            of_group = _quotient(largest, of_448, by_448, True)
            of_group = tl.where(most > 0, of_group, 1.0)
            inverse = tl.div_rn(tl.full(largest.shape, 1.0, tl.float32), of_group)
            quotient = _quotient(
                value,
                tl.broadcast_to(of_group[:, None], value.shape),
                tl.broadcast_to(inverse[:, None], value.shape),
                True,
            )
        else:
            size = tl.abs(value)
            largest = tl.max(tl.where(size < float("inf"), size, 0.0), 1)
            of_group = tl.div_rn(largest, tl.full(largest.shape, 448.0, tl.float32))
            of_group = tl.maximum(of_group, 1.1754943508222875e-38)
            of_group = tl.where(largest > 0, of_group, 1.0)
            quotient = tl.div_rn(value, tl.broadcast_to(of_group[:, None], value.shape))
        tl.store(scales + row * GROUPS + group, of_group, mask=inside)
        tl.store(into, _e4m3(quotient), mask=inside[:, None])


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
    tokens: int,
    num_blocks: int,
    block_stride_rows: int,
    scale: float,
    CKV: int,
    KPE: int,
    BLOCK_SIZE: int,
    UNIT: int,
    ROW_UNIT: int,
    TOKENS: int,
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
    tokens: int,
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
    TOKENS: int,
    ROPE_TOKENS: int,
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
WRITE_PER_GROUP = Kernel(
    "write_per_group", _write_per_group_triton, _write_per_group_torch, num_warps=1
)


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
    width, rope, tokens = ckv.shape[1], kpe.shape[1], slot_mapping.numel()
    meta = {"CKV": width, "KPE": rope, "BLOCK_SIZE": cache.shape[1]}
    meta |= {"UNIT": _UNIT, "ROW_UNIT": _ROW_UNIT}
    of_rope = {"KPE_BLOCK": triton.next_power_of_2(max(rope, 1))}
    if not rope:
        kpe = ckv  # an empty tensor has no address; nothing is read of it
    rows = (cache, cache.stride(1) // _ROW_UNIT)
    values = (ckv, ckv.stride(0) // _UNIT, kpe, kpe.stride(0) // _UNIT, *rows)
    paging = (slot_mapping, tokens, cache.shape[0], block_stride_rows, scale)
    if scales is None:
        meta |= {"TOKENS": _TOKENS, "CKV_BLOCK": triton.next_power_of_2(width), **of_rope}
        grid = (triton.cdiv(tokens, _TOKENS),)
        runtime.launch(WRITE_PER_TENSOR, grid, (*values, *paging), meta)
    else:
        groups = width // GROUP
        meta |= {"GROUP": GROUP, "GROUPS": groups}
        meta |= {"GROUPS_BLOCK": triton.next_power_of_2(groups)}
        meta |= {"TOKENS": _TOKENS_OF_GROUPS, "ROPE_TOKENS": _TOKENS_OF_ROPE, **of_rope}
        ropes = triton.cdiv(tokens, _TOKENS_OF_ROPE) if rope else 0
        grid = (ropes + triton.cdiv(tokens, _TOKENS_OF_GROUPS),)
        runtime.launch(WRITE_PER_GROUP, grid, (*values, scales, *paging), meta)
