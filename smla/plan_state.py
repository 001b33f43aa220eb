"""The plan state: device buffers with fixed addresses and the schedule that stands in them.

One per attention group, shared by its layers (vLLM: _SM90State). FlashInfer bakes each row's KV
length into a schedule built on the host; `update` plans from row bounds, with slack, reuses a plan
while it covers them, and clamps it to the device's exact lengths, so a step never waits for the
device. Not thread-safe; all work belongs on one stream.
"""

import logging
from dataclasses import dataclass

import torch
from torch import Tensor

from smla import errors
from smla.config import SparseMLAConfig
from smla.engines.base import Engine
from smla.flags import Flag
from smla.kernels.clamp import clamp
from smla.kernels.pack import pack
from smla.kernels.row_map import row_map
from smla.runtime import Runtime

_NO_PLAN = -1
_log = logging.getLogger(__name__)


@dataclass
class PlanStats:
    """How often the state planned anew, reused a plan, and clamped."""

    plans: int = 0
    reuses: int = 0
    clamps: int = 0


class PlanState:
    """Owns workspaces, packed indices, row map and flags; addresses never change.

    row_request, row_context: int32 [max_tokens], each row's request and context.
    slots [max_tokens, topk_width], counts [max_tokens]: what convert found (int32).
    kv_indices [max_tokens * topk_width], kv_indptr [max_tokens + 1]: packed CSR (int32).
    int_workspace, float_workspace: the schedule and the split partials (uint8).
    flags: int32 [1], bits of `smla.flags.Flag`, set by kernels and never cleared by them.
    serial: number of updates so far; metadata of an older one is refused.
    """

    def __init__(self, config: SparseMLAConfig, runtime: Runtime, engine: Engine) -> None:
        self.config, self.runtime, self.engine = config, runtime, engine
        self.layout = engine.layout
        self.stats = PlanStats()
        self.serial = 0
        rows, width = config.max_tokens, config.topk_width
        int32 = torch.int32
        self.int_workspace = runtime.zeros((self.layout.staged_bytes,), torch.uint8)
        self.float_workspace = runtime.empty((self.layout.float_bytes,), torch.uint8)
        self.kv_indices = runtime.zeros((rows * width,), int32)
        self.kv_indptr = runtime.zeros((rows + 1,), int32)
        self.slots = runtime.zeros((rows, width), int32)
        self.counts = runtime.zeros((rows,), int32)
        self.row_request = runtime.zeros((rows,), int32)
        self.row_context = runtime.zeros((rows,), int32)
        self.flags = runtime.zeros((1,), int32)
        self._schedule = self.int_workspace.view(int32)
        # kv_len and kv_end as planned; kept apart because each clamp overwrites them in place.
        self._planned = runtime.zeros((2, self.layout.capacity), int32)
        self._planned_lengths = torch.empty(0, dtype=int32)
        self._planned_rows = _NO_PLAN
        # More slack than the cap leaves is none, and would overflow.
        self._slack = min(config.plan_slack, config.max_valid)
        self._prove_layout()

    def _prove_layout(self) -> None:
        """Plan one row once, so that an unknown plan-info layout is refused at construction."""
        staging = self.runtime.staging((self.layout.staged_bytes,), torch.uint8)
        one_row = torch.ones(1, dtype=torch.int32)
        self.engine.plan(self.float_workspace, self.int_workspace, staging, one_row)

    @property
    def planned_lengths(self) -> Tensor:
        """Planned KV length of each row of the current plan, int32 [rows] on the host."""
        return self._planned_lengths

    def update(
        self, lengths: Tensor, *, exact: bool, query_start_loc: Tensor, seq_lens: Tensor
    ) -> None:
        """Make the schedule cover rows of these lengths, int32 [rows] on the host.

        exact: the lengths are the valid counts themselves: planned as they are, nothing left to
        clamp, and never reused. Otherwise they are row bounds, and the clamp takes what each row
        really sees from the device's query_start_loc and seq_lens (int32).

        Raises errors.CaptureError during graph capture, errors.CapacityError when the planner
        would make more work items than FlashInfer has room for, errors.PlanLayoutError for an
        unknown plan-info; nothing is written then.
        """
        self.refuse_capture()
        if exact:
            planned = lengths
        elif self._covers(lengths):
            planned = None
        else:
            planned = (lengths + self._slack).clamp_(max=self.config.max_valid)
        if planned is not None:
            self._check_capacity(planned)
        if planned is None:
            self.serial += 1
            self.stats.reuses += 1
        else:
            self._replan(planned)
        row_map(
            self.runtime,
            query_start_loc,
            seq_lens,
            self.row_request,
            self.row_context,
            live_rows=lengths.numel(),
        )
        if exact:
            self._planned_rows = _NO_PLAN
        elif lengths.numel():
            self._clamp()
        if _log.isEnabledFor(logging.DEBUG):
            self._log_decision(planned, exact=exact)

    def refuse_capture(self) -> None:
        """Raise errors.CaptureError during a graph capture."""
        if self.runtime.capturing():
            raise errors.CaptureError(
                "plan",
                found="a graph capture in progress",
                allowed="planning outside of capture only",
                remedy="call builder.build() before the capture; the captured forward reads the "
                "buffers that each later build() refreshes",
            )

    def _log_decision(self, planned: Tensor | None, *, exact: bool) -> None:
        if planned is None:
            rows, longest = self._planned_rows, self._planned_lengths
            what = "plan reused"
        else:
            rows, longest = planned.numel(), planned
            what = "planned exact lengths" if exact else "planned bounds and slack"
        _log.debug(
            "step %d: %s, %d rows, longest %d, %d plans and %d reuses so far",
            self.serial, what, rows, int(longest.max()) if rows else 0,
            self.stats.plans, self.stats.reuses,
        )  # fmt: skip

    def _covers(self, bounds: Tensor) -> bool:
        if bounds.numel() != self._planned_rows:
            return False
        planned = self._planned_lengths
        fits = (planned >= bounds) & (planned <= bounds + self._slack)
        return bool(fits.all())

    def _check_capacity(self, planned: Tensor) -> None:
        if planned.numel() > self.config.max_tokens:
            raise errors.CapacityError(
                "rows of the plan",
                found=planned.numel(),
                allowed=f"at most max_tokens = {self.config.max_tokens}",
                remedy="split the batch, or construct with a larger max_tokens",
            )
        works = self.layout.count_works(planned)
        if works > self.layout.capacity:
            raise errors.CapacityError(
                "work items of the plan",
                found=f"{works} ({planned.numel()} rows, {self.config.num_heads} heads)",
                allowed=f"at most {self.layout.capacity}",
                remedy="split the batch; FlashInfer's planner would write past its arrays",
            )

    def _replan(self, planned: Tensor) -> None:
        rows, layout, runtime = planned.numel(), self.layout, self.runtime
        indptr = runtime.staging((self.config.max_tokens + 1,), torch.int32)
        indptr[0] = 0
        torch.cumsum(planned, 0, dtype=torch.int32, out=indptr[1 : rows + 1])
        indptr[rows + 1 :] = indptr[rows].clone()
        if rows:
            staging = runtime.staging((layout.staged_bytes,), torch.uint8)
            self.engine.plan(self.float_workspace, self.int_workspace, staging, planned)
        # From here on the device changes: what was planned before holds no longer, whatever
        # becomes of the rest.
        self.serial += 1
        self._planned_rows = _NO_PLAN
        if rows:
            runtime.upload(self.int_workspace, staging)
            for kept, name in zip(self._planned, ("kv_len", "kv_end"), strict=True):
                start = layout.at(name)
                runtime.copy(kept, self._schedule[start : start + layout.capacity])
        else:
            # The native planner divides by the number of rows. Zeroed arrays are an empty
            # schedule: no work for any cluster, nothing to merge, the grid as ever.
            runtime.zero(self.int_workspace)
        runtime.upload(self.kv_indptr, indptr)
        self._planned_lengths, self._planned_rows = planned, rows
        self.stats.plans += 1

    def _clamp(self) -> None:
        planned_kv_len, planned_kv_end = self._planned
        clamp(
            self.runtime,
            self._schedule,
            planned_kv_end,
            planned_kv_len,
            self.row_context,
            self.flags,
            layout=self.layout,
            index_topk=self.config.index_topk,
            index_kpool=self.config.index_kpool,
        )
        self.stats.clamps += 1

    def pack(self, rows: int) -> None:
        """Queue packing of the first `rows` rows of `slots` into `kv_indices` (capturable)."""
        pack(self.runtime, self.slots, self.counts, self.kv_indptr, self.kv_indices, rows=rows)

    def read_flags(self) -> Flag:
        """Return the flag word; waits for the device."""
        return Flag(int(self.runtime.read(self.flags)))

    def clear_flags(self) -> None:
        """Queue clearing of the flag word."""
        self.runtime.zero(self.flags)
