"""smla's cache writes for the benchmark, each beside a plain copy of as many bytes."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import smla
from conformance.bench.shape import CacheWrite, Call

_BLOCK = 64
_CKV, _ROPES = 512, (0, 64)
_K_SCALE = 0.375
_ROPE_SCALE = 0.5


def factory(*, gpu: bool) -> Callable[[int], list[CacheWrite]]:
    """What makes the writes of so many tokens, on the current GPU or on the CPU."""
    runtime: smla.Runtime = smla.CudaRuntime() if gpu else smla.CpuRuntime()
    return partial(_writes, runtime)


def _writes(runtime: smla.Runtime, tokens: int) -> list[CacheWrite]:
    return [_one(runtime, tokens, kpe, grouped) for kpe in _ROPES for grouped in (False, True)]


def _one(runtime: smla.Runtime, tokens: int, kpe: int, grouped: bool) -> CacheWrite:
    def on_device(tensor: Tensor) -> Tensor:
        placed = runtime.empty(tuple(tensor.shape), tensor.dtype)
        runtime.write(placed, tensor)
        return placed

    row, blocks = _CKV + kpe, -(-tokens // _BLOCK)
    values = on_device(torch.randn(tokens, row).bfloat16())
    ckv, rope = values[:, :_CKV], values[:, _CKV:]
    cache = runtime.zeros((blocks, _BLOCK, row), torch.uint8)
    # Blocks in another order than their tokens, as an allocator gives them out.
    order = torch.randperm(blocks)[:, None] * _BLOCK + torch.arange(_BLOCK)
    slots = on_device(order.view(-1)[:tokens].contiguous())
    size = values.nbytes + slots.nbytes + tokens * row
    if grouped:
        scales = smla.new_group_scales(runtime, cache)
        size += tokens * scales.shape[1] * scales.itemsize

        def write() -> None:
            smla.write_per_group(runtime, ckv, rope, cache, scales, slots, k_scale=_ROPE_SCALE)

    else:

        def write() -> None:
            smla.write_per_tensor(runtime, ckv, rope, cache, slots, k_scale=_K_SCALE)

    scaling = "group" if grouped else "tensor"
    return CacheWrite(scaling, kpe, size, runtime, write, _copy(runtime, size))


def _copy(runtime: smla.Runtime, size: int) -> Call:
    """A copy that reads half of the bytes and writes the other half."""
    source, target = (runtime.zeros((size // 2,), torch.uint8) for _ in range(2))
    return lambda: target.copy_(source)
