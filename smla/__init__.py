"""smla: sparse-MLA decode attention for NVIDIA Hopper on FlashInfer.

Construct a `SparseMLABackend` for a `SparseMLAConfig`, take a `SparseMLABuilder` from it, build a
`BatchLayout` into `SparseMLAMetadata` each step, and call `forward` for each layer. A cache in
vLLM's fp8_ds_mla format becomes one that it serves with `convert_ds_mla`.
"""

from smla import errors
from smla.backend import SparseMLABackend
from smla.builder import SparseMLABuilder, SparseMLAMetadata, routes_prefill_to_mha
from smla.cache_write import write_per_group, write_per_tensor
from smla.config import SparseMLAConfig
from smla.ds_mla import convert_ds_mla
from smla.flags import Flag
from smla.group_scales import new_group_scales
from smla.layout import BatchLayout
from smla.memory import MemoryEstimate, memory_estimate
from smla.plan_state import PlanState, PlanStats
from smla.runtime import CpuRuntime, CudaRuntime, Runtime

__version__ = "0.1.0"

__all__ = [
    "BatchLayout",
    "CpuRuntime",
    "CudaRuntime",
    "Flag",
    "MemoryEstimate",
    "PlanState",
    "PlanStats",
    "Runtime",
    "SparseMLABackend",
    "SparseMLABuilder",
    "SparseMLAConfig",
    "SparseMLAMetadata",
    "convert_ds_mla",
    "errors",
    "memory_estimate",
    "new_group_scales",
    "routes_prefill_to_mha",
    "write_per_group",
    "write_per_tensor",
]
