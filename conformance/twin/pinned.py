"""Pinned host memory: blocks that queued copies read late, reused as torch's allocator does.

Source: PyTorch, aten/src/ATen/core/CachingHostAllocator.h. A block whose tensors are all gone is
handed out again: at once where no recorded use is pending, else after the work of its last record
has run (torch records once more when the tensor goes, so what is safe here is safe there). Sizes
are rounded up to powers of two, and the block freed last is taken first. What a block held stays
in it; a fresh one holds poison. A copy reads an address and keeps no tensor alive: an unrecorded
one reads whatever stands there by then.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

POISON = 0x5A


@dataclass(frozen=True)
class HostCopy:
    """A copy from host memory: dst and src of one shape, src read when the copy is called."""

    dst: torch.Tensor
    src: torch.Tensor

    def __call__(self) -> None:
        self.dst.copy_(self.src)


class _Block:
    """Memory of a power of two bytes, and the use that was recorded last."""

    def __init__(self, size: int) -> None:
        self.memory = np.full(size, POISON, np.uint8)
        self.ran: Callable[[], bool] | None = None  # None: no use recorded since it was handed out


class PinnedPool:
    """All pinned blocks of one clock; memory is never given back. Not thread-safe."""

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}  # by address
        self._free: dict[int, list[_Block]] = {}  # by size
        self._waiting: list[_Block] = []  # dropped, with recorded uses that may be pending

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor over a block that no recorded pending use reads, holding stale bytes."""
        size = math.prod(shape) * dtype.itemsize
        if size == 0:
            return torch.empty(shape, dtype=dtype)
        self._collect()
        rounded = 1 << (size - 1).bit_length()
        free = self._free.get(rounded)
        if free:
            block = free.pop()
        else:
            block = _Block(rounded)
            self._blocks[block.memory.ctypes.data] = block
        block.ran = None
        # The tensor's storage holds this array and nothing else does: it dies with the last view.
        handle = block.memory[:size]
        weakref.finalize(handle, self._drop, block).atexit = False
        return torch.from_numpy(handle).view(dtype).view(shape)

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor lies in a pinned block."""
        return tensor.untyped_storage().data_ptr() in self._blocks

    def unowned(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same bytes without a hold on the block; a tensor of other memory as it is."""
        block = self._blocks.get(tensor.untyped_storage().data_ptr())
        if block is None:
            return tensor
        whole = torch.from_numpy(block.memory).view(tensor.dtype)
        return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def record(self, tensor: torch.Tensor, ran: Callable[[], bool]) -> None:
        """Note a use of the tensor's block that is over once `ran()` is true."""
        self._blocks[tensor.untyped_storage().data_ptr()].ran = ran

    def _drop(self, block: _Block) -> None:
        if block.ran is None:
            self._free.setdefault(len(block.memory), []).append(block)
        else:
            self._waiting.append(block)

    def _collect(self) -> None:
        """Free the blocks whose recorded uses are over."""
        for block in list(self._waiting):
            if block.ran is not None and block.ran():
                self._waiting.remove(block)
                self._free.setdefault(len(block.memory), []).append(block)
