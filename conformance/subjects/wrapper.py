"""One attention group written the way serving engines wrap FlashInfer.

Buffers at fixed addresses, plans from bounds with slack that are reused, device work in plain
torch, FlashInfer called natively. `Style` holds the choices that went wrong elsewhere.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from conformance.core.case import Config
from conformance.core.schedule import FIELDS
from conformance.core.subject import HostBatch, Observation
from conformance.subjects import torch_steps as steps

CAPACITY = 16384
"""Work items of one schedule (FlashInfer 0.6.18 to 0.7.4, scheduler.cuh, MLAPlan)."""

_SLACK = 32
_WORKSPACE_BYTES = 1 << 20
_MOST_EXPONENT = 40
_Q_TILE = 64
_NO_MASK, _PAGE_SIZE = 0, 1


@dataclass(frozen=True)
class Style:
    """What the variants of `upstream` differ in; each default is the sound way."""

    plans_padding: bool = False
    one_staging_block: bool = False
    counts_works: bool = True
    reads_back: bool = False
    pinned_offsets: bool = True
    clamped: tuple[str, ...] = ("kv_end", "kv_len")
    refuses_padding: bool = False
    exact_scale: bool = True
    checks_table: bool = True


@dataclass(frozen=True)
class Metadata:
    """A planned step."""

    num_rows: int
    block_table: Tensor
    prefill_to_mha: bool = False


class Wrapper:
    """One attention group: its buffers, the schedules in them, and FlashInfer's native module."""

    def __init__(
        self, config: Config, style: Style, runtime: Any, load: Callable[[torch.dtype], Any]
    ) -> None:
        self.runtime, self._config, self._style = runtime, config, style
        geometry, rows = config.geometry, config.max_tokens
        self._longest = geometry.index_topk + geometry.index_kpool - 1
        self._out_dtype = torch.float16 if config.fp8 and style.exact_scale else torch.bfloat16
        self._module = load(self._out_dtype)
        # A row is one work item (above 64 heads clusters of two blocks take them all), and splits
        # add at most one for each cluster.
        self._most_rows = CAPACITY - runtime.num_sms if style.counts_works else rows
        self._schedules = [
            (self._bytes(_WORKSPACE_BYTES), self._bytes(_WORKSPACE_BYTES))
            for _ in range(max(-(-rows // self._most_rows), 1))
        ]  # as planned, and as clamped
        partial_rows = 2 * runtime.num_sms * _Q_TILE
        self._float_workspace = self._bytes(partial_rows * (2 * config.head_dim_ckv + 4) + 32)
        self._offsets, self._request, self._context, self._extremes = (
            runtime.zeros((size,), torch.int32) for size in (rows + 1, rows, rows, 2)
        )
        self._live = runtime.zeros((rows,), torch.bool)
        self._indices = runtime.zeros((rows * geometry.topk_width + 1,), torch.int32)
        self._staged = self._staging() if style.one_staging_block else None
        self._info: list[int] = []
        self._native_info: Any = None  # the same as FlashInfer gave it
        self._active = 1
        self._planned: Tensor | None = None  # lengths that later bounds are held against
        self._plans = 0
        self._baked: set[tuple[int, int, int]] = set()  # block tables of captured forwards

    def _bytes(self, size: int) -> Tensor:
        zeros: Tensor = self.runtime.zeros((size,), torch.uint8)
        return zeros

    def _staging(self) -> Tensor:
        block: Tensor = self.runtime.staging((_WORKSPACE_BYTES,), torch.uint8)
        return block

    def build(self, batch: HostBatch) -> Metadata:
        """Plan, or reuse the plan, and clamp; without bounds read exact lengths back first."""
        if self.runtime.capturing():
            raise RuntimeError("a plan during a graph capture")
        table, geometry = batch.block_table, self._config.geometry
        if self._style.checks_table and self._baked - {_place(table)}:
            raise ValueError("block_table has moved since a forward that reads it was captured")
        starts, lengths = batch.query_start_loc_cpu, batch.seq_lens_cpu_upper_bound
        exact = lengths is None
        if lengths is None:
            starts = self.runtime.read(batch.query_start_loc)
            lengths = self.runtime.read(batch.seq_lens)
        contexts = steps.contexts_of(starts, lengths)
        rows = contexts.numel()
        most, padded = self._config.max_tokens, batch.num_padded_tokens
        if max(rows, padded) > most:
            raise ValueError(f"{rows} rows, {padded} padded; max_tokens is {most}")
        if exact:
            self._plan(steps.valid_of(contexts, geometry), batch.num_padded_tokens)
            self._planned = None
        else:
            if batch.adaptive and rows:
                contexts.fill_(int(lengths.max()))
            bounds = contexts.clamp(max=self._longest)
            if not self._covers(bounds):
                planned = (bounds + _SLACK).clamp(max=self._longest)
                self._plan(planned, batch.num_padded_tokens)
                self._planned = planned
        self._queue(
            steps.map_rows,
            *(batch.query_start_loc, batch.seq_lens, rows, self._live),
            *(self._request, self._context),
        )
        at = dict(zip(FIELDS, self._info, strict=bool(self._info)))
        for planned, current in self._schedules[: self._active] if at else ():
            self._queue(
                steps.clamp,
                *(planned, current, self._context, geometry, at, CAPACITY, self._style.clamped),
            )
        return Metadata(rows, table)

    def _queue(self, function: Callable[..., None], *args: Any) -> None:
        """Queue device work; every runtime runs a native function with its arguments as is."""
        self.runtime.native_run(function, *args)

    def _covers(self, bounds: Tensor) -> bool:
        if self._planned is None or self._planned.numel() != bounds.numel():
            return False
        excess = self._planned - bounds
        return bool(((excess >= 0) & (excess <= _SLACK)).all())

    def _plan(self, lengths: Tensor, padded: int) -> None:
        """Plan rows of these lengths, in as many schedules as hold them, and queue the copies."""
        live, runtime = lengths.numel(), self.runtime
        if not live and not self._info:  # a capture needs a plan-info, and no rows give none
            self._plan(torch.ones(1, dtype=torch.int32), 1)
            self._plans = 0
        if self._style.reads_back:
            self._queue(steps.extremes, self._indices[:-1], self._extremes)
            low, high = runtime.read(self._extremes).tolist()
            if low < 0:
                raise ValueError(f"kv_indices from {low} to {high}")
        rows = max(live, padded) if self._style.plans_padding else live
        lengths = pad(lengths.int(), (0, rows - live))
        starts = torch.arange(rows + 1, dtype=torch.int32).clamp(max=live)
        offsets = pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
        self._send(pad(offsets, (0, self._config.max_tokens - rows), value=int(offsets[-1])))
        firsts = range(0, rows, self._most_rows)
        for first, (planned, _) in zip(firsts, self._schedules, strict=False):
            last = min(first + self._most_rows, rows)
            block = self._staging() if self._staged is None else self._staged
            result = runtime.native_plan(
                self._module.plan,
                *(self._float_workspace, planned, block),
                *(starts[first : last + 1], offsets[first : last + 1], lengths[first:last]),
                *(self._config.num_heads, self._config.head_dim_ckv, False),
            )
            if len(result) == 2:  # FlashInfer 0.7: the copy is the caller's
                info, size = result
                runtime.upload(planned[:size], block[:size])
            else:
                info = result
                runtime.retain(block)
            self._native_info, self._info = info, [int(value) for value in info]
        if not rows:  # zeros are an empty schedule, and MLAPlan divides by the number of rows
            runtime.fill(self._schedules[0][0], 0)
        self._active = max(len(firsts), 1)
        self._plans += 1

    def _send(self, offsets: Tensor) -> None:
        if self._style.pinned_offsets:
            block = self.runtime.staging(tuple(offsets.shape), torch.int32)
            self.runtime.upload(self._offsets, block.copy_(offsets))
        elif self._offsets.is_cuda:
            self._offsets.copy_(offsets, non_blocking=True)
        else:
            self.runtime.upload(self._offsets, offsets)

    def forward(
        self,
        q_nope: Tensor,
        q_pe: Tensor,
        kv_cache: Tensor,
        topk_indices: Tensor,
        metadata: Metadata,
        k_scale: float | None,
        out: Tensor,
        device_k_scale: Tensor | None = None,
    ) -> None:
        """Pack the selections and run the schedules; a captured forward runs the first alone."""
        config, rows, table = self._config, q_nope.shape[0], metadata.block_table
        if self._style.refuses_padding and rows != metadata.num_rows:
            raise ValueError(f"q has {rows} rows, the plan has {metadata.num_rows}")
        kernel_scale, rest = self._scales(k_scale)
        active = self._active
        if self.runtime.capturing():
            if rows > self._most_rows:
                raise ValueError(f"a capture of {rows} rows; a schedule has {CAPACITY} work items")
            active = 1
            self._baked.add(_place(table))
        blocks, block_size, width = kv_cache.shape
        stride = kv_cache.stride(0) // width
        typed = kv_cache.view(torch.float8_e4m3fn if config.fp8 else torch.bfloat16)
        flat = typed.as_strided(((blocks - 1) * stride + block_size, 1, width), (width, width, 1))
        self._queue(
            steps.pack,
            *(topk_indices, steps.unbounded(table), self._request, self._context),
            *(self._offsets, self._indices, blocks, block_size, stride),
        )
        at = dict(zip(FIELDS, self._info, strict=bool(self._info)))
        for _, current in self._schedules[:active] if at else ():
            if self.runtime.capturing():
                sizes = (at["num_blks_y"], self.runtime.num_sms)
                self._queue(steps.stop, self._live, rows, current, at, *sizes)
            self._queue(
                self._module.run,
                *(self._float_workspace, current, self._native_info, q_nope, q_pe),
                *(flat[..., : config.head_dim_ckv], flat[..., config.head_dim_ckv :]),
                *(self._indices, out.view(self._out_dtype), None, _NO_MASK, config.num_heads),
                *(_PAGE_SIZE, config.sm_scale * rest, False, kernel_scale, kernel_scale, None),
            )
        if self._out_dtype != out.dtype:
            self._queue(steps.rescale, out, self._live, rest)

    def _scales(self, k_scale: float | None) -> tuple[float, float]:
        """Return what the kernel is given and what is left for logits and output.

        The kernel rounds a scale to BF16 (mla_hopper.cuh); powers of two pass through.
        """
        if not self._config.fp8:
            return 1.0, 1.0
        if k_scale is None or not 2.0**-_MOST_EXPONENT <= k_scale <= 2.0**_MOST_EXPONENT:
            raise ValueError(f"k_scale {k_scale}: 2**-{_MOST_EXPONENT} to 2**{_MOST_EXPONENT}")
        if not self._style.exact_scale:
            return k_scale, 1.0
        # As far as the kernel's output lies well within FP16.
        power = 2.0 ** min(max(math.frexp(k_scale)[1] - 1, -8), 7)
        return power, k_scale / power

    def observe(self) -> Observation:
        """Show the first schedule and what was packed for it."""
        read = self.runtime.read
        named = {
            "float_workspace": self._float_workspace,
            "kv_indptr": self._offsets,
            "kv_indices": self._indices,
            "request": self._request,
            "context": self._context,
            "live": self._live,
            "schedule": self._schedules[0][1],
        }
        return Observation(
            plan_info=self._info,
            int_workspace=read(self._schedules[0][1]),
            kv_indptr=read(self._offsets),
            kv_indices=read(self._indices),
            contexts=read(self._context),
            plans=self._plans,
            addresses={name: buffer.data_ptr() for name, buffer in named.items()},
        )


def _place(table: Tensor) -> tuple[int, int, int]:
    """Where and how a captured forward reads a block table: address, row stride, width."""
    return table.data_ptr(), table.stride(0), table.shape[1]
