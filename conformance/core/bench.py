"""The bench: one case's subject with fixed device buffers, run step by step and looked at.

Inputs are written and outputs read through the subject's runtime, so that one with a clock of its
own fits in without touching a test: what the bench waits for, no clock counts.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from conformance.core.blocking import BlockedClock, BlockedGpu, warm_up
from conformance.core.case import Case, Step, valid_count
from conformance.core.inputs import StepInputs, World
from conformance.core.population import config_of
from conformance.core.schedule import ScheduleReader
from conformance.core.subject import HostBatch, Observation, Subject, Tier, Unobservable
from golden import Golden, Roundings, Verdict, compare

UNWRITTEN = 0x7FC5
"""Bits of an output element before anything is written: a NaN of BF16, and one of FP16."""

WORST = 1e9
"""A split that no row reaches: every row is one piece."""


@dataclass(frozen=True)
class Frame:
    """A step with device buffers of its own, so that many can be queued one behind the other."""

    step: Step
    batch: HostBatch
    q_nope: Tensor
    q_pe: Tensor
    topk: Tensor
    out: Tensor


class Bench:
    """A subject constructed for a case on a tier.

    steps: every step that will be run, so that the world has room for them. storage: allocates
    the cache (bytes in all, leading bytes that may stay unmapped; uint8 on the device), the
    runtime by default; page, hole: as of World. changes: fields of the configuration to replace.
    clock: on the twin, run a subject that can on a device of its own time; the case is its seed.
    latest: the step whose lengths were written last. given_cache: the bytes that it was given.
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
        clock: bool = False,
        changes: dict[str, Any] | None = None,
    ) -> None:
        self.case, self.tier, self._interpret = case, tier, interpret
        self.latest: Step | None = None
        self._elsewhere: tuple[Tensor, Tensor | None] | None = None
        config = config_of(case, steps, full_width=tier.full_width)
        rows = config.max_tokens  # of the bench's buffers; the subject's may be larger
        self.config = replace(config, **(changes or {}))
        needed = "fp8" if self.config.fp8 else "bf16"
        needed = "fp8_group" if self.config.group_scales else needed
        if needed not in subject.capabilities:
            raise Unobservable(f"capability {needed}")
        self.clock: Any = None
        more: dict[str, Any] = {}
        if clock and tier.clock is not None and "clock" in subject.capabilities:
            self.clock = tier.clock(case.number, "interpret" if interpret else "torch")
            more["clock"] = self.clock
        self.instance = subject.construct(self.config, tier, interpret=interpret, wrap=wrap, **more)
        self.runtime = runtime = self.instance.runtime
        self.world = World(case, self.config, steps, str(runtime.device), page=page, hole=hole)
        self.rows, heads = rows, self.config.num_heads
        ckv, kpe = self.config.head_dim_ckv, self.config.head_dim_kpe
        requests, bf16, int32 = self.world.requests, torch.bfloat16, torch.int32
        nbytes = self.world.raw.numel()
        unmapped = self.world.hole_bytes if storage else 0
        self._storage = (
            storage(nbytes, unmapped) if storage else runtime.empty((nbytes,), torch.uint8)
        )
        per_tensor = self.config.fp8 and not self.config.group_scales
        checks = "scale-check" in subject.capabilities and per_tensor
        self._scale = runtime.empty((1,), torch.float32) if checks else None
        self._group_scales: Tensor | None = None
        if self.world.scales is not None:
            self._group_scales = runtime.empty(tuple(self.world.scales.shape), torch.float32)
            self.set_group_scales(self.world.scales)
        self._q_nope = runtime.empty((rows, heads, ckv), bf16)
        self._q_pe = runtime.empty((rows, heads, kpe), bf16)
        self._topk = runtime.empty((rows, self.config.geometry.topk_width), int32)
        self._out = runtime.empty((rows, heads, ckv), bf16)
        self._starts = runtime.empty((requests + 1,), int32)
        self._seq_lens = runtime.empty((requests,), int32)
        self._table = runtime.empty(tuple(self.world.block_table.shape), int32)
        self.given_cache = self.world.raw
        self.write(self._storage[unmapped:], self.world.raw[unmapped:])
        self.write(self._table, self.world.block_table)
        self.set_scale(self.config.k_scale)
        self.clear_output()

    def quietly(self) -> AbstractContextManager[Any]:
        """Return a context in which no clock counts waits: they are the suite's."""
        quiet: AbstractContextManager[Any] = (
            nullcontext() if self.clock is None else self.clock.unobserved()
        )
        return quiet

    def write(self, dst: Tensor, src: Tensor) -> None:
        """Fill device memory."""
        with self.quietly():
            self.runtime.write(dst, src)

    def read(self, src: Tensor) -> Tensor:
        """Return a host copy of device memory."""
        with self.quietly():
            host: Tensor = self.runtime.read(src)
        return host

    def set_scale(self, value: float) -> None:
        """Change the cache's scale on the device, for subjects that check it."""
        if self._scale is not None:
            self.write(self._scale, torch.tensor([value], dtype=torch.float32))

    def set_group_scales(self, scales: Tensor) -> None:
        """Replace what the subject is given as group scales, not what golden reads."""
        self.write(self._of_groups(), scales)

    def _of_groups(self) -> Tensor:
        assert self._group_scales is not None, f"{self.case.id}: a cache without group scales"
        return self._group_scales

    def aside(self) -> AbstractContextManager[Any]:
        """Return a context in which work is queued on another stream."""
        if self.tier.native is None:
            return torch.cuda.stream(torch.cuda.Stream())
        aside = getattr(self.runtime, "aside", None)
        if aside is None:
            raise Unobservable("streams")
        other: AbstractContextManager[Any] = aside()
        return other

    @property
    def can_block(self) -> bool:
        """Whether a device can be held: not where a subject runs at once on the twin."""
        return self.clock is not None or self.tier.native is None

    def block(self) -> BlockedGpu | BlockedClock:
        """Hold the device from here on; needs `can_block`."""
        if self.clock is not None:
            return BlockedClock(self.clock)
        if self.tier.native is not None:
            raise TypeError("a device that runs at once cannot be held: construct with a clock")
        warm_up()
        return BlockedGpu()

    @contextmanager
    def held(self) -> Iterator[None]:
        """A context in which the device is held, where it can be: work queues up behind it."""
        self.runtime.synchronize()
        if not self.can_block:
            yield
            return
        blocked = self.block()
        try:
            yield
        finally:
            blocked.release()

    def clear_output(self) -> None:
        """Fill the whole output buffer with a NaN that nothing computes, so that any write shows.

        An engine that writes another 16-bit format first finds a NaN too, but leaves other bits.
        """
        bits = self._out.view(torch.int16)
        self.write(bits, torch.full_like(bits, UNWRITTEN))

    def written(self, out: Tensor) -> Tensor:
        """Return which elements of an output were written since `clear_output`."""
        return out.view(torch.int16) != UNWRITTEN

    def set_cache(self, raw: Tensor) -> None:
        """Replace the cache's bytes."""
        self.given_cache = raw
        self.write(self._storage, raw)

    def cache_bytes(self) -> Tensor:
        """Return a host copy of the cache's bytes as they are on the device."""
        return self.read(self._storage)

    def group_scales(self) -> Tensor:
        """Return a host copy of the group scales as they are on the device."""
        return self.read(self._of_groups()).clone()

    def write_cache(
        self, ckv: Tensor, kpe: Tensor, slots: Tensor, k_scale: float, *, grouped: bool
    ) -> None:
        """Have the subject quantize tokens into the cache; as `Instance.write_cache`."""
        given = []
        for host in (ckv, kpe, slots):
            given.append(self.runtime.empty(tuple(host.shape), host.dtype))
            self.write(given[-1], host)
        ckv, kpe, slots = given
        cache, scales = self._given_cache()
        assert scales is not None or not grouped, f"{self.case.id}: a cache without group scales"
        self.instance.write_cache(ckv, kpe, cache, slots, k_scale, scales if grouped else None)

    def set_table(self, table: Tensor) -> None:
        """Replace the block table that the subject is given, not the one that is true."""
        self.write(self._table, table)

    def relocate(self, cache: Tensor, table: Tensor, scales: Tensor | None) -> None:
        """Give the subject another cache from here on, which holds what golden reads.

        cache [num_blocks, block_size, head_dim]; table: finds the world's blocks in it; scales:
        its group scales, where it has them.
        """
        self._elsewhere = (cache, scales)
        self.set_table(table)

    def come_back(self) -> None:
        """Give the subject the bench's own cache again; undoes `relocate`."""
        self._elsewhere = None
        self.set_table(self.world.block_table)

    def batch(self, step: Step, *, host_knows: bool = True) -> HostBatch:
        """Write a step's lengths to the device. host_knows False: without upper bounds."""
        return self._batch(step, self._starts, self._seq_lens, host_knows=host_knows)

    def _batch(
        self,
        step: Step,
        starts: Tensor,
        seq_lens: Tensor,
        *,
        host_knows: bool = True,
        table: Tensor | None = None,
    ) -> HostBatch:
        count, self.latest = len(step.q_lens), step
        table = self._table if table is None else table
        self.write(starts[: count + 1], _starts(step.true_q_lens))
        self.write(seq_lens[:count], torch.tensor(step.seq_lens, dtype=torch.int32))
        bounds = None
        if host_knows and step.bounds is not None:
            bounds = torch.tensor(step.bounds, dtype=torch.int32)
        return HostBatch(
            query_start_loc_cpu=_starts(step.q_lens),
            query_start_loc=starts[: count + 1],
            seq_lens=seq_lens[:count],
            seq_lens_cpu_upper_bound=bounds,
            block_table=table[:count],
            num_padded_tokens=step.padded_rows,
            adaptive=step.device_q_lens is not None,
        )

    def own_batch(self, step: Step, table: Tensor | None = None) -> HostBatch:
        """Put a step's lengths, and perhaps a block table, into buffers of its own."""
        count, like = len(step.q_lens), self.runtime.empty
        own = None
        if table is not None:
            own = like(tuple(table.shape), torch.int32)
            self.write(own, table)
        starts, seq_lens = like((count + 1,), torch.int32), like((count,), torch.int32)
        return self._batch(step, starts, seq_lens, table=own)

    def frame(self, step: Step, inputs: StepInputs, table: Tensor | None = None) -> Frame:
        """Put a step's batch and inputs into buffers of its own on the device."""
        rows, like = step.padded_rows, self.runtime.empty
        batch = self.own_batch(step, table)
        q_nope, q_pe, topk = (
            like(tuple(given.shape), given.dtype)
            for given in (inputs.q_nope, inputs.q_pe, inputs.topk)
        )
        self.write(q_nope, inputs.q_nope)
        self.write(q_pe, inputs.q_pe)
        self.write(topk, inputs.topk)
        out = like((rows, *self._out.shape[1:]), torch.bfloat16)
        self.write(out.view(torch.int16), torch.full(out.shape, UNWRITTEN, dtype=torch.int16))
        return Frame(step, batch, q_nope, q_pe, topk, out)

    def queue(self, frame: Frame) -> None:
        """Build and forward a frame, waiting for nothing."""
        self.launch(frame, self.instance.build(frame.batch))

    def launch(self, frame: Frame, metadata: Any) -> None:
        """Queue the forward of a frame that has been built."""
        self._forward(frame.q_nope, frame.q_pe, frame.topk, metadata, frame.out)

    def layer(self, k_scale: float) -> "Bench":
        """Return a second layer's bench: the same instance and cache bytes, another scale."""
        other = copy(self)
        other.config = replace(self.config, k_scale=k_scale)
        other.world = copy(self.world)
        other.world.config = other.config
        if self._scale is not None:
            other._scale = self.runtime.empty((1,), torch.float32)
            other.set_scale(k_scale)
        return other

    def later(self, function: Callable[..., Any], *args: Any) -> None:
        """Queue device work of the engine around the subject: plain torch on its tensors."""
        if self.clock is not None:
            self.clock.enqueue(lambda: function(*args))
        else:
            function(*args)

    def build(self, step: Step, *, host_knows: bool = True) -> Any:
        """Write a step's lengths and plan it; return the subject's metadata."""
        return self.instance.build(self.batch(step, host_knows=host_knows))

    def load(self, inputs: StepInputs, topk: Tensor | None = None) -> None:
        """Write a step's queries and selections to the device."""
        rows = inputs.topk.shape[0]
        self.write(self._q_nope[:rows], inputs.q_nope)
        self.write(self._q_pe[:rows], inputs.q_pe)
        self.write(self._topk[:rows], inputs.topk if topk is None else topk)

    def forward(self, metadata: Any, rows: int, *, k_scale: float | None = None) -> None:
        """Queue a forward over the first `rows` rows of the buffers, with the true scale or not."""
        q_nope, q_pe, topk = self._q_nope[:rows], self._q_pe[:rows], self._topk[:rows]
        self._forward(q_nope, q_pe, topk, metadata, self._out[:rows], k_scale)

    def _forward(
        self,
        q_nope: Tensor,
        q_pe: Tensor,
        topk: Tensor,
        metadata: Any,
        out: Tensor,
        k_scale: float | None = None,
    ) -> None:
        true_scale = self.config.k_scale if self.config.fp8 else None
        more = {} if self._scale is None else {"device_k_scale": self._scale}
        cache, scales = self._given_cache()
        if scales is not None:
            more["ckv_scale_arr"] = scales
        self.instance.forward(
            q_nope,
            q_pe,
            cache,
            topk,
            metadata,
            true_scale if k_scale is None else k_scale,
            out,
            **more,
        )

    def _given_cache(self) -> tuple[Tensor, Tensor | None]:
        """Return the cache and the group scales that forwards and writes get."""
        if self._elsewhere is not None:
            return self._elsewhere
        scales = None if self._group_scales is None else self.world.flat(self._group_scales)
        return self.world.cache(self._storage), scales

    def given(self) -> dict[str, Tensor]:
        """Return host copies of all that the subject is given to read, by name."""
        buffers = {
            "kv_cache": self._storage,
            "q_nope": self._q_nope.view(torch.int16),
            "q_pe": self._q_pe.view(torch.int16),
            "topk_indices": self._topk,
            "query_start_loc": self._starts,
            "seq_lens": self._seq_lens,
            "block_table": self._table,
        }
        return {name: self.read(buffer).clone() for name, buffer in buffers.items()}

    def output_buffer(self, rows: int) -> Tensor:
        """Return the output's first `rows` rows on the device."""
        buffer: Tensor = self._out[:rows]
        return buffer

    def output(self, rows: int | None = None) -> Tensor:
        """Return the output's first `rows` rows (all by default) on the host."""
        return self.read(self._out[: self.rows if rows is None else rows])

    def run(
        self, step: Step, inputs: StepInputs, *, host_knows: bool = True, topk: Tensor | None = None
    ) -> Tensor:
        """Build and forward a step from a NaN-filled output; return its live rows."""
        if self.tier.log is not None:
            self.tier.log.clear()
        self.clear_output()
        metadata = self.build(step, host_knows=host_knows)
        self.load(inputs, topk)
        self.forward(metadata, step.padded_rows)
        return self.output(step.rows)

    def observe(self) -> Observation:
        """Return what the subject shows now."""
        with self.quietly():
            seen: Observation = self.instance.observe()
        return seen

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
        roundings = Roundings.of(self.config.fmt, self.config.k_scale)
        if self._interpret and self.config.fmt == "e4m3":
            # Triton's interpreter (3.9) cuts float32 off where it makes BF16 of it.
            roundings = replace(roundings, out_unit=roundings.out_unit + 2.0**-8)
        return compare(observed.to(golden.out.device), golden, roundings)


def _starts(q_lens: Sequence[int]) -> Tensor:
    starts = torch.zeros(len(q_lens) + 1, dtype=torch.int32)
    starts[1:] = torch.tensor(q_lens).cumsum(0)
    return starts
