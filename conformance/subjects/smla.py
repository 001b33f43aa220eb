"""smla itself as a subject."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import smla
from conformance.core.case import Config
from conformance.core.subject import HostBatch, Observation, Tier
from smla.engines.flashinfer.compat import InstalledFlashInfer, NativeSource

Wrap = Callable[[Any], Any]


class _Simulated:
    """A native source whose modules are the tier's simulated FlashInfer."""

    version = "simulated"
    head_dims_ckv: frozenset[int] | None = None

    def __init__(self, make: Callable[..., Any], enqueue: Any = None) -> None:
        self._make, self._enqueue = make, enqueue

    def load(self, config: smla.SparseMLAConfig) -> Any:
        return self._make(self._enqueue)


class _Pretended(InstalledFlashInfer):
    """The FlashInfer of a process where it runs on a pretended device, whatever its version."""

    def __init__(self, enqueue: Any = None) -> None:
        super().__init__(trial=True)
        self._enqueue = enqueue

    def load(self, config: smla.SparseMLAConfig) -> Any:
        module: Any = super().load(config)
        return module if self._enqueue is None else module.queueing(self._enqueue)


class _Wrapped:
    """A native source whose modules are wrapped by a test."""

    def __init__(self, source: NativeSource, wrap: Wrap) -> None:
        self.version, self.head_dims_ckv = source.version, source.head_dims_ckv
        self._source, self._wrap = source, wrap

    def load(self, config: smla.SparseMLAConfig) -> Any:
        return self._wrap(self._source.load(config))


class _RealLimits:
    """A native source that is asked for its limits only: those of FlashInfer's modules."""

    version = "limits"
    head_dims_ckv = InstalledFlashInfer.head_dims_ckv

    def load(self, config: smla.SparseMLAConfig) -> Any:
        raise LookupError("nothing is loaded to answer what would be refused")


def _config(config: Config) -> smla.SparseMLAConfig:
    geometry = config.geometry
    return smla.SparseMLAConfig(
        num_heads=config.num_heads,
        sm_scale=config.sm_scale,
        index_topk=geometry.index_topk,
        index_kpool=geometry.index_kpool,
        topk_width=geometry.topk_width,
        max_tokens=config.max_tokens,
        head_dim_ckv=config.head_dim_ckv,
        head_dim_kpe=config.head_dim_kpe,
        kv_dtype=getattr(
            torch, config.kv_dtype_name or ("float8_e4m3fn" if config.fp8 else "bfloat16")
        ),
        kv_scaling="group" if config.group_scales else "tensor",
        block_size=geometry.block_size,
        force_mqa=config.force_mqa,
    )


class SmlaInstance:
    """One backend and one builder."""

    def __init__(self, backend: smla.SparseMLABackend) -> None:
        self.runtime = backend.runtime
        self._backend = backend
        self._builder = backend.builder()

    def build(self, batch: HostBatch) -> smla.SparseMLAMetadata:
        return self._builder.build(
            smla.BatchLayout(
                query_start_loc_cpu=batch.query_start_loc_cpu,
                query_start_loc=batch.query_start_loc,
                seq_lens=batch.seq_lens,
                block_table=batch.block_table,
                seq_lens_cpu_upper_bound=batch.seq_lens_cpu_upper_bound,
                num_padded_tokens=batch.num_padded_tokens,
                adaptive=batch.adaptive,
            )
        )

    def forward(
        self,
        q_nope: Tensor,
        q_pe: Tensor,
        kv_cache: Tensor,
        topk_indices: Tensor,
        metadata: smla.SparseMLAMetadata,
        k_scale: float | None,
        out: Tensor,
        device_k_scale: Tensor | None = None,
        ckv_scale_arr: Tensor | None = None,
    ) -> None:
        self._backend.forward(
            q_nope,
            q_pe,
            kv_cache,
            topk_indices,
            metadata,
            k_scale=k_scale,
            device_k_scale=device_k_scale,
            ckv_scale_arr=ckv_scale_arr,
            out=out,
        )

    def write_cache(
        self,
        ckv: Tensor,
        kpe: Tensor,
        kv_cache: Tensor,
        slot_mapping: Tensor,
        k_scale: float,
        ckv_scale_arr: Tensor | None = None,
    ) -> None:
        if ckv_scale_arr is None:
            smla.write_per_tensor(self.runtime, ckv, kpe, kv_cache, slot_mapping, k_scale=k_scale)
            return
        smla.write_per_group(
            self.runtime, ckv, kpe, kv_cache, ckv_scale_arr, slot_mapping, k_scale=k_scale
        )

    def observe(self) -> Observation:
        state, read = self._builder.state, self.runtime.read
        flags = state.read_flags()
        return Observation(
            plan_info=list(state.engine.plan_info),
            int_workspace=read(state.int_workspace),
            kv_indptr=read(state.kv_indptr),
            kv_indices=read(state.kv_indices),
            counts=read(state.counts),
            contexts=read(state.row_context),
            flags=frozenset(flag.name.lower() for flag in flags if flag.name),
            plans=state.stats.plans,
            addresses=state.addresses(),
        )


class SmlaSubject:
    """Constructs smla for a case's configuration."""

    name = "smla"
    version = smla.__version__
    capabilities = frozenset(
        {
            *("bf16", "fp8", "fp8_group", "cache-write", "capture", "native", "mha"),
            *("padded-rows", "scale-check", "one-stream", "clock"),
        }
    )

    def refusals(self, config: Config, capability: tuple[int, int]) -> list[str]:
        try:
            wanted = _config(config)
        except smla.errors.SmlaError as problem:
            return [str(problem)]
        runtime = smla.CpuRuntime(capability=capability)
        return smla.SparseMLABackend.reasons(wanted, runtime, _RealLimits())

    def construct(
        self,
        config: Config,
        tier: Tier,
        *,
        interpret: bool,
        wrap: Wrap | None = None,
        clock: Any = None,
    ) -> SmlaInstance:
        runtime: smla.Runtime
        source: NativeSource
        if tier.native is not None:
            enqueue = None if clock is None else clock.enqueue
            own = smla.CpuRuntime(kernels="interpret" if interpret else "torch")
            runtime = own if clock is None else clock
            source = _Pretended(enqueue) if tier.installed else _Simulated(tier.native, enqueue)
        else:
            runtime, source = smla.CudaRuntime(), InstalledFlashInfer()
        if wrap is not None:
            source = _Wrapped(source, wrap)
        # The tiny batch of the construction is looked at where modules are tampered with. Elsewhere
        # it would hide from a requirement's own cases what they are to find.
        backend = smla.SparseMLABackend(
            _config(config), runtime=runtime, source=source, verify=wrap is not None
        )
        return SmlaInstance(backend)
