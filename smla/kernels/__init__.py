"""The Triton kernels around the attention kernel, each beside a torch twin of the same signature.

A `Kernel` pairs the two; `smla.runtime` decides which one runs. A Triton function takes tensors
as pointers, so positional arguments and meta-parameters are the same for both.

A Triton function has one compiled variant per set of meta-parameters: integers are not specialized
(`do_not_specialize`), pointers to the caller's tensors not by their alignment
(`do_not_specialize_on_alignment`), and the plan state's own buffers are always aligned alike. So a
step never compiles anew, and `CudaRuntime` may keep the variant.
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
