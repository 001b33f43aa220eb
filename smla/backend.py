"""The backend: gates at construction, then convert, pack and run for each forward.

vLLM knows this as FlashInferMLASparseSM90Backend and -Impl.
"""

import logging

import torch
from torch import Tensor

from smla import errors
from smla.admission import admit
from smla.builder import SparseMLABuilder, SparseMLAMetadata
from smla.cache_scales import check_given_groups, given_scale
from smla.config import SparseMLAConfig
from smla.engines.flashinfer.compat import InstalledFlashInfer, NativeSource
from smla.engines.flashinfer.engine import FlashInferEngine
from smla.engines.flashinfer.limits import refusals
from smla.flags import Flag
from smla.kernels.convert import convert
from smla.kernels.rescale import rescale
from smla.kv_cache import flatten
from smla.runtime import CudaRuntime, Runtime

_VECTOR_ELEMENTS = 8
"""BF16 elements of one 16-byte load of FlashInfer's kernel."""

_log = logging.getLogger(__name__)


class SparseMLABackend:
    """Sparse-MLA attention for one attention group; any number of layers share it.

    runtime: where it runs; a CudaRuntime of the current GPU when None.
    source: where FlashInfer's native module comes from; the installed one when None.
    verify: plan and run a tiny batch now, which also compiles every Triton kernel of a forward.
        Without it the first step compiles them, and a FlashInfer that computes wrongly is admitted.

    Raises errors.UnsupportedError with every missed limit, errors.VersionError for a FlashInfer
    that is absent or outside of the known range, errors.PlanLayoutError for one that plans
    differently, errors.AdmissionError for one that computes a tiny batch wrongly.
    """

    def __init__(
        self,
        config: SparseMLAConfig,
        *,
        runtime: Runtime | None = None,
        source: NativeSource | None = None,
        verify: bool = True,
    ) -> None:
        self.config = config
        self.runtime: Runtime = runtime if runtime is not None else CudaRuntime()
        source = source if source is not None else InstalledFlashInfer()
        if reasons := self.reasons(config, self.runtime, source):
            raise errors.UnsupportedError(reasons)
        self.engine = FlashInferEngine(config, self.runtime, source)
        if verify:
            admit(self, source.version)
        layout = self.engine.layout
        _log.info(
            "engine flashinfer, FlashInfer %s: %d heads, head dims %d + %d, %s cache%s, "
            "grid (%d, %d) on %d SMs, up to %d rows",
            source.version, config.num_heads, config.head_dim_ckv, config.head_dim_kpe,
            config.kv_dtype, " with group scales" if config.scale_groups else "",
            layout.cluster_size, layout.num_clusters, layout.num_sms, config.max_tokens,
        )  # fmt: skip

    @staticmethod
    def reasons(config: SparseMLAConfig, runtime: Runtime, source: NativeSource) -> list[str]:
        """Return why this configuration is refused, each naming the limit and the value found."""
        return refusals(config, runtime, head_dims_ckv=source.head_dims_ckv)

    def builder(self) -> SparseMLABuilder:
        """Return a builder with a plan state of its own: one per attention group and stream."""
        return SparseMLABuilder(self.config, self.runtime, self.engine)

    def forward(
        self,
        q_nope: Tensor,
        q_pe: Tensor,
        kv_cache: Tensor,
        topk_indices: Tensor,
        metadata: SparseMLAMetadata,
        *,
        k_scale: float | None = None,
        device_k_scale: Tensor | None = None,
        ckv_scale_arr: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Return attention outputs, BF16 [rows, num_heads, head_dim_ckv].

        q_nope [rows, num_heads, head_dim_ckv], q_pe [rows, num_heads, head_dim_kpe]: BF16.
        kv_cache [num_blocks, block_size, head_dim]: BF16, or uint8 holding E4M3.
        topk_indices [rows, topk_width]: int32 token positions of each row's request, then -1.
        k_scale: the per-tensor scale of an FP8 cache, for its compressed and its rope part
            alike, from 2**-40 to 2**40; applied exactly. A captured graph keeps it. None for BF16.
            Beside group scales it is the rope part's alone, a power of two; None does without that.
        device_k_scale: float32 [1], the same scale on the device; where given, each run and each
            replay sets Flag.SCALE_CHANGED if it holds another one by then.
        ckv_scale_arr: float32 [physical rows of the cache, head_dim_ckv / 128], contiguous, where
            config.kv_scaling is "group": element c of the compressed part in slot s is its E4M3
            value times ckv_scale_arr[s, c // 128], rounded once to BF16. Slot 0's scales must be
            finite even if nothing is there: each run and each replay sets Flag.SLOT_ZERO_SCALE if
            they are not. A captured graph keeps this array: refill it, do not replace it. See
            `smla.new_group_scales` and `smla.write_per_group`.

        Exactly metadata.num_rows rows of `out` are written. Rows behind them (padding, prefills
        that went to dense MHA) keep what they held, undefined when `out` was not given.

        May be captured. The graph covers all rows of q_nope and follows every later build: its
        lengths, its rows up to those, and its block table, which must be the same tensor,
        refilled (build refuses another one while captures are known). The other tensors passed
        here are baked in with their addresses. A replay for a build of more rows than were
        captured sets Flag.ROWS_BEYOND_FORWARD and computes nothing: it has no room for them.
        """
        config, state, runtime = self.config, metadata.state, self.runtime
        capturing = runtime.capturing()
        scale = given_scale(config, self.engine, runtime.device, k_scale, device_k_scale)
        rows = self._check(q_nope, q_pe, topk_indices, metadata, out, capturing=capturing)
        cache = flatten(kv_cache, config, runtime.device)
        check_given_groups(config, cache, runtime.device, ckv_scale_arr)
        if capturing:
            state.captures.check(metadata.block_table)
        if out is None:
            out = runtime.empty(tuple(q_nope.shape), torch.bfloat16)
        if rows == 0:
            return out
        convert(
            runtime,
            topk_indices,
            state.row_request,
            state.row_context,
            metadata.block_table,
            state.slots,
            state.counts,
            state.live,
            state.schedules[0].words,
            state.flags,
            layout=self.engine.layout,
            rows=rows,
            num_blocks=cache.num_blocks,
            block_size=config.block_size,
            block_stride_rows=cache.block_stride_rows,
            index_topk=config.index_topk,
            index_kpool=config.index_kpool,
            scale=scale.value,
            device_scale=device_k_scale,
            group_scales=ckv_scale_arr,
        )
        state.pack(rows)
        for schedule in state.active:
            self.engine.run(
                state.float_workspace,
                schedule.workspace,
                state.kv_indices,
                q_nope,
                q_pe,
                cache,
                out.view(self.engine.out_dtype),
                sm_scale=config.sm_scale * scale.rest,
                kv_scale=scale.power,
                ckv_scale_arr=ckv_scale_arr,
            )
        if self.engine.out_dtype != torch.bfloat16:
            rescale(runtime, out[:rows], state.row_context, state.live, scale.rest)
        if capturing:
            state.captures.note(rows, metadata.block_table)
        elif config.debug:
            self._raise_flags(metadata)
        return out

    def _check(
        self,
        q_nope: Tensor,
        q_pe: Tensor,
        topk_indices: Tensor,
        metadata: SparseMLAMetadata,
        out: Tensor | None,
        *,
        capturing: bool,
    ) -> int:
        """Refuse what the kernels cannot read; return how many rows to convert and pack."""
        config = self.config
        if metadata.state.engine is not self.engine:
            raise errors.OrderError(
                "metadata",
                found="planned by a builder of another backend",
                allowed="metadata of a builder of this backend",
                remedy="take the builder from backend.builder() of the backend that runs the step",
            )
        if metadata.serial != metadata.state.serial:
            raise errors.OrderError(
                "metadata",
                found=f"of build {metadata.serial}, the plan is of {metadata.state.serial}",
                allowed="metadata of the newest build",
                remedy="run a step's forwards before the next build, or keep one builder each",
            )
        if not capturing and self.runtime.stream() != metadata.state.stream:
            raise errors.OrderError(
                "stream",
                found="another one than the build's",
                allowed="the stream that this metadata was built on",
                remedy="build and forward a step on one stream; the next build may change it",
            )
        rows = q_nope.shape[0] if q_nope.dim() == 3 else 0
        heads, ckv, kpe = config.num_heads, config.head_dim_ckv, config.head_dim_kpe
        wanted = [
            ("q_nope", q_nope, torch.bfloat16, (rows, heads, ckv)),
            ("q_pe", q_pe, torch.bfloat16, (rows, heads, kpe)),
            ("topk_indices", topk_indices, torch.int32, (rows, config.topk_width)),
        ]
        if out is not None:
            wanted.append(("out", out, torch.bfloat16, (rows, heads, ckv)))
        for name, tensor, dtype, shape in wanted:
            if tensor.dtype != dtype:
                raise errors.DtypeError(
                    name, found=tensor.dtype, allowed=str(dtype), remedy="convert it upstream"
                )
            if tensor.device != self.runtime.device:
                raise errors.DeviceError(
                    name,
                    found=tensor.device,
                    allowed=str(self.runtime.device),
                    remedy="keep it on the backend's device",
                )
            if tuple(tensor.shape) != shape:
                raise errors.ShapeError(
                    name, found=tuple(tensor.shape), allowed=str(shape), remedy="slice or reshape"
                )
            unit = 1 if dtype == torch.int32 else _VECTOR_ELEMENTS
            if tensor.numel() and (
                tensor.stride(-1) != 1 or any(step % unit for step in tensor.stride()[:-1])
            ):
                raise errors.StrideError(
                    name,
                    found=tensor.stride(),
                    allowed=f"unit stride in the last dimension, others multiples of {unit}",
                    remedy="pass a contiguous tensor",
                )
            last = sum((n - 1) * step for n, step in zip(shape, tensor.stride(), strict=True))
            if tensor.numel() and last >= 2**32:
                raise errors.StrideError(
                    name,
                    found=f"shape {shape}, strides {tensor.stride()}: element {last} is the last",
                    allowed="less than 2**32 elements end to end",
                    remedy="run fewer rows at once: the kernel counts elements in 32 bits",
                )
            if tensor.numel() and tensor.data_ptr() % (alignment := unit * tensor.element_size()):
                raise errors.StrideError(
                    name,
                    found=f"start address {tensor.data_ptr():#x}",
                    allowed=f"aligned to {alignment} bytes",
                    remedy="slice at a multiple of that, or pass a copy",
                )
        if out is not None and any(
            step == 0 and size > 1 for step, size in zip(out.stride(), out.shape, strict=True)
        ):
            raise errors.StrideError(
                "out",
                found=f"strides {out.stride()}",
                allowed="rows, heads and channels of their own",
                remedy="do not expand it",
            )
        if rows < metadata.num_rows or rows > config.max_tokens:
            raise errors.CapacityError(
                "rows of q_nope",
                found=rows,
                allowed=f"{metadata.num_rows} planned to {config.max_tokens} (max_tokens)",
                remedy="pass the queries of the batch that was built",
            )
        if not capturing:
            return metadata.num_rows
        most = config.max_graph_tokens or self.engine.layout.most_rows
        if rows > most:
            raise errors.CapacityError(
                "rows of a captured forward",
                found=rows,
                allowed=f"at most {most}: a graph runs one schedule, of "
                f"{self.engine.layout.capacity} work items",
                remedy="run larger batches eagerly, or raise max_graph_tokens if that is the limit",
            )
        return rows

    @staticmethod
    def _raise_flags(metadata: SparseMLAMetadata) -> None:
        flags = metadata.state.read_flags() & ~Flag.COUNT_ABOVE_FORMULA
        if flags:
            metadata.state.clear_flags()
            raise errors.FlagError(
                "device flags",
                found=", ".join(str(flag.name) for flag in flags),
                allowed="none of them",
                remedy="see smla.flags for what each says; the rows concerned are not reliable",
            )
