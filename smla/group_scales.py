"""The group scales of an FP8 cache: made finite, and checked against the cache they belong to."""

from dataclasses import dataclass

import torch
from torch import Tensor

from smla import errors
from smla.kernels.ds_mla import ROW_BYTES as DS_MLA_ROW_BYTES
from smla.kv_cache import FlatCache, flatten
from smla.runtime import Runtime
from smla.scale import GROUP

_MOST = 2**32


@dataclass(frozen=True)
class E4M3Paging:
    """What `flatten` asks of a configuration, told from the cache itself."""

    block_size: int
    head_dim_ckv: int
    head_dim_kpe: int
    kv_dtype = torch.float8_e4m3fn
    storage_dtype = torch.uint8

    @property
    def head_dim(self) -> int:
        return self.head_dim_ckv + self.head_dim_kpe


def new_group_scales(runtime: Runtime, kv_cache: Tensor) -> Tensor:
    """Return the scale array of a group-scaled cache, float32 [physical rows, head_dim_ckv / 128].

    All ones: `forward` needs slot 0's scales finite, written or not (see Flag.SLOT_ZERO_SCALE). A
    row for each physical row of kv_cache [num_blocks, block_size, head_dim_ckv + head_dim_kpe],
    uint8, gaps between strided blocks included: 16 bytes for 512 channels, 3 % of that memory.
    head_dim_ckv is what of a cache row is whole groups of 128, so the rope part must be narrower
    than that.

    Where the blocks of several layers alternate in one storage, an array for each layer would span
    all layers' rows. One for the storage does: make it of the storage as [blocks of all layers,
    block_size, head_dim], and give a layer whose blocks start at row r `scales[r:][:rows]`, rows
    being those that its own view spans: (num_blocks - 1) * stride of its blocks + block_size.

    Raises errors.ShapeError, DtypeError, DeviceError or StrideError for what is no such cache.
    """
    row = kv_cache.shape[-1] if kv_cache.dim() == 3 else 0
    if row == DS_MLA_ROW_BYTES:
        raise errors.ShapeError(
            "kv_cache",
            found=f"{tuple(kv_cache.shape)}: rows of {row} bytes are vLLM's fp8_ds_mla, which "
            "holds its scales itself",
            allowed="rows of E4M3 codes alone",
            remedy="convert it with smla.convert_ds_mla to a BF16 cache, which has no scales",
        )
    if row < GROUP:
        raise errors.ShapeError(
            "kv_cache",
            found=tuple(kv_cache.shape),
            allowed=f"[num_blocks, block_size, head_dim_ckv + head_dim_kpe], with at least one "
            f"group of {GROUP} channels",
            remedy="pass the cache whose scales they will be",
        )
    paging = E4M3Paging(kv_cache.shape[1], row - row % GROUP, row % GROUP)
    flat = flatten(kv_cache, paging, runtime.device)
    scales = runtime.empty((flat.ckv.shape[0], paging.head_dim_ckv // GROUP), torch.float32)
    runtime.fill(scales, 1)
    return scales


def check_group_scales(ckv_scale_arr: Tensor, cache: FlatCache, device: torch.device) -> None:
    """Raise an error of `smla.errors` unless these can be the cache's group scales."""
    if ckv_scale_arr.dtype != torch.float32:
        raise errors.DtypeError(
            "ckv_scale_arr",
            found=ckv_scale_arr.dtype,
            allowed="torch.float32",
            remedy="take it from smla.new_group_scales",
        )
    if ckv_scale_arr.device != device:
        raise errors.DeviceError(
            "ckv_scale_arr", found=ckv_scale_arr.device, allowed=str(device),
            remedy="keep it beside the cache",
        )  # fmt: skip
    shape = (cache.ckv.shape[0], cache.ckv.shape[2] // GROUP)
    if tuple(ckv_scale_arr.shape) != shape:
        raise errors.ShapeError(
            "ckv_scale_arr",
            found=tuple(ckv_scale_arr.shape),
            allowed=f"{shape}: a row per physical row of the cache, a column per {GROUP} channels",
            remedy="take it from smla.new_group_scales for this cache",
        )
    if ckv_scale_arr.numel() > _MOST:
        raise errors.CapacityError(
            "ckv_scale_arr",
            found=f"{ckv_scale_arr.numel()} scales",
            allowed="at most 2**32: the kernel counts them in 32 bits",
            remedy="keep fewer blocks, or layers, in one cache",
        )
    if not ckv_scale_arr.is_contiguous() or ckv_scale_arr.data_ptr() % ckv_scale_arr.itemsize:
        raise errors.StrideError(
            "ckv_scale_arr",
            found=f"strides {ckv_scale_arr.stride()} from {ckv_scale_arr.data_ptr():#x}",
            allowed="contiguous, aligned to 4 bytes: the kernel is told no strides",
            remedy="take it from smla.new_group_scales",
        )
