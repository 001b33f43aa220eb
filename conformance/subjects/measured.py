"""smla taken apart for the benchmark: builds, kernels and memory of one backend, each by itself."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

import smla
from conformance.bench.shape import Call, NativePlan, Shape
from conformance.bench.watch import Spent, watch
from smla.engines.flashinfer.compat import InstalledFlashInfer, NativeSource, complete, planned
from smla.kernels.convert import convert
from smla.kernels.rescale import rescale
from smla.kernels.row_map import row_map
from smla.kv_cache import FlatCache, flatten
from smla.scale import KVScale

_BLOCK = 64
_K_SCALE = 0.375  # no power of two, as an FP8 cache's scale is
_FILLS = (0xA5, 0x5A)
_WATCHED = {
    "staging": "staging",
    "native_plan": "native planner",
    "upload": "upload",
    "retain": "upload",
    "launch": "launches",
}
"""Methods of the runtime, and what their time is called."""


def factory(native: Callable[[], Any] | None = None) -> Callable[[Shape], "MeasuredSmla"]:
    """What constructs smla for a shape, on one runtime.

    native: makes a simulated FlashInfer module, to run on the CPU; None for the installed
    FlashInfer on the current GPU.
    """
    if native is None:
        gpu, installed = smla.CudaRuntime(), InstalledFlashInfer()
        return lambda shape: MeasuredSmla(shape, gpu, installed)
    cpu, simulated = smla.CpuRuntime(), Simulated(native)
    return lambda shape: MeasuredSmla(shape, cpu, simulated)


class Simulated:
    """A native source whose modules are a simulated FlashInfer."""

    version = "simulated"
    head_dims_ckv: frozenset[int] | None = None

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def load(self, config: smla.SparseMLAConfig) -> Any:
        return self._make()


@dataclass(frozen=True)
class _World:
    """What a forward reads and writes.

    topk: the selection of rows as long as the longest, as an indexer leaves it. topk_of_any: one
    with valid entries enough for a row of any length, and with too many for some.
    """

    q_nope: Tensor
    q_pe: Tensor
    cache: Tensor
    flat: FlatCache
    topk: Tensor
    topk_of_any: Tensor
    out: Tensor


class MeasuredSmla:
    """One backend with one plan state; see `conformance.bench.shape.Parts`."""

    def __init__(self, shape: Shape, runtime: smla.Runtime, source: NativeSource) -> None:
        self.shape, self.runtime = shape, runtime
        self.config = smla.SparseMLAConfig(
            num_heads=shape.num_heads,
            sm_scale=shape.head_dim_ckv**-0.5,
            index_topk=shape.index_topk,
            index_kpool=shape.index_kpool,
            topk_width=shape.topk_width,
            max_tokens=shape.max_tokens,
            head_dim_ckv=shape.head_dim_ckv,
            kv_dtype=torch.float8_e4m3fn if shape.fp8 else torch.bfloat16,
        )
        self.backend = smla.SparseMLABackend(self.config, runtime=runtime, source=source)
        self._source = source

    @cached_property
    def builder(self) -> smla.SparseMLABuilder:
        """The builder, and with it the plan state."""
        return self.backend.builder()

    @property
    def state(self) -> smla.PlanState:
        """The builder's plan state."""
        return self.builder.state

    def allocate(self) -> None:
        _ = self.builder

    def batch(self, contexts: Sequence[int], *, known: bool = True) -> smla.BatchLayout:
        rows = len(contexts)
        lengths = torch.tensor(contexts, dtype=torch.int32)
        starts = torch.arange(rows + 1, dtype=torch.int32)
        return smla.BatchLayout(
            query_start_loc_cpu=starts,
            query_start_loc=self._on_device(starts),
            seq_lens=self._on_device(lengths),
            block_table=self._table[:rows],
            seq_lens_cpu_upper_bound=lengths if known else None,
        )

    def build(self, batch: smla.BatchLayout) -> smla.SparseMLAMetadata:
        return self.builder.build(batch)

    def forward(self, metadata: smla.SparseMLAMetadata) -> None:
        self._forward(metadata, self._world.topk_of_any)

    def _forward(self, metadata: smla.SparseMLAMetadata, topk: Tensor) -> None:
        world, rows = self._world, metadata.num_rows
        self.backend.forward(
            world.q_nope[:rows],
            world.q_pe[:rows],
            world.cache,
            topk[:rows],
            metadata,
            k_scale=self._scale.value if self.shape.fp8 else None,
            out=world.out[:rows],
        )

    def watched(self) -> AbstractContextManager[Spent]:
        methods: list[tuple[Any, str, str]] = [
            (self.runtime, method, name) for method, name in _WATCHED.items()
        ]
        return watch([*methods, (self.backend.engine, "plan", "around the planner")])

    def pieces(self) -> dict[str, Call]:
        shape, state, world, runtime = self.shape, self.state, self._world, self.runtime
        batch = self.batch([shape.long] * shape.rows)
        metadata = self.build(batch)
        self._forward(metadata, world.topk)
        calls: dict[str, Call] = {
            "row map": lambda: row_map(
                runtime,
                batch.query_start_loc,
                batch.seq_lens,
                state.row_request,
                state.row_context,
                state.kv_indptr,
                state.live,
                live_rows=shape.rows,
            ),
            "clamp": lambda: state.schedules[0].clamp(state.row_context, state.flags),
            "convert": lambda: convert(
                runtime,
                world.topk,
                state.row_request,
                state.row_context,
                batch.block_table,
                state.slots,
                state.counts,
                state.live,
                state.schedules[0].words,
                state.flags,
                layout=state.layout,
                rows=shape.rows,
                num_blocks=world.flat.num_blocks,
                block_size=_BLOCK,
                block_stride_rows=world.flat.block_stride_rows,
                index_topk=shape.index_topk,
                index_kpool=shape.index_kpool,
                scale=self._scale.value,
            ),
            "pack": lambda: state.pack(shape.rows),
            "forward": lambda: self._forward(metadata, world.topk),
        }
        if shape.fp8:
            scratch = torch.zeros_like(world.out)
            calls["rescale"] = lambda: rescale(
                runtime, scratch, state.row_context, state.live, self._scale.rest
            )
        return calls

    def attention(self, padded_rows: int) -> dict[str, Call]:
        contexts = [self.shape.long] * self.shape.rows
        self._forward(self.build(self.batch(contexts, known=False)), self._world.topk)
        padded = self.native(contexts, padded_rows)

        def live() -> None:
            state, world = self.state, self._world
            self.backend.engine.run(
                state.float_workspace,
                state.int_workspace,
                state.kv_indices,
                world.q_nope,
                world.q_pe,
                world.flat,
                world.out.view(self.backend.engine.out_dtype),
                sm_scale=self.config.sm_scale,
                kv_scale=self._scale.power,
                ckv_scale_arr=None,
            )

        return {"attention": live, "attention, padded plan": padded.run}

    def native(self, contexts: Sequence[int], padded_rows: int = 0) -> NativePlan:
        heads, ckv, runtime = self.shape.num_heads, self.shape.head_dim_ckv, self.runtime
        rows = max(padded_rows, len(contexts))
        lengths = torch.zeros(rows, dtype=torch.int32)
        lengths[: len(contexts)] = torch.tensor(
            [self.shape.planned(context) for context in contexts], dtype=torch.int32
        )
        starts = torch.arange(rows + 1, dtype=torch.int32).clamp(max=len(contexts))
        offsets = torch.zeros(rows + 1, dtype=torch.int32)
        offsets[1:] = lengths.cumsum(0)
        module = complete(self._source.load(self.config))
        size, floats = self.state.layout.staged_bytes, self.state.float_workspace
        workspace = runtime.zeros((size,), torch.uint8)
        blocks = []
        for fill in _FILLS:  # a byte that keeps both of two fills was not written
            block = runtime.staging((size,), torch.uint8)
            block.fill_(fill)
            result = runtime.native_plan(
                module.plan, floats, workspace, block, starts, offsets, lengths, heads, ckv, False
            )
            runtime.synchronize()  # the planner may copy the block by itself
            blocks.append(block)
        info, _ = planned(result)
        runtime.upload(workspace, blocks[-1])
        runtime.synchronize()

        def run() -> None:
            world, kv, out = self._world, self._scale.power, self.backend.engine.out_dtype
            runtime.native_run(
                *(module.run, floats, workspace, info, world.q_nope, world.q_pe),
                *(world.flat.ckv, world.flat.kpe, self.state.kv_indices, world.out.view(out)),
                *(None, 0, heads, 1, self.config.sm_scale, False, kv, kv, None),
            )

        return NativePlan(runtime.read(workspace), blocks[0] == blocks[1], run)

    def workspace(self) -> Tensor:
        return self.runtime.read(self.state.int_workspace)

    def plans(self) -> tuple[int, int]:
        return self.state.stats.plans, self.state.stats.reuses

    def estimate(self) -> tuple[int, int]:
        told = smla.memory_estimate(self.config, self.runtime.num_sms)
        return told.device, told.pinned_per_plan

    @property
    def _scale(self) -> KVScale:
        return KVScale.of(_K_SCALE) if self.shape.fp8 else KVScale(1.0, 1.0, 1.0)

    @cached_property
    def _table(self) -> Tensor:
        blocks = -(-self.shape.long // _BLOCK)
        order = torch.randperm(self.shape.rows * blocks, dtype=torch.int32)
        return self._on_device(order.view(self.shape.rows, blocks))

    @cached_property
    def _world(self) -> _World:
        shape, device, bf16 = self.shape, self.runtime.device, torch.bfloat16
        rows, heads, ckv = shape.rows, shape.num_heads, shape.head_dim_ckv
        most = self.config.max_valid
        cache = torch.randn((self._table.numel(), _BLOCK, ckv), device=device, dtype=bf16)
        if shape.fp8:
            cache = cache.to(torch.float8_e4m3fn).view(torch.uint8)
        query = torch.randn((rows, heads, ckv), device=device, dtype=bf16)
        topk = torch.full((rows, shape.topk_width), -1, dtype=torch.int32)
        for row in topk:
            row[: shape.index_topk] = torch.randperm(shape.index_topk)
        any_length = topk.clone()
        any_length[:, shape.index_topk : most] = torch.arange(shape.index_topk, most)
        return _World(
            q_nope=query,
            q_pe=query[..., :0],
            cache=cache,
            flat=flatten(cache, self.config, device),
            topk=self._on_device(topk),
            topk_of_any=self._on_device(any_length),
            out=torch.zeros((rows, heads, ckv), device=device, dtype=bf16),
        )

    def _on_device(self, tensor: Tensor) -> Tensor:
        placed = self.runtime.empty(tuple(tensor.shape), tensor.dtype)
        self.runtime.write(placed, tensor)
        return placed
