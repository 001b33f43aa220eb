"""The tap: stands between a subject and FlashInfer's native module, and keeps what passes it."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Planned:
    """The latest native plan: its host inputs (int32), and the staged bytes as it left them."""

    qo_indptr: Tensor
    kv_indptr: Tensor
    kv_len: Tensor
    num_heads: int
    head_dim_o: int
    causal: bool
    float_bytes: int
    staged: Tensor
    plan_info: list[int]


@dataclass(frozen=True)
class Ran:
    """The latest native run. out: a host copy of what it wrote, before anything else touched it.

    float_workspace: the device's own, to be read once the step is over.
    """

    float_workspace: Tensor
    out: Tensor
    sm_scale: float
    ckv_scale: float
    kpe_scale: float
    mask_mode: int
    page_size: int
    scale_array: bool


class Tap:
    """A native module's `plan` and `run`, kept as they are called.

    runtime: reads the device; without one runs pass unseen. runs: how many were seen.
    """

    def __init__(self) -> None:
        self.planned: Planned | None = None
        self.ran: Ran | None = None
        self.runs = 0
        self.runtime: Any = None
        self._native: Any = None

    def wrap(self, native: Any) -> "Tap":
        """Stand before a native module."""
        self._native = native
        return self

    def plan(self, *args: Any) -> Any:
        """Plan, and keep inputs and staged bytes."""
        result = self._native.plan(*args)
        float_ws, _, pinned, starts, offsets, lengths, heads, dim, causal = args
        info = result[0] if len(result) == 2 else result
        self.planned = Planned(
            starts.clone(),
            offsets.clone(),
            lengths.clone(),
            int(heads),
            int(dim),
            bool(causal),
            int(float_ws.nbytes),
            pinned.view(-1).view(torch.uint8).clone(),
            [int(value) for value in info],
        )
        return result

    def run(self, *args: Any) -> Any:
        """Run, and keep the scalars and the output."""
        result = self._native.run(*args)
        if self.runtime is None:
            return result
        self.runs += 1
        self.ran = Ran(
            float_workspace=args[0],
            out=self.runtime.read(args[8]),
            sm_scale=float(args[13]),
            ckv_scale=float(args[15]),
            kpe_scale=float(args[16]),
            mask_mode=int(args[10]),
            page_size=int(args[12]),
            scale_array=args[17] is not None,
        )
        return result
