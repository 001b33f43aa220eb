"""The model, layer and batch around vLLM's builder and attention implementation, for one case.

Only what vLLM's own code asks of them; every name is vLLM's.
"""

from types import MethodType, ModuleType, SimpleNamespace
from typing import Any

import torch

from conformance.core.case import Config
from conformance.core.subject import HostBatch

LAYER = "layer"
INDEX_TILE = 128
"""vLLM's conversion of indices takes widths of whole tiles (sparse_utils.py, BLOCK_N)."""

_MODEL_LENGTH = 8192
_NOPE_DIM = _V_DIM = 128


def index_width(config: Config) -> int:
    """Columns of the index buffer: the selection's, and as many -1 as fill a tile."""
    return -(-config.geometry.topk_width // INDEX_TILE) * INDEX_TILE


def cache_dtype(config: Config) -> str:
    """The cache's type as vLLM's command line names it."""
    wanted = config.kv_dtype_name or ("float8_e4m3fn" if config.fp8 else "bfloat16")
    return {"float8_e4m3fn": "fp8", "float8_e5m2": "fp8_e5m2"}.get(wanted, wanted)


def vllm_config(config: Config, layers: dict[str, Any]) -> SimpleNamespace:
    """What stands for VllmConfig. layers: by name, as the layers enter themselves."""
    geometry = config.geometry
    text = SimpleNamespace(
        index_topk=geometry.index_topk,
        index_kpool=geometry.index_kpool,
        kv_lora_rank=config.head_dim_ckv,
        qk_rope_head_dim=config.head_dim_kpe,
        qk_nope_head_dim=_NOPE_DIM,
        v_head_dim=_V_DIM,
        q_lora_rank=None,
    )
    return SimpleNamespace(
        model_config=SimpleNamespace(
            hf_text_config=text,
            dtype=torch.bfloat16,
            max_model_len=_MODEL_LENGTH,
            model_arch_config=SimpleNamespace(total_num_attention_heads=config.num_heads),
            get_num_attention_heads=lambda parallel: config.num_heads,
        ),
        scheduler_config=SimpleNamespace(
            max_num_batched_tokens=config.max_tokens, max_num_seqs=config.max_tokens
        ),
        cache_config=SimpleNamespace(
            block_size=geometry.block_size, cache_dtype=cache_dtype(config)
        ),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=1,
            prefill_context_parallel_size=1,
            decode_context_parallel_size=1,
            cp_kv_cache_interleave_size=1,
        ),
        attention_config=SimpleNamespace(
            hisparse_config=None, sparse_mla_force_mqa=config.force_mqa
        ),
        compilation_config=SimpleNamespace(static_forward_context=layers),
        speculative_config=None,
    )


def cache_spec(config: Config) -> SimpleNamespace:
    """What stands for the layer's AttentionSpec."""
    dtype = torch.uint8 if config.fp8 else torch.bfloat16
    return SimpleNamespace(block_size=config.geometry.block_size, dtype=dtype)


class PrefillBackend:
    """The dense attention that prefills may go to: there, and never run by the suite."""

    def clone(self) -> "PrefillBackend":
        return self

    def prepare_metadata(self, prefill: Any) -> None:
        pass

    def supports_quant_output(self, key: Any) -> bool:
        return False


class Layer:
    """The attention layer; where prefills go is decided by vLLM's own method.

    attention: vLLM's module that has the layer's class.
    """

    hisparse_cache = None
    v_head_dim, qk_nope_head_dim = _V_DIM, _NOPE_DIM
    _k_scale_float: float | None = None

    def __init__(self, attention: ModuleType, config: Config, backend: Any) -> None:
        self.prefill_backend = PrefillBackend()
        self.attn_backend = backend
        self.qk_rope_head_dim = config.head_dim_kpe
        self._use_sparse_mha = MethodType(attention.MLAAttention._use_sparse_mha, self)
        self._vllm_config: Any = None
        self.impl: Any = None


def implementation(backend: Any, config: Config, topk: torch.Tensor) -> Any:
    """vLLM's implementation class for one layer. topk: the index buffer, int32 [tokens, width]."""
    head_size = config.head_dim_ckv + config.head_dim_kpe
    return backend.get_impl_cls()(
        config.num_heads,
        head_size,
        config.sm_scale,
        1,
        None,
        None,
        cache_dtype(config),
        None,
        "decoder",
        None,
        topk_indices_buffer=topk,
        q_lora_rank=None,
        kv_lora_rank=config.head_dim_ckv,
        qk_nope_head_dim=_NOPE_DIM,
        qk_rope_head_dim=config.head_dim_kpe,
        qk_head_dim=_NOPE_DIM + config.head_dim_kpe,
        v_head_dim=_V_DIM,
        kv_b_proj=None,
    )


def common_metadata(module: ModuleType, batch: HostBatch) -> Any:
    """vLLM's description of a batch. module: vLLM's, with CommonAttentionMetadata."""
    starts = batch.query_start_loc_cpu
    bounds = batch.seq_lens_cpu_upper_bound
    longest = _MODEL_LENGTH if bounds is None else int(bounds.max())
    return module.CommonAttentionMetadata(
        query_start_loc=batch.query_start_loc,
        query_start_loc_cpu=starts,
        seq_lens=batch.seq_lens,
        num_reqs=batch.seq_lens.numel(),
        num_actual_tokens=max(batch.num_padded_tokens, int(starts[-1])),
        max_query_len=int(starts.diff().max()),
        max_seq_len=longest,
        block_table_tensor=batch.block_table,
        slot_mapping=torch.empty(0, dtype=torch.int64),
        seq_lens_cpu_upper_bound=bounds,
    )
