"""The paged KV cache as the attention kernel addresses it: flat rows of 512 + kpe elements.

A row's number is 32 bits wide, its address 64: FlashInfer's kernel multiplies the slot by the row
stride in int64, so a cache may be of any size that has at most 2^31 rows.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from smla import errors
from smla.kernels.ds_mla import ROW_BYTES as DS_MLA_ROW_BYTES

_ALIGNMENT = 16
"""Bytes of one vector load of FlashInfer's kernel."""

_MOST_ROWS = 2**31
"""Slots are int32, in the packed list of them and in FlashInfer's kernel."""


@dataclass(frozen=True)
class FlatCache:
    """A cache seen as rows; slot s is row s.

    ckv [rows, 1, head_dim_ckv] and kpe [rows, 1, head_dim_kpe] are views without a copy, whose rows
    may be padded; num_blocks and block_stride_rows say how block b and offset o make slot
    b * block_stride_rows + o.
    """

    ckv: Tensor
    kpe: Tensor
    num_blocks: int
    block_stride_rows: int


class Paging(Protocol):
    """What a cache is expected to be; a `SparseMLAConfig` says it."""

    @property
    def block_size(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def head_dim_ckv(self) -> int: ...
    @property
    def kv_dtype(self) -> torch.dtype: ...
    @property
    def storage_dtype(self) -> torch.dtype: ...


def flatten(kv_cache: Tensor, config: Paging, device: torch.device) -> FlatCache:
    """Return `kv_cache` [num_blocks, block_size, head_dim] as flat rows.

    Rows may be padded to any multiple of 16 bytes, and any block stride that is a whole number of
    rows is served. Raises errors.ShapeError, DtypeError, DeviceError, StrideError or CapacityError
    for others.
    """
    want = ("num_blocks >= 1", config.block_size, config.head_dim)
    shape = tuple(kv_cache.shape)
    if len(shape) != 3 or shape[1:] != want[1:] or shape[0] < 1:
        found, remedy = str(shape), "page the cache with the block size given at construction"
        if shape[-1:] == (DS_MLA_ROW_BYTES,) and kv_cache.dtype == torch.uint8:
            found = f"{shape} of uint8: rows of {DS_MLA_ROW_BYTES} bytes are vLLM's fp8_ds_mla"
            remedy = "convert it with smla.convert_ds_mla, and serve the BF16 cache that it writes"
        raise errors.ShapeError(
            "kv_cache",
            found=found,
            allowed=f"[{', '.join(map(str, want))}]",
            remedy=remedy,
        )
    if kv_cache.dtype != config.storage_dtype:
        raise errors.DtypeError(
            "kv_cache",
            found=kv_cache.dtype,
            allowed=f"{config.storage_dtype} for kv_dtype {config.kv_dtype}",
            remedy="pass the cache that was written in the configured format",
        )
    if kv_cache.device != device:
        raise errors.DeviceError(
            "kv_cache", found=kv_cache.device, allowed=str(device), remedy=f"keep it on {device}"
        )
    unit = _ALIGNMENT // kv_cache.element_size()
    least, row = config.head_dim, kv_cache.stride(1)
    sound_rows = kv_cache.stride(2) == 1 and row >= least and row % unit == 0
    block_stride = kv_cache.stride(0) if shape[0] > 1 else config.block_size * row
    if not sound_rows or block_stride % row or block_stride < config.block_size * row:
        raise errors.StrideError(
            "kv_cache",
            found=f"strides {kv_cache.stride()}",
            allowed=f"(row * n with n >= {config.block_size}, row, 1), row a multiple of {unit} "
            f"from {least} on",
            remedy="pad rows to whole vector loads, and blocks to whole rows",
        )
    if kv_cache.data_ptr() % _ALIGNMENT:
        raise errors.StrideError(
            "kv_cache",
            found=f"start address {kv_cache.data_ptr():#x}",
            allowed=f"aligned to {_ALIGNMENT} bytes",
            remedy="allocate the cache at an aligned address",
        )
    stride_rows = block_stride // row
    rows = (shape[0] - 1) * stride_rows + config.block_size
    if rows > _MOST_ROWS:
        raise errors.CapacityError(
            "kv_cache",
            found=f"{rows} rows, those between its blocks included",
            allowed=f"at most 2**31 = {_MOST_ROWS}: slots are int32",
            remedy="fewer blocks, or blocks that lie nearer together",
        )
    flat = kv_cache.view(config.kv_dtype).as_strided((rows, 1, config.head_dim), (row, row, 1))
    return FlatCache(
        ckv=flat[..., : config.head_dim_ckv],
        kpe=flat[..., config.head_dim_ckv :],
        num_blocks=shape[0],
        block_stride_rows=stride_rows,
    )
