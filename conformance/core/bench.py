"""The bench: one case's subject with fixed device buffers, run step by step and looked at.

Inputs are written and outputs read through the subject's runtime, so that one with a clock of its
own fits in without touching a test.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from conformance.core.case import Case, Step, valid_count
from conformance.core.inputs import StepInputs, World
from conformance.core.population import config_of
from conformance.core.schedule import ScheduleReader
from conformance.core.subject import HostBatch, Observation, Subject, Tier, Unobservable
from golden import Golden, Roundings, Verdict, compare

WORST = 1e9
"""A split that no row reaches: every row is one piece."""


class Bench:
    """A subject constructed for a case on a tier.

    steps: every step that will be run, so that the world has room for them. storage: allocates
    the cache (bytes in all, leading bytes that may stay unmapped; uint8 on the device), the
    runtime by default; page, hole: as of World.
    """

    def __init__(
        self,
        case: Case,
        subject: Subject,
        tier: Tier,
        steps: Sequence[Step],
        *,
        interpret: bool = False,
        wrap: Callable[[Any], Any] | None = None,
        storage: Callable[[int, int], Tensor] | None = None,
        page: int = 1,
        hole: bool = False,
    ) -> None:
        self.case, self.tier = case, tier
        self.config = config_of(case, steps, full_width=tier.full_width)
        needed = "fp8" if self.config.fp8 else "bf16"
        if needed not in subject.capabilities:
            raise Unobservable(f"capability {needed}")
        self.instance = subject.construct(self.config, tier, interpret=interpret, wrap=wrap)
        self.runtime = runtime = self.instance.runtime
        self.world = World(case, self.config, steps, str(runtime.device), page=page, hole=hole)
        rows, heads = self.config.max_tokens, self.config.num_heads
        ckv, kpe = self.config.head_dim_ckv, self.config.head_dim_kpe
        requests, bf16, int32 = self.world.requests, torch.bfloat16, torch.int32
        nbytes = self.world.raw.numel()
        unmapped = self.world.hole_bytes if storage else 0
        self._storage = (
            storage(nbytes, unmapped) if storage else runtime.empty((nbytes,), torch.uint8)
        )
        self._q_nope = runtime.empty((rows, heads, ckv), bf16)
        self._q_pe = runtime.empty((rows, heads, kpe), bf16)
        self._topk = runtime.empty((rows, self.config.geometry.topk_width), int32)
        self._out = runtime.empty((rows, heads, ckv), bf16)
        self._starts = runtime.empty((requests + 1,), int32)
        self._seq_lens = runtime.empty((requests,), int32)
        self._table = runtime.empty(tuple(self.world.block_table.shape), int32)
        runtime.write(self._storage[unmapped:], self.world.raw[unmapped:])
        runtime.write(self._table, self.world.block_table)
        self.set_output(float("nan"))

    def set_output(self, value: float) -> None:
        """Fill the whole output buffer."""
        self.runtime.write(self._out, torch.full(self._out.shape, value, dtype=torch.bfloat16))

    def set_cache(self, raw: Tensor) -> None:
        """Replace the cache's bytes."""
        self.runtime.write(self._storage, raw)

    def set_table(self, table: Tensor) -> None:
        """Replace the block table that the subject is given, not the one that is true."""
        self.runtime.write(self._table, table)

    def batch(self, step: Step, *, host_knows: bool = True) -> HostBatch:
        """Write a step's lengths to the device. host_knows False: without upper bounds."""
        starts, count = _starts(step.q_lens), len(step.q_lens)
        self.runtime.write(self._starts[: count + 1], _starts(step.true_q_lens))
        self.runtime.write(self._seq_lens[:count], torch.tensor(step.seq_lens, dtype=torch.int32))
        bounds = None
        if host_knows and step.bounds is not None:
            bounds = torch.tensor(step.bounds, dtype=torch.int32)
        return HostBatch(
            query_start_loc_cpu=starts,
            query_start_loc=self._starts[: count + 1],
            seq_lens=self._seq_lens[:count],
            seq_lens_cpu_upper_bound=bounds,
            block_table=self._table[:count],
            num_padded_tokens=step.padded_rows,
            adaptive=step.device_q_lens is not None,
        )

    def build(self, step: Step, *, host_knows: bool = True) -> Any:
        """Write a step's lengths and plan it; return the subject's metadata."""
        return self.instance.build(self.batch(step, host_knows=host_knows))

    def load(self, inputs: StepInputs, topk: Tensor | None = None) -> None:
        """Write a step's queries and selections to the device."""
        rows = inputs.topk.shape[0]
        self.runtime.write(self._q_nope[:rows], inputs.q_nope)
        self.runtime.write(self._q_pe[:rows], inputs.q_pe)
        self.runtime.write(self._topk[:rows], inputs.topk if topk is None else topk)

    def forward(self, metadata: Any, rows: int) -> None:
        """Queue a forward over the first `rows` rows of the buffers."""
        self.instance.forward(
            self._q_nope[:rows],
            self._q_pe[:rows],
            self.world.cache(self._storage),
            self._topk[:rows],
            metadata,
            self.config.k_scale if self.config.fp8 else None,
            self._out[:rows],
        )

    def output_buffer(self, rows: int) -> Tensor:
        """Return the output's first `rows` rows on the device."""
        buffer: Tensor = self._out[:rows]
        return buffer

    def output(self, rows: int | None = None) -> Tensor:
        """Return the output's first `rows` rows (all by default) on the host."""
        count = self.config.max_tokens if rows is None else rows
        host: Tensor = self.runtime.read(self._out[:count])
        return host

    def run(
        self, step: Step, inputs: StepInputs, *, host_knows: bool = True, topk: Tensor | None = None
    ) -> Tensor:
        """Build and forward a step from a NaN-filled output; return its live rows."""
        if self.tier.log is not None:
            self.tier.log.clear()
        self.set_output(float("nan"))
        metadata = self.build(step, host_knows=host_knows)
        self.load(inputs, topk)
        self.forward(metadata, step.padded_rows)
        return self.output(step.rows)

    def observe(self) -> Observation:
        """Return what the subject shows now."""
        return self.instance.observe()

    def schedule(self, seen: Observation | None = None) -> ScheduleReader:
        """Return the schedule as it stands."""
        seen = self.observe() if seen is None else seen
        info, workspace = seen.need("plan_info"), seen.need("int_workspace")
        return ScheduleReader(info, workspace, self.runtime.num_sms)

    def valid(self, step: Step) -> list[int]:
        """Return each live row's valid count."""
        return [valid_count(context, self.config.geometry) for context in step.contexts()]

    def golden(self, step: Step, inputs: StepInputs, **changes: Any) -> Golden:
        """Return the exact answer, with the split that the current schedule makes, if seen."""
        try:
            split = self.schedule().split_limit() or int(WORST)
        except Unobservable:
            split = None
        return self.world.golden(step, inputs, split=split, **changes)

    def judge(self, observed: Tensor, golden: Golden) -> Verdict:
        """Compare with the error model of this case's format."""
        roundings = Roundings.of("e4m3" if self.config.fp8 else "bf16", self.config.k_scale)
        return compare(observed.to(golden.out.device), golden, roundings)


def _starts(q_lens: Sequence[int]) -> Tensor:
    starts = torch.zeros(len(q_lens) + 1, dtype=torch.int32)
    starts[1:] = torch.tensor(q_lens).cumsum(0)
    return starts
