"""The backend: gates at construction, then convert, pack and run for each forward.

vLLM knows this as FlashInferMLASparseSM90Backend and -Impl.
"""

import logging

import torch
from torch import Tensor

from smla import errors
from smla.builder import SparseMLABuilder, SparseMLAMetadata
from smla.config import SCALE_RANGE, SparseMLAConfig, is_scale
from smla.engines.flashinfer.compat import InstalledFlashInfer, NativeSource
from smla.engines.flashinfer.engine import FlashInferEngine
from smla.engines.flashinfer.limits import refusals
from smla.flags import Flag
from smla.kernels.convert import convert
from smla.kv_cache import flatten
from smla.runtime import CudaRuntime, Runtime

_VECTOR_ELEMENTS = 8
"""BF16 elements of one 16-byte load of FlashInfer's kernel."""


_log = logging.getLogger(__name__)


class SparseMLABackend:
    """Sparse-MLA attention for one attention group; any number of layers share it.

    runtime: where it runs; a CudaRuntime of the current GPU when None.
    source: where FlashInfer's native module comes from; the installed one when None.

    Raises errors.UnsupportedError with every missed limit, errors.VersionError for a FlashInfer
    that is absent or unknown, errors.PlanLayoutError for one that plans differently.
    """

    def __init__(
        self,
        config: SparseMLAConfig,
        *,
        runtime: Runtime | None = None,
        source: NativeSource | None = None,
    ) -> None:
        self.config = config
        self.runtime: Runtime = runtime if runtime is not None else CudaRuntime()
        source = source if source is not None else InstalledFlashInfer()
        if reasons := self.reasons(config, self.runtime, source):
            raise errors.UnsupportedError(reasons)
        self.engine = FlashInferEngine(config, self.runtime, source)
        layout = self.engine.layout
        _log.info(
            "engine flashinfer, FlashInfer %s: %d heads, head dims %d + %d, %s cache, grid "
            "(%d, %d) on %d SMs, up to %d rows",
            source.version, config.num_heads, config.head_dim_ckv, config.head_dim_kpe,
            config.kv_dtype, layout.cluster_size, layout.num_clusters, layout.num_sms,
            config.max_tokens,
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
        out: Tensor | None = None,
    ) -> Tensor:
        """Return attention outputs, BF16 [rows, num_heads, head_dim_ckv].

        q_nope [rows, num_heads, head_dim_ckv], q_pe [rows, num_heads, head_dim_kpe]: BF16.
        kv_cache [num_blocks, block_size, head_dim]: BF16, or uint8 holding E4M3.
        topk_indices [rows, topk_width]: int32 token positions of each row's request, then -1.
        k_scale: the per-tensor scale of an FP8 cache, for its compressed and its rope part
            alike; a float baked into a captured graph. None for BF16.

        Exactly metadata.num_rows rows of `out` are written. Rows behind them (padding, prefills
        that went to dense MHA) keep what they held, undefined when `out` was not given.

        May be captured, after a first forward outside that compiles the kernels. The graph covers
        all rows of q_nope and follows every later build whose rows are no more than those and
        whose block table is the same tensor, refilled: its address, shape and strides are in the
        graph, like those of every tensor passed here. Nothing checks that at a replay.
        """
        config, state, runtime = self.config, metadata.state, self.runtime
        rows = self._check(q_nope, q_pe, topk_indices, metadata, out)
        scale = self._scale(k_scale)
        cache = flatten(kv_cache, config, runtime.device)
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
            state.flags,
            rows=rows,
            num_blocks=cache.num_blocks,
            block_size=config.block_size,
            block_stride_rows=cache.block_stride_rows,
            index_topk=config.index_topk,
            index_kpool=config.index_kpool,
        )
        state.pack(rows)
        self.engine.run(
            state.float_workspace,
            state.int_workspace,
            state.kv_indices,
            q_nope,
            q_pe,
            cache,
            out,
            scale,
        )
        if config.debug and not runtime.capturing():
            self._raise_flags(metadata)
        return out

    def _check(
        self,
        q_nope: Tensor,
        q_pe: Tensor,
        topk_indices: Tensor,
        metadata: SparseMLAMetadata,
        out: Tensor | None,
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
            if tensor.numel() and (tensor.shape[0] - 1) * tensor.stride(0) >= 2**32:
                raise errors.StrideError(
                    name,
                    found=f"row stride {tensor.stride(0)} for {tensor.shape[0]} rows",
                    allowed="a tensor of less than 2**32 elements end to end",
                    remedy="pass a copy: the kernel counts elements in 32 bits",
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
        return rows if self.runtime.capturing() else metadata.num_rows

    def _scale(self, k_scale: float | None) -> float:
        if self.config.kv_dtype == torch.bfloat16:
            if k_scale is not None:
                raise errors.ScaleError(
                    "k_scale",
                    found=k_scale,
                    allowed="None for a BF16 cache",
                    remedy="a BF16 cache holds the values themselves",
                )
            return 1.0
        if k_scale is None or not is_scale(k_scale):
            raise errors.ScaleError(
                "k_scale",
                found=repr(k_scale),
                allowed=f"{SCALE_RANGE} for an FP8 cache",
                remedy="pass the scale that the cache was written with",
            )
        return float(k_scale)

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
