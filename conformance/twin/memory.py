"""Reads of the KV cache and its scales, as the kernel makes and converts them.

A slot outside the cache is memory that is not ours. Reading it never fails here; it yields poison:
NaN in BF16, the code 0x7f in FP8 (which the kernel's conversion makes 480, see `_e4m3_values`),
NaN for a scale.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from conformance.twin.errors import TwinDomainError

SCALE_GROUP = 128  # channels per float32 scale of `ckv_scale_arr`
FOREIGN_CODE = 0x7F
_UINT32 = 0xFFFFFFFF


class Cache:
    """One half of the KV cache (compressed or rope part), [slots, 1, dim] in any slot stride."""

    def __init__(self, data: torch.Tensor, scale: float) -> None:
        rows = data[:, 0, :]
        self.num_slots, self.dim = rows.shape
        self._fp8 = data.dtype == torch.float8_e4m3fn
        if self._fp8:
            rows = rows.view(torch.uint8)
            self._scaled = _scaled_values(scale)
        elif data.dtype != torch.bfloat16:
            raise TwinDomainError(
                f"cache is {data.dtype}; the kernel reads bfloat16, float8_e4m3fn"
            )
        self._rows = rows

    def read(
        self,
        slots: torch.Tensor,
        present: torch.Tensor | None,
        scales: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """BF16-valued float32 rows [..., dim] of int64 slots [...].

        present: lanes that are loaded, the others are zero-filled (None: all are loaded).
        scales: float32 [..., dim] that replace the per-tensor scale (FP8 only).
        """
        foreign = (slots < 0) | (slots >= self.num_slots)
        if present is not None:
            foreign &= present
        any_foreign = bool(foreign.any())
        safe = slots.clamp(0, self.num_slots - 1) if any_foreign or present is not None else slots
        raw = _rows(self._rows, safe) if self.num_slots else self._nothing(slots)
        if any_foreign:
            raw[foreign] = FOREIGN_CODE if self._fp8 else float("nan")
        if present is not None:
            absent = (~present).flatten().nonzero().flatten()
            raw.view(-1, self.dim).index_fill_(0, absent, 0)
        if not self._fp8:
            return raw.float()
        if scales is None:
            return _rows(self._scaled, raw)
        return (_rows(_e4m3_values(), raw) * scales).bfloat16().float()

    def _nothing(self, slots: torch.Tensor) -> torch.Tensor:
        return self._rows.new_zeros((*slots.shape, self.dim))


class GroupScales:
    """Float32 scales of the compressed part, one per slot and 128 channels, contiguous by slot."""

    def __init__(self, array: torch.Tensor, dim: int) -> None:
        if dim % SCALE_GROUP or array.dtype != torch.float32 or not array.is_contiguous():
            raise TwinDomainError(
                f"scale array is {array.dtype} {tuple(array.shape)}, ckv {dim}: needed is a "
                f"contiguous float32 array and a multiple of {SCALE_GROUP} channels"
            )
        self._groups = dim // SCALE_GROUP
        self._flat = array.reshape(-1)

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """Scales [..., dim] of int64 slots [...]; element numbers wrap at 32 bits, unsigned."""
        element = (slots[..., None] * self._groups + torch.arange(self._groups)) & _UINT32
        foreign = element >= self._flat.numel()
        values = self._flat[element.masked_fill(foreign, 0)].masked_fill(foreign, float("nan"))
        return values.repeat_interleave(SCALE_GROUP, -1)


def _rows(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """table[index] along the first axis, for an index of any shape; the fastest way torch has."""
    flat = index.reshape(-1)
    picked = table.index_select(0, flat if flat.dtype == torch.int64 else flat.int())
    return picked.view(*index.shape, *table.shape[1:])


@lru_cache
def _e4m3_values() -> torch.Tensor:
    """Float32 values of the 256 E4M3 codes as the kernel converts them.

    The conversion shifts bits and multiplies by a power of two (fast_dequant_f8f16x4 in
    vec_dtypes.cuh), so the NaN codes 0x7f and 0xff become 480 and -480.
    """
    codes = torch.arange(256)
    exponent, mantissa = (codes >> 3) & 15, (codes & 7).double()
    normal = (1 + mantissa / 8) * 2.0 ** (exponent.double() - 7)
    value = torch.where(exponent == 0, mantissa / 8 * 2.0**-6, normal)
    return torch.where(codes < 128, value, -value).float()


@lru_cache
def _scaled_values(scale: float) -> torch.Tensor:
    """The 256 values under a per-tensor scale: both factors and the product are BF16."""
    factor = torch.tensor(scale, dtype=torch.float32).bfloat16().float()
    return (_e4m3_values() * factor).bfloat16().float()
