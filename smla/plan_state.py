"""The plan state: device buffers with fixed addresses and the schedules that stand in them.

One per attention group, shared by its layers (vLLM: _SM90State). FlashInfer bakes each row's KV
length into a schedule built on the host; `update` plans from row bounds, with slack, reuses a plan
while it covers them, and clamps it to the device's exact lengths, so a step never waits for the
device.

Not thread-safe: all calls come from one thread at a time. A step's build and its forwards go to one
stream; the next step may go to another, which then queues behind the former one. On which stream a
graph is replayed, nobody sees here.
"""

import logging
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from smla import errors
from smla.captures import Captures
from smla.config import SparseMLAConfig
from smla.device_schedule import DeviceSchedule
from smla.engines.base import Engine
from smla.flags import Flag
from smla.kernels.pack import pack
from smla.kernels.row_map import row_map
from smla.lengths import Ints
from smla.memory import MemoryEstimate, memory_estimate
from smla.runtime import Runtime

_NO_PLAN = -1
_log = logging.getLogger(__name__)


@dataclass
class PlanStats:
    """How often the state planned anew, reused a plan, and clamped; all since construction.

    chunks: schedules planned; more than plans where a step had too many work items for one.
    """

    plans: int = 0
    reuses: int = 0
    chunks: int = 0
    clamps: int = 0


class PlanState:
    """Owns workspaces, packed indices, row map and flags; addresses never change.

    row_request, row_context: int32 [max_tokens], each row's request and context.
    slots [max_tokens, topk_width], counts [max_tokens]: what convert found (int32).
    kv_indices [max_tokens * topk_width], kv_indptr [max_tokens + 1]: packed CSR (int32).
    schedules: as many as max_tokens rows can need; captured graphs run the first alone.
    float_workspace: split partials (uint8), used by one schedule after the other.
    live: int32 [1], rows of the newest plan. flags: int32 [1], bits of `smla.flags.Flag`, set by
    kernels and never cleared by them.
    captures: what captured forwards have baked in.
    serial: number of updates so far; metadata of an older one is refused. stream: of the newest.
    """

    def __init__(self, config: SparseMLAConfig, runtime: Runtime, engine: Engine) -> None:
        self.config, self.runtime, self.engine = config, runtime, engine
        self.layout = engine.layout
        self.stats = PlanStats()
        self.captures = Captures()
        self.serial = 0
        self.stream = runtime.stream()
        rows, width = config.max_tokens, config.topk_width
        int32 = torch.int32
        # One copy brings the first schedule and kv_indptr.
        first = DeviceSchedule(config, runtime, engine, extra=rows + 1)
        others = range(1, self.layout.most_schedules(rows))
        self.schedules = [first, *(DeviceSchedule(config, runtime, engine) for _ in others)]
        self.float_workspace = runtime.empty((self.layout.float_bytes,), torch.uint8)
        self.kv_indices = runtime.zeros((rows * width,), int32)
        self.kv_indptr = first.rest
        self.slots = runtime.zeros((rows, width), int32)
        self.counts = runtime.zeros((rows,), int32)
        self.row_request = runtime.zeros((rows,), int32)
        self.row_context = runtime.zeros((rows,), int32)
        self.live = runtime.zeros((1,), int32)
        self.flags = runtime.zeros((1,), int32)
        self._planned: Ints = np.empty(0, np.int32)
        self._planned_rows = _NO_PLAN
        self._active = self.schedules[:1]
        # More slack than the cap leaves is none, and would overflow.
        self._slack = min(config.plan_slack, config.max_valid)
        self._prove_layout()

    @staticmethod
    def memory_estimate(config: SparseMLAConfig, num_sms: int = 132) -> MemoryEstimate:
        """Return what a plan state will take; num_sms: of the GPU (132 on H100 SXM and H200)."""
        return memory_estimate(config, num_sms)

    def _prove_layout(self) -> None:
        """Plan one row once, so that an unknown plan-info layout is refused at construction."""
        first = self.schedules[0]
        block, kv_indptr = first.staging(2)
        kv_indptr.numpy()[:] = (0, 1)
        lengths = torch.from_numpy(np.ones(1, np.int32))
        first.plan(self.float_workspace, block, 0, lengths, kv_indptr)
        kv_indptr.numpy()[:] = 0
        first.empty(block)

    @property
    def int_workspace(self) -> Tensor:
        """The first schedule's workspace, uint8; the one that captured graphs run."""
        return self.schedules[0].workspace

    @property
    def planned_lengths(self) -> Ints:
        """Planned KV length of each row of the current plan, int32 [rows]."""
        return self._planned

    @property
    def active(self) -> list[DeviceSchedule]:
        """The schedules of the current plan, to be run one after the other."""
        return self._active

    def addresses(self) -> dict[str, int]:
        """Return the device address of every buffer that a captured graph may read or write."""
        named = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        for number, schedule in enumerate(self.schedules):
            named[f"schedule {number}"] = schedule.workspace
        return {name: tensor.data_ptr() for name, tensor in named.items()}

    def update(
        self, lengths: Ints, *, exact: bool, query_start_loc: Tensor, seq_lens: Tensor
    ) -> None:
        """Make the schedules cover rows of these lengths, int32 [rows], known to the host.

        exact: the lengths are the valid counts themselves: planned as they are, nothing left to
        clamp, and never reused. Otherwise they are row bounds, and the clamp takes what each row
        really sees from the device's query_start_loc and seq_lens (int32).

        Never waits for the device. Raises errors.CaptureError during graph capture and
        errors.CapacityError for more rows than max_tokens, nothing being written then; and
        errors.PlanLayoutError for an unknown plan-info, with the plan before still in force unless
        FlashInfer had written over it, which its metadata then tells.
        """
        self.refuse_capture()
        rows = lengths.size
        if rows > self.config.max_tokens:
            raise errors.CapacityError(
                "rows of the plan",
                found=rows,
                allowed=f"at most max_tokens = {self.config.max_tokens}",
                remedy="split the batch, or construct with a larger max_tokens",
            )
        if self.runtime.stream() != self.stream:
            self.runtime.follow(self.stream)
        reused = not exact and self._covers(lengths)
        if reused:
            self.serial += 1
            self.stats.reuses += 1
            self.stream = self.runtime.stream()
        else:
            self._replan(lengths if exact else self._with_slack(lengths))
        row_map(
            self.runtime,
            query_start_loc,
            seq_lens,
            self.row_request,
            self.row_context,
            self.kv_indptr,
            self.live,
            live_rows=rows,
        )
        if exact:
            self._planned_rows = _NO_PLAN
        elif rows:
            for schedule in self._active:
                schedule.clamp(self.row_context, self.flags)
            self.stats.clamps += 1
        if _log.isEnabledFor(logging.DEBUG):
            self._log_decision(reused=reused, exact=exact)

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

    def _log_decision(self, *, reused: bool, exact: bool) -> None:
        what = "planned exact lengths" if exact else "planned bounds and slack"
        rows = self._planned.size
        _log.debug(
            "step %d: %s, %d rows, longest %d, %d plans and %d reuses so far",
            self.serial, "plan reused" if reused else what, rows,
            int(self._planned.max()) if rows else 0, self.stats.plans, self.stats.reuses,
        )  # fmt: skip

    def _covers(self, bounds: Ints) -> bool:
        if bounds.size != self._planned_rows:
            return False
        if not bounds.size:
            return True
        excess = self._planned - bounds
        return bool(excess.min() >= 0 and excess.max() <= self._slack)

    def _with_slack(self, bounds: Ints) -> Ints:
        planned: Ints = np.minimum(bounds + np.int32(self._slack), np.int32(self.config.max_valid))
        return planned

    def _replan(self, planned: Ints) -> None:
        rows = planned.size
        chunks = self.layout.chunks(planned) if rows else []
        active = self.schedules[: max(len(chunks), 1)]
        block, indptr = active[0].staging(rows + 1)
        blocks = [block, *(schedule.staging()[0] for schedule in active[1:])]
        offsets = indptr.numpy()
        offsets[0] = 0
        np.cumsum(planned, out=offsets[1:])
        lengths = torch.from_numpy(planned)
        for schedule, block, part in zip(active, blocks, chunks, strict=False):
            mine, starts = lengths, indptr
            if len(chunks) > 1:
                mine, starts = lengths[part.start : part.stop], indptr[part.start : part.stop + 1]
            try:
                schedule.plan(self.float_workspace, block, part.start, mine, starts)
            except Exception:
                if self.engine.plan_copies:
                    self._forget_plan()
                raise
        # From here on the device changes: what was planned before holds no longer, whatever
        # becomes of the rest.
        self._forget_plan()
        self._active = active
        for schedule, block, part in zip(active, blocks, chunks, strict=False):
            schedule.upload(block, len(part))
        if not rows:
            active[0].empty(blocks[0])
        self._planned, self._planned_rows = planned, rows
        self.stats.plans += 1
        self.stats.chunks += len(chunks)

    def _forget_plan(self) -> None:
        self.serial += 1
        self._planned_rows = _NO_PLAN
        self.stream = self.runtime.stream()

    def pack(self, rows: int) -> None:
        """Queue packing of the first `rows` rows of `slots` into `kv_indices` (capturable)."""
        pack(self.runtime, self.slots, self.counts, self.kv_indptr, self.kv_indices, rows=rows)

    def read_flags(self) -> Flag:
        """Return the flag word; waits for the device."""
        return Flag(int(self.runtime.read(self.flags)))

    def clear_flags(self) -> None:
        """Queue clearing of the flag word."""
        self.runtime.fill(self.flags, 0)
