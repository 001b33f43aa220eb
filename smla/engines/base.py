"""The seam every engine stands behind."""

from typing import Protocol

import torch
from torch import Tensor

from smla.kv_cache import FlatCache
from smla.scale import KVScale
from smla.schedule import ScheduleLayout


class Engine(Protocol):
    """One attention kernel family, ready to plan and run for one configuration.

    capabilities: what it offers, of `needs_plan`, `lse`, `exact_reads`, `bf16`, `fp8`,
    `fp8_group`.
    layout: where its schedule stands in the int workspace; plan_info: the same as FlashInfer
    said it last. plan_copies: whether its planner writes the device by itself. out_dtype: what it
    writes outputs as.
    """

    capabilities: frozenset[str]
    layout: ScheduleLayout
    plan_info: list[int]
    plan_copies: bool
    out_dtype: torch.dtype

    def plan(
        self,
        float_workspace: Tensor,
        int_workspace: Tensor,
        staging: Tensor,
        first_row: int,
        lengths: Tensor,
        kv_indptr: Tensor,
    ) -> None:
        """Write the schedule of the rows from first_row on to the host block `staging`.

        staging: uint8 [at least staged bytes], new for each plan; the caller uploads it, and where
        `plan_copies` the engine has queued that already.
        lengths: int32 [rows] on the host, rows >= 1, planned KV lengths. kv_indptr: int32
        [rows + 1] on the host, where each row's packed indices start.
        """

    def check_scale(self, scale: KVScale) -> None:
        """Raise errors.ScaleError where the kernel cannot compute with this cache scale."""

    def run(
        self,
        float_workspace: Tensor,
        int_workspace: Tensor,
        kv_indices: Tensor,
        q_nope: Tensor,
        q_pe: Tensor,
        cache: FlatCache,
        out: Tensor,
        *,
        sm_scale: float,
        kv_scale: float,
        ckv_scale_arr: Tensor | None,
    ) -> None:
        """Queue the attention of the schedule in `int_workspace` into `out`.

        sm_scale multiplies the logits, kv_scale (1 for BF16) every element of the cache; with
        ckv_scale_arr (float32 [cache rows, groups]) those of the rope part alone, and a group's
        scale the others.
        """
