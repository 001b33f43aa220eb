"""vLLM's own builder, state and attention behind the suite's protocol.

They run unchanged: on the twin over a simulated FlashInfer wrapper of the simulated version, their
Triton kernels interpreted and done at once; on a GPU over the installed FlashInfer. The adapter is
what stands around them in vLLM: it fills the index buffer as the indexer does, gives the layer's
scale, and keeps of a fresh output the rows that were computed.
"""

import os
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

import smla
from conformance.core.case import Config
from conformance.core.subject import HostBatch, Observation, Tier
from conformance.subjects.vllm import model
from conformance.subjects.vllm.loader import Loaded
from conformance.subjects.vllm.source import Source
from conformance.subjects.vllm.standins import DeviceCapability, values
from conformance.tiers import simulated_package
from conformance.twin.eager import Eager

BACKEND = "vllm.v1.attention.backends.mla.flashinfer_mla_sparse_sm90"
LAYERS = "vllm.model_executor.layers.attention.mla_attention"
COMMON = "vllm.v1.attention.backend"
HOPPER = (9, 0)
_WORKSPACE = 1 << 20  # of the int workspace, shown from its start: a schedule is shorter
_TRITON = {"twin": Eager.triton(triton), "hopper": triton}


@dataclass(frozen=True)
class Metadata:
    """A planned step: vLLM's metadata, and what the suite reads."""

    inner: Any
    num_rows: int
    prefill_to_mha: bool


class _Current:
    """vLLM's current configuration."""

    config: Any = None

    def __call__(self) -> Any:
        return self.config


class Release:
    """A vLLM, loaded once for each FlashInfer that it is put on."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.current = _Current()
        self._loads: dict[str, Loaded] = {}

    def loaded(self, flashinfer: str) -> Loaded:
        """The load for a simulated version, or for the installed one (empty)."""
        if flashinfer not in self._loads:
            kernels = _TRITON["twin" if flashinfer else "hopper"]
            named = values(kernels, tl, self.current, not flashinfer)
            self._loads[flashinfer] = Loaded(self.source, named)
        return self._loads[flashinfer]

    def reasons(self, loaded: Loaded, config: Config, capability: tuple[int, int]) -> list[str]:
        """What vLLM's own gate says against a configuration; inside of `loaded.active()`."""
        backend = loaded.module(BACKEND).FlashInferMLASparseSM90Backend
        self.current.config = model.vllm_config(config, {})
        said: list[str] = backend.validate_configuration(
            head_size=config.head_dim_ckv + config.head_dim_kpe,
            dtype=torch.bfloat16,
            kv_cache_dtype=model.cache_dtype(config),
            block_size=config.geometry.block_size,
            use_mla=True,
            has_sink=False,
            use_sparse=True,
            use_mm_prefix=False,
            use_per_head_quant_scales=False,
            device_capability=DeviceCapability(*capability),
            attn_type="decoder",
        )
        return said


class _Cuda(smla.CudaRuntime):
    """The GPU; a kernel that is loaded during a capture does not end it."""

    @contextmanager
    def capture(self) -> Any:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="relaxed"):
            yield graph


class VllmInstance:
    """One attention group: vLLM's builder with its state, and one layer."""

    def __init__(
        self,
        release: Release,
        config: Config,
        runtime: Any,
        loaded: Loaded,
        inside: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.runtime, self._inside = runtime, inside
        rows, width = config.max_tokens, model.index_width(config)
        with inside():
            module = loaded.module(BACKEND)
            backend = module.FlashInferMLASparseSM90Backend
            self._common = loaded.module(COMMON)
            self._topk = runtime.zeros((rows, width), torch.int32).fill_(-1)
            self._row = runtime.zeros((rows,), torch.int32)
            self._row.copy_(torch.arange(rows, dtype=torch.int32))
            self._live = runtime.zeros((1,), torch.int32)
            layers: dict[str, Any] = {}
            whole = model.vllm_config(config, layers)
            release.current.config = whole
            layer = layers[model.LAYER] = model.Layer(loaded.module(LAYERS), config, backend)
            layer._vllm_config = whole
            layer.impl = model.implementation(backend, config, self._topk)
            self._layer, self._impl = layer, layer.impl
            self._builder = backend.get_builder_cls()(
                model.cache_spec(config), [model.LAYER], whole, runtime.device
            )
        self._plans = 0
        self._count_plans(self._builder.state.wrapper)

    def _count_plans(self, wrapper: Any) -> None:
        planned = wrapper.plan

        def plan(*args: Any, **kwargs: Any) -> Any:
            self._plans += 1
            return planned(*args, **kwargs)

        wrapper.plan = plan

    def warm_up(self, config: Config) -> None:
        """Run one token, as vLLM does before it captures: kernels are compiled and loaded.

        Lengths are planned exactly, so that no later step takes this plan for its own.
        """
        runtime, geometry = self.runtime, config.geometry
        starts = torch.tensor([0, 1], dtype=torch.int32)
        starts_there, length = (runtime.zeros((n,), torch.int32) for n in (2, 1))
        runtime.write(starts_there, starts)
        runtime.write(length, starts[1:])
        table = runtime.zeros((1, 8), torch.int32)
        batch = HostBatch(starts, starts_there, length, None, table, num_padded_tokens=1)
        dim, bf16 = config.head_dim_ckv + config.head_dim_kpe, torch.bfloat16
        rows = geometry.block_size + geometry.gap_rows
        cache = runtime.zeros((2, rows, dim), torch.uint8 if config.fp8 else bf16)
        q_nope, q_pe, out = (
            runtime.zeros((1, config.num_heads, width), bf16)
            for width in (config.head_dim_ckv, config.head_dim_kpe, config.head_dim_ckv)
        )
        topk = runtime.zeros((1, geometry.topk_width), torch.int32)
        planned = self.build(batch)
        scale = 1.0 if config.fp8 else None
        self.forward(q_nope, q_pe, cache[:, : geometry.block_size], topk, planned, scale, out)
        runtime.synchronize()
        self._plans = 0

    def build(self, batch: HostBatch) -> Metadata:
        with self._inside():
            # vLLM knows it at construction; the suite's batches may change it.
            self._builder._adaptive_verification = batch.adaptive
            inner = self._builder.build(0, model.common_metadata(self._common, batch))
            routed = inner.num_prefills > 0 and self._layer._use_sparse_mha(inner)
            rows = inner.num_decode_tokens if routed else int(batch.query_start_loc_cpu[-1])
            self._live.fill_(rows)
        return Metadata(inner, rows, bool(routed))

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
        rows = metadata.num_rows if metadata.prefill_to_mha else q_nope.shape[0]
        given, width = topk_indices.shape
        with self._inside():
            self._topk[:given, :width].copy_(topk_indices)
            self._layer._k_scale_float = k_scale
            fresh, _ = self._impl.forward_mqa(
                (q_nope[:rows], q_pe[:rows]), kv_cache, metadata.inner, self._layer
            )
            # vLLM's output is fresh memory: behind the computed rows it holds anything.
            computed = (self._row[:rows] < self._live).view(-1, 1, 1)
            out[:rows].copy_(torch.where(computed, fresh, out[:rows]))

    def observe(self) -> Observation:
        state, read = self._builder.state, self.runtime.read
        info = getattr(state.wrapper, "_plan_info", None)
        workspace = state._int_ws
        named = {
            "float_workspace": state.workspace,
            "kv_indices": state.kv_indices,
            "kv_indptr": state.kv_indptr,
            "requests": self._builder.req_id_per_token_buffer,
            "topk_indices": self._topk,
            **({} if workspace is None else {"int_workspace": workspace}),
        }
        waits = getattr(self.runtime, "waits", None)
        return Observation(
            plan_info=None if info is None else [int(value) for value in info],
            int_workspace=None
            if workspace is None
            else read(workspace.view(torch.uint8)[:_WORKSPACE]),
            kv_indptr=read(state.kv_indptr),
            kv_indices=read(state.kv_indices),
            plans=self._plans,
            addresses={name: buffer.data_ptr() for name, buffer in named.items()},
            waits=None if waits is None else len(waits),
        )


class VllmSubject:
    """The class that vLLM ships for sparse MLA on Hopper.

    version: of vLLM. spec: what names this subject on a command line.
    """

    name = "vllm"
    capabilities = frozenset({"bf16", "fp8", "capture", "mha"})

    def __init__(self, source: Source) -> None:
        self._release = Release(source)
        self.version = source.version
        self.spec = f"vllm@{source.place}" if source.place else "vllm"

    def refusals(self, config: Config, capability: tuple[int, int]) -> list[str]:
        twin = os.environ.get("TRITON_INTERPRET") == "1" or not torch.cuda.is_available()
        package = simulated_package() if twin else {}
        loaded = self._release.loaded("any" if twin else "")
        with loaded.active(package):
            return self._release.reasons(loaded, config, capability)

    def construct(
        self,
        config: Config,
        tier: Tier,
        *,
        interpret: bool,
        wrap: Callable[[Any], Any] | None = None,
        clock: Any = None,
    ) -> VllmInstance:
        """Return an instance, if vLLM's gate admits the configuration; ValueError if not."""
        loaded = self._release.loaded(tier.simulates)
        runtime: Any
        if tier.native is None:
            runtime, package = _Cuda(), None
            on_device: Callable[[], AbstractContextManager[None]] = nullcontext
        else:
            runtime = Eager(tier.native().num_sms)
            assert tier.package is not None, "a tier with a simulated module has its package"
            package = tier.package(runtime)
            on_device = runtime.active

        @contextmanager
        def inside() -> Any:
            with ExitStack() as stack:
                stack.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore", DeprecationWarning)  # FlashInfer's, of its callers
                stack.enter_context(loaded.active(package))
                stack.enter_context(on_device())
                yield

        # The twin runs any width, and the gate is asked for the real one.
        asked = config if tier.full_width else replace(config, head_dim_ckv=512)
        with loaded.active(package):
            said = self._release.reasons(loaded, asked, HOPPER)
        if said:
            raise ValueError(f"vLLM {self.version} does not choose this backend: {'; '.join(said)}")
        instance = VllmInstance(self._release, config, runtime, loaded, inside)
        if tier.native is None:
            instance.warm_up(config)
        return instance
