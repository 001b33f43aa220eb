"""Memory larger than the machine's, of which only what is written exists."""

import mmap

import torch

_NORESERVE = 0x4000  # of Linux; the mmap module names it from Python 3.13 on


def sparse(nbytes: int) -> torch.Tensor:
    """uint8 [nbytes] of zeros, of which the system has only what is written."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    return torch.frombuffer(mmap.mmap(-1, nbytes, flags=flags), dtype=torch.uint8)
