"""Cache writes: the tokens of a step into an FP8 cache that `forward` reads, checked.

Both ops queue one kernel: they allocate nothing, wait for nothing, and may be captured in a graph,
which then has the tensors' addresses and the scale baked in. The same inputs give the same bytes.
A kernel is compiled at its first call for a geometry: make one with slots of -1 ahead of a capture.
"""

import torch
from torch import Tensor

from smla import errors
from smla.group_scales import E4M3Paging, check_group_scales
from smla.kernels.write_kv import write_rows
from smla.kv_cache import FlatCache, flatten
from smla.runtime import Runtime
from smla.scale import GROUP, KVScale

_UNIT = 8
_ALIGNMENT = 16


def write_per_tensor(
    runtime: Runtime,
    ckv: Tensor,
    kpe: Tensor,
    kv_cache: Tensor,
    slot_mapping: Tensor,
    *,
    k_scale: float,
) -> None:
    """Quantize new tokens with one scale into the cache; queue it and return.

    ckv [tokens, head_dim_ckv], kpe [tokens, head_dim_kpe] (0 columns where there is no rope part):
    BF16, rows 16-byte aligned. kv_cache [num_blocks, block_size, head_dim_ckv + head_dim_kpe]:
    uint8, rows padded to any multiple of 16 bytes, with any block stride of whole rows.
    slot_mapping [tokens]: int64, block * block_size + offset, blocks counted without their gaps.
    k_scale: from 2**-40 to 2**40, the one that `forward` is given; as float32 here.

    A code is E4M3 of value / k_scale, the quotient rounded to float32 and that to E4M3: ties to
    even, what exceeds 448 (infinities too) to 448 of its sign, NaN to 0x7f (which FlashInfer's
    kernel reads as 480). Slots below 0 (padding) or beyond the cache write nothing. The same slot
    twice is the caller's error: either token's values may stand there, channel by channel.

    Raises errors.ShapeError, DtypeError, DeviceError, StrideError or ScaleError; nothing is written
    then.
    """
    scale = KVScale.of(k_scale)
    flat = _check(runtime, ckv, kpe, kv_cache, slot_mapping)
    stride = flat.block_stride_rows
    write_rows(
        runtime, ckv, kpe, kv_cache, None, slot_mapping, block_stride_rows=stride, scale=scale.value
    )


def write_per_group(
    runtime: Runtime,
    ckv: Tensor,
    kpe: Tensor,
    kv_cache: Tensor,
    ckv_scale_arr: Tensor,
    slot_mapping: Tensor,
    *,
    k_scale: float | None = None,
) -> None:
    """Quantize new tokens with a scale per token and 128 channels; queue it and return.

    ckv_scale_arr: float32 [physical rows, head_dim_ckv / 128], as `new_group_scales` makes it; the
    written tokens' scales go there. k_scale: of the rope part, a power of two, as `forward` takes
    it; None where there is no rope part. All else as in `write_per_tensor`.

    A group's scale is the largest absolute value in it over 448, in float32, exactly rounded, and
    at least 2**-126 (the attention kernel takes a smaller one for zero); 1.0 for a group of zeros.
    NaN and infinities do not count for it, so scales are always finite: NaN becomes code 0x7f, an
    infinity 448 of its sign.

    Raises as `write_per_tensor` does; nothing is written then.
    """
    scale = KVScale.of_rope(k_scale, needed=kpe.dim() == 2 and kpe.shape[1] > 0)
    flat = _check(runtime, ckv, kpe, kv_cache, slot_mapping)
    if ckv.shape[1] % GROUP:
        raise errors.ShapeError(
            "ckv",
            found=tuple(ckv.shape),
            allowed=f"[tokens, a multiple of {GROUP}]",
            remedy="use write_per_tensor for this width",
        )
    check_group_scales(ckv_scale_arr, flat, runtime.device)
    stride = flat.block_stride_rows
    write_rows(
        runtime, ckv, kpe, kv_cache, ckv_scale_arr, slot_mapping,
        block_stride_rows=stride, scale=scale.value,
    )  # fmt: skip


def _check(
    runtime: Runtime, ckv: Tensor, kpe: Tensor, kv_cache: Tensor, slot_mapping: Tensor
) -> FlatCache:
    """Refuse what the kernels cannot read or write; return the cache as rows."""
    tokens = slot_mapping.numel()
    for name, tensor, dtype, rank in (
        ("ckv", ckv, torch.bfloat16, 2),
        ("kpe", kpe, torch.bfloat16, 2),
        ("slot_mapping", slot_mapping, torch.int64, 1),
    ):
        if tensor.dtype != dtype:
            raise errors.DtypeError(
                name, found=tensor.dtype, allowed=str(dtype), remedy="convert it upstream"
            )
        if tensor.device != runtime.device:
            raise errors.DeviceError(
                name, found=tensor.device, allowed=str(runtime.device), remedy="keep it there"
            )
        if tensor.dim() != rank or tensor.shape[0] != tokens:
            raise errors.ShapeError(
                name,
                found=tuple(tensor.shape),
                allowed=f"[{tokens}, channels]" if rank == 2 else "[tokens]",
                remedy="pass one slot per token, and every token's both parts",
            )
        if not tensor.numel():
            continue
        steps = tensor.stride()[:-1]
        if tensor.stride(-1) != 1 or any(step % _UNIT for step in steps):
            raise errors.StrideError(
                name,
                found=tensor.stride(),
                allowed=f"unit stride in the last dimension, others multiples of {_UNIT}",
                remedy="pass a contiguous tensor",
            )
        alignment = _ALIGNMENT if rank == 2 else tensor.itemsize
        if tensor.data_ptr() % alignment:
            raise errors.StrideError(
                name,
                found=f"start address {tensor.data_ptr():#x}",
                allowed=f"aligned to {alignment} bytes",
                remedy="slice at a multiple of that, or pass a copy",
            )
    if not ckv.shape[1]:
        raise errors.ShapeError(
            "ckv", found=tuple(ckv.shape), allowed="at least one channel", remedy="pass it"
        )
    block_size = kv_cache.shape[1] if kv_cache.dim() == 3 else 0
    paging = E4M3Paging(block_size, ckv.shape[1], kpe.shape[1])
    return flatten(kv_cache, paging, runtime.device)
