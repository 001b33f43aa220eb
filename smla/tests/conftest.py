"""Shared by smla's tests: one thread each, and memory that nobody wrote holds garbage."""

from typing import Any

import pytest
import torch
from torch import Tensor

import smla

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def garbage_in_fresh_memory(monkeypatch):
    """Give every block that need not be zeroed another content each time.

    A test, or the backend, that reads what was never written then fails always, not just where
    the allocator happens to hand out memory that was used before.
    """
    draw = torch.Generator().manual_seed(1)

    def dirty(allocate: Any) -> Any:
        def allocated(self: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            block: Tensor = allocate(self, shape, dtype)
            block.reshape(-1).view(torch.uint8).random_(0, 256, generator=draw)
            return block

        return allocated

    for name in ("empty", "staging"):
        allocate = getattr(smla.CpuRuntime, name)
        monkeypatch.setattr(smla.CpuRuntime, name, dirty(allocate))
