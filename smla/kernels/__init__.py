"""The Triton kernels around the attention kernel, each beside a torch twin of the same signature.

A `Kernel` pairs the two; `smla.runtime` decides which one runs. A Triton function takes tensors
as pointers, so positional arguments and meta-parameters are the same for both.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Kernel:
    """A Triton kernel and the torch function that computes the same on a CPU."""

    name: str
    triton: Any
    torch: Callable[..., None]
    num_warps: int = 4
