"""A subject that calls FlashInfer's own wrapper the way serving engines do, in plain torch.

One wrapper in graph mode with buffers for max_tokens rows; each plan has all of them, rows behind
the live ones empty; `run` is given the rows of the graph, which are more than are live; work items
end on the device at what their rows see, in the schedule that the wrapper has planned. As engines
do, it hands over an FP8 cache's scale as it is, which the kernel rounds to BF16.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

import smla
from conformance.core.case import Config
from conformance.core.schedule import FIELDS
from conformance.core.subject import HostBatch, Observation, Tier
from conformance.subjects import torch_steps as steps
from conformance.subjects.upstream import without_kernel
from conformance.twin.eager import Eager

CAPACITY = 16384
"""Work items of one schedule, which a wrapper's plan holds one of."""

_SLACK = 32
_TILE = 64  # heads of a run: with more, the launch grid follows how full a padded batch is
_CLAMPED = ("kv_end", "kv_len")


@dataclass(frozen=True)
class Metadata:
    """A planned step."""

    num_rows: int
    block_table: Tensor
    prefill_to_mha: bool = False


class ThroughWrapper:
    """Constructs it on the tier's FlashInfer: simulated, the one on the path, or on a GPU."""

    name = f"{__name__}:ThroughWrapper"
    capabilities = frozenset({"bf16", "fp8", "capture"})

    def refusals(self, config: Config, capability: tuple[int, int]) -> list[str]:
        """Return what FlashInfer has no kernel for."""
        return without_kernel(config, capability)

    def construct(
        self,
        config: Config,
        tier: Tier,
        *,
        interpret: bool,
        wrap: Callable[[Any], Any] | None = None,
        clock: Any = None,
    ) -> Instance:
        """Return an instance; its device work is plain torch, which nothing interprets."""
        if tier.native is None:
            return Instance(config, smla.CudaRuntime(), {}, nullcontext)
        device = Eager(tier.native().num_sms)
        assert tier.package is not None, "a tier with a simulated module has its package"
        return Instance(config, device, tier.package(device), device.active)


class Instance:
    """One attention group: reserved buffers, and a wrapper over them."""

    def __init__(
        self,
        config: Config,
        runtime: Any,
        simulated: dict[str, Any],
        active: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.runtime, self._config, self._active = runtime, config, active
        geometry, rows = config.geometry, config.max_tokens
        self._kv_type = torch.float8_e4m3fn if config.fp8 else torch.bfloat16
        self._baked: set[int] = set()  # block tables of captured forwards
        self._plans = 0
        self._planned: Tensor | None = None  # lengths that later bounds are held against
        self._heads = min(config.num_heads, _TILE)
        self._longest = geometry.index_topk + geometry.index_kpool - 1
        self._request, self._context, self._offsets, starts, lengths = (
            runtime.zeros((size,), torch.int32) for size in (rows, rows, rows + 1, rows + 1, rows)
        )
        self._live = runtime.zeros((rows,), torch.bool)
        self._indices = runtime.zeros((rows * geometry.topk_width + 1,), torch.int32)
        partial_rows = 2 * runtime.num_sms * _TILE
        size = partial_rows * (2 * config.head_dim_ckv + 4) + 32
        self._workspace = runtime.zeros((size,), torch.uint8)
        mla = simulated.get("flashinfer.mla")
        with self._inside():
            wrapper = (mla or import_module("flashinfer.mla")).BatchMLAPagedAttentionWrapper
            self._wrapper = wrapper(
                self._workspace,
                use_cuda_graph=True,
                qo_indptr=starts,
                kv_indptr=self._offsets,
                kv_indices=self._indices,
                kv_len_arr=lengths,
                backend="fa3",
            )
            # From the second plan on the wrapper keeps its schedule where a graph may read it.
            for _ in range(2):
                self._plan(torch.zeros(0, dtype=torch.int32))
        self._plans = 0

    @contextmanager
    def _inside(self) -> Iterator[None]:
        with warnings.catch_warnings(), self._active():
            warnings.simplefilter("ignore", DeprecationWarning)  # flat tensors, as engines give
            yield

    def _queue(self, function: Callable[..., None], *args: Any) -> None:
        if isinstance(self.runtime, Eager):
            self.runtime.launch(lambda: function(*args))
        else:
            function(*args)

    def _plan(self, planned: Tensor) -> None:
        """Plan lengths of live rows, all others of the reserved ones empty."""
        rows, config = planned.numel(), self._config
        most = config.max_tokens
        lengths = pad(planned.int(), (0, most - rows))
        offsets = pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
        self._wrapper.plan(
            torch.arange(most + 1, dtype=torch.int32).clamp(max=rows),
            offsets,
            self._indices[: max(int(offsets[-1]), 1)],
            lengths,
            self._heads,
            config.head_dim_ckv,
            config.head_dim_kpe,
            1,
            False,
            config.sm_scale,
            q_data_type=torch.bfloat16,
            kv_data_type=self._kv_type,
        )
        wrapper = self._wrapper
        owner = getattr(wrapper, "_planned_backend", wrapper)
        self._info = dict(zip(FIELDS, (int(x) for x in wrapper._plan_info), strict=True))
        whole = owner._int_workspace_buffer.view(torch.uint8)
        self._schedule = whole[: self._info["work_indptr"] + 4 * CAPACITY]
        self._saved = self._schedule.clone()
        self._plans += 1

    def build(self, batch: HostBatch) -> Metadata:
        """Plan, or reuse the plan, and clamp; without bounds read exact lengths back first."""
        if self.runtime.capturing():
            raise RuntimeError("a plan during a graph capture")
        if self._baked - {batch.block_table.data_ptr()}:
            raise ValueError("block_table has moved since a forward that reads it was captured")
        config, read = self._config, self.runtime.read
        starts, lengths = batch.query_start_loc_cpu, batch.seq_lens_cpu_upper_bound
        exact = lengths is None
        if lengths is None:
            starts, lengths = read(batch.query_start_loc), read(batch.seq_lens)
        contexts = steps.contexts_of(starts, lengths)
        rows = contexts.numel()
        if max(rows, batch.num_padded_tokens) > config.max_tokens:
            raise ValueError(f"{rows} rows; max_tokens is {config.max_tokens}")
        if rows > CAPACITY - self.runtime.num_sms:
            raise ValueError(f"{rows} rows: a schedule holds {CAPACITY} work items")
        with self._inside():
            if exact:
                self._plan(steps.valid_of(contexts, config.geometry))
                self._planned = None
            else:
                if batch.adaptive and rows:
                    contexts.fill_(int(lengths.max()))
                bounds = contexts.clamp(max=self._longest)
                if not self._covers(bounds):
                    self._planned = (bounds + _SLACK).clamp(max=self._longest)
                    self._plan(self._planned)
            at = (batch.query_start_loc, batch.seq_lens, rows)
            self._queue(steps.map_rows, *at, self._live, self._request, self._context)
            schedules = (self._saved, self._schedule, self._context, config.geometry)
            self._queue(steps.clamp, *schedules, self._info, CAPACITY, _CLAMPED)
        return Metadata(rows, batch.block_table)

    def _covers(self, bounds: Tensor) -> bool:
        if self._planned is None or self._planned.numel() != bounds.numel():
            return False
        excess = self._planned - bounds
        return bool(((excess >= 0) & (excess <= _SLACK)).all())

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
        """Pack the selections and run; q may have more rows than are live."""
        blocks, block_size, width = kv_cache.shape
        stride, ckv = kv_cache.stride(0) // width, self._config.head_dim_ckv
        rows = (blocks - 1) * stride + block_size
        flat = kv_cache.view(self._kv_type).as_strided((rows, 1, width), (width, width, 1))
        scales = {"ckv_scale": k_scale, "kpe_scale": k_scale} if self._config.fp8 else {}
        with self._inside():
            if self.runtime.capturing():
                self._baked.add(metadata.block_table.data_ptr())
                sizes = (self._info["num_blks_y"], self.runtime.num_sms)
                given = (self._live, q_nope.shape[0], self._schedule, self._info)
                self._queue(steps.stop, *given, *sizes)
            table = steps.unbounded(metadata.block_table)
            where = (self._request, self._context, self._offsets, self._indices)
            self._queue(steps.pack, topk_indices, table, *where, blocks, block_size, stride)
            firsts = {0, self._config.num_heads - self._heads}
            for first in sorted(firsts):
                of = slice(first, first + self._heads)
                self._wrapper.run(
                    *(q_nope[:, of], q_pe[:, of], flat[..., :ckv], flat[..., ckv:]),
                    out=out[:, of],
                    **scales,
                )

    def observe(self) -> Observation:
        """Show what was packed, and the schedule where it is that of all heads."""
        whole = self._heads == self._config.num_heads
        read, waits = self.runtime.read, getattr(self.runtime, "waits", None)
        named = {
            "float_workspace": self._workspace,
            "int_workspace": self._schedule,
            "kv_indptr": self._offsets,
            "kv_indices": self._indices,
            "request": self._request,
            "context": self._context,
        }
        return Observation(
            plan_info=list(self._info.values()) if whole else None,
            int_workspace=read(self._schedule) if whole else None,
            kv_indptr=read(self._offsets),
            kv_indices=read(self._indices),
            contexts=read(self._context),
            plans=self._plans,
            addresses={name: buffer.data_ptr() for name, buffer in named.items()},
            waits=None if waits is None else len(waits),
        )
