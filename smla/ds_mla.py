"""vLLM's fp8_ds_mla cache, which FlashInfer's kernel cannot read, made a BF16 cache that it can.

A row of it has 656 bytes: 512 E4M3 codes, four float32 scales of 128 codes each, 64 BF16 rope
values. The kernel takes one element type for both parts of a row, and scales in an array apart.
"""

import torch
from torch import Tensor

from smla import errors
from smla.kernels.ds_mla import CKV, KPE, ROW_BYTES, UNIT, from_ds_mla
from smla.runtime import Runtime

_MOST = 2**31


def convert_ds_mla(
    runtime: Runtime,
    ds_mla_cache: Tensor,
    kv_cache: Tensor,
    slot_mapping: Tensor | None = None,
) -> None:
    """Queue the conversion of an fp8_ds_mla cache, or of some of its rows, into a BF16 cache.

    ds_mla_cache: uint8 [num_blocks, block_size, 656]. kv_cache: BF16 [num_blocks, block_size,
    576], written. Blocks and rows of both may lie any multiple of 16 bytes apart.
    slot_mapping: int64 [tokens], which slots block * block_size + offset to convert, such as those
    that a step has written; negative ones and those behind the cache are skipped. All where None.

    Each value is code * scale in float32, rounded to BF16; the rope part is copied bit for bit.
    Rows that are not converted keep what they held. Waits for nothing and may be captured: a
    replay converts what the same tensors hold by then. The kernel is compiled at its first call,
    with a slot mapping and without one apart: make one ahead of a capture.

    Raises errors.ShapeError, DtypeError, DeviceError, StrideError or CapacityError, before
    anything is queued.
    """
    blocks = tuple(ds_mla_cache.shape[:2])
    sides = (
        ("ds_mla_cache", ds_mla_cache, torch.uint8, ROW_BYTES),
        ("kv_cache", kv_cache, torch.bfloat16, CKV + KPE),
    )
    for name, tensor, dtype, row in sides:
        shape = tuple(tensor.shape)
        if len(shape) != 3 or shape[2] != row or shape[:2] != blocks or 0 in shape:
            pages = "num_blocks, block_size" if tensor is ds_mla_cache else f"{[*blocks]}"[1:-1]
            raise errors.ShapeError(
                name,
                found=shape,
                allowed=f"[{pages}, {row}], nowhere 0",
                remedy="pass both caches in the same blocks: 656 bytes become 576 values",
            )
        _check_memory(name, tensor, dtype, row, runtime.device)
    if slot_mapping is not None:
        _check_slots(slot_mapping, runtime.device)
    rows = blocks[0] * blocks[1]
    count = rows if slot_mapping is None else slot_mapping.numel()
    if max(rows, count) >= _MOST:
        raise errors.CapacityError(
            "ds_mla_cache",
            found=f"{rows} rows, {count} to convert",
            allowed=f"fewer than 2**31 = {_MOST} of either",
            remedy="convert the cache in parts: slices of its blocks",
        )
    from_ds_mla(runtime, ds_mla_cache, kv_cache, slot_mapping)


def _check_memory(
    name: str, tensor: Tensor, dtype: torch.dtype, row: int, device: torch.device
) -> None:
    if tensor.dtype != dtype:
        raise errors.DtypeError(
            name, found=tensor.dtype, allowed=str(dtype), remedy="view or allocate it as that"
        )
    if tensor.device != device:
        raise errors.DeviceError(
            name, found=tensor.device, allowed=str(device), remedy=f"keep it on {device}"
        )
    unit = UNIT // tensor.element_size()
    (blocks, size, _), (block_stride, row_stride, step) = tensor.shape, tensor.stride()
    apart = row_stride >= row and (blocks == 1 or block_stride >= (size - 1) * row_stride + row)
    whole = row_stride % unit == 0 and block_stride % unit == 0
    if step != 1 or not apart or not whole or max(block_stride, row_stride) // unit >= _MOST:
        raise errors.StrideError(
            name,
            found=f"strides {tensor.stride()}",
            allowed=f"(block, row, 1), both multiples of {unit} below 2**31 * {unit}, row at least "
            f"{row}, and blocks that do not overlap",
            remedy="pad rows and blocks to 16 bytes, or pass a contiguous tensor",
        )
    if tensor.data_ptr() % UNIT:
        raise errors.StrideError(
            name,
            found=f"start address {tensor.data_ptr():#x}",
            allowed=f"aligned to {UNIT} bytes",
            remedy="allocate the cache at an aligned address",
        )


def _check_slots(slots: Tensor, device: torch.device) -> None:
    if slots.dtype != torch.int64:
        raise errors.DtypeError(
            "slot_mapping", found=slots.dtype, allowed="torch.int64", remedy="convert it upstream"
        )
    if slots.device != device:
        raise errors.DeviceError(
            "slot_mapping", found=slots.device, allowed=str(device), remedy=f"keep it on {device}"
        )
    if slots.dim() != 1:
        raise errors.ShapeError(
            "slot_mapping", found=tuple(slots.shape), allowed="[tokens]", remedy="flatten it"
        )
    if not slots.is_contiguous():
        raise errors.StrideError(
            "slot_mapping",
            found=f"strides {slots.stride()}",
            allowed="(1,)",
            remedy="pass a contiguous tensor",
        )
