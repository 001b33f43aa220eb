"""The seam every engine stands behind."""

from typing import Protocol

from torch import Tensor

from smla.kv_cache import FlatCache
from smla.schedule import ScheduleLayout


class Engine(Protocol):
    """One attention kernel family, ready to plan and run for one configuration.

    capabilities: what it offers, of `needs_plan`, `lse`, `exact_reads`, `bf16`, `fp8`.
    layout: where its schedule stands in the int workspace; plan_info: the same as FlashInfer
    said it last.
    """

    capabilities: frozenset[str]
    layout: ScheduleLayout
    plan_info: list[int]

    def plan(
        self, float_workspace: Tensor, int_workspace: Tensor, staging: Tensor, lengths: Tensor
    ) -> None:
        """Write the schedule of rows with these planned lengths (int32 [rows], rows >= 1) to
        the host block `staging`; the device is not touched."""

    def run(
        self,
        float_workspace: Tensor,
        int_workspace: Tensor,
        kv_indices: Tensor,
        q_nope: Tensor,
        q_pe: Tensor,
        cache: FlatCache,
        out: Tensor,
        k_scale: float,
    ) -> None:
        """Queue the attention of the schedule in `int_workspace` into `out`."""
