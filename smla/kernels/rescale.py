"""Rescale: outputs in FP16 times a factor become BF16, in place, for rows that see something.

What is left of an FP8 cache's scale once FlashInfer's kernel has applied the power of two in it
(see `smla.scale`).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from smla.kernels import Kernel
from smla.runtime import Runtime

_CHUNK = 2048
_UNIT = 8
"""Elements of a 16-byte load; outputs are aligned to it, and their strides multiples of it."""


@triton.jit(do_not_specialize=["row_units", "head_units"])
def _rescale_triton(
    out,
    row_units,
    head_units,
    row_context,
    live,
    factor,
    ELEMENTS: tl.constexpr,
    DIM: tl.constexpr,
    UNIT: tl.constexpr,
    CHUNK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    # A padding row has context 0 and keeps what it held; a live one with context 0 holds zeros. For
    # more live rows than there are here nothing was computed (see `smla.kernels.convert`).
    computed = tl.load(live) <= tl.num_programs(0)
    if computed & (tl.load(row_context + row) > 0):
        element = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
        inside = element < ELEMENTS
        head = (element // DIM).to(tl.int64) * head_units * UNIT
        place = out + row * row_units * UNIT + head + element % DIM
        half = tl.load(place, mask=inside, other=0).to(tl.float16, bitcast=True)
        tl.store(place, (half.to(tl.float32) * factor).to(tl.bfloat16), mask=inside)


def _rescale_torch(
    out: Tensor,
    row_units: int,
    head_units: int,
    row_context: Tensor,
    live: Tensor,
    factor: float,
    ELEMENTS: int,
    DIM: int,
    UNIT: int,
    CHUNK: int,
) -> None:
    sees = (row_context[: out.shape[0]] > 0) & (live <= out.shape[0])
    scaled = out.view(torch.float16).float() * torch.tensor(factor, dtype=torch.float32)
    out[:] = scaled.to(out.dtype).where(sees[:, None, None], out)


RESCALE = Kernel("rescale", _rescale_triton, _rescale_torch)


def rescale(
    runtime: Runtime, out: Tensor, row_context: Tensor, live: Tensor, factor: float
) -> None:
    """Rewrite out [rows, heads, dim], BF16 that holds FP16, where row_context is above 0.

    row_context: int32 [>= rows]. live: int32 [1], rows of the newest plan; nothing is rewritten for
    more of them than `out` has. factor: a float32.
    """
    rows, heads, dim = out.shape
    args = (out, out.stride(0) // _UNIT, out.stride(1) // _UNIT, row_context, live, factor)
    meta = {"ELEMENTS": heads * dim, "DIM": dim, "UNIT": _UNIT, "CHUNK": _CHUNK}
    runtime.launch(RESCALE, (rows, triton.cdiv(heads * dim, _CHUNK)), args, meta)
