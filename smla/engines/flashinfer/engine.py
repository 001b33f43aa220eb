"""FlashInfer's native planner and kernel, called with our own buffers and staging."""

import torch
from torch import Tensor

from smla.config import SparseMLAConfig
from smla.engines.flashinfer.compat import NativeSource
from smla.kv_cache import FlatCache
from smla.runtime import Runtime
from smla.schedule import ScheduleLayout

_NOT_CAUSAL = 0
_PAGE_SIZE = 1


class FlashInferEngine:
    """Plans and runs one native module.

    plan_info: what FlashInfer returned last; every plan has the same one, checked each time.
    """

    capabilities = frozenset({"needs_plan", "exact_reads", "bf16", "fp8"})

    def __init__(self, config: SparseMLAConfig, runtime: Runtime, source: NativeSource) -> None:
        self.layout = ScheduleLayout(config.num_heads, runtime.num_sms, config.head_dim_ckv)
        self._config = config
        self._runtime = runtime
        self._module = source.load(config)
        self._rows = torch.arange(config.max_tokens + 1, dtype=torch.int32)
        self.plan_info = self.layout.plan_info

    def plan(
        self, float_workspace: Tensor, int_workspace: Tensor, staging: Tensor, lengths: Tensor
    ) -> None:
        rows = lengths.numel()
        kv_indptr = torch.zeros(rows + 1, dtype=torch.int32)
        torch.cumsum(lengths, 0, dtype=torch.int32, out=kv_indptr[1:])
        info, staged_bytes = self._runtime.native_plan(
            self._module.plan,
            float_workspace,
            int_workspace,
            staging,
            self._rows[: rows + 1],
            kv_indptr,
            lengths,
            self._config.num_heads,
            self._config.head_dim_ckv,
            False,
        )
        self.plan_info = self.layout.check(info, int(staged_bytes))

    def run(
        self,
        float_workspace: Tensor,
        int_workspace: Tensor,
        kv_indices: Tensor,
        q_nope: Tensor,
        q_pe: Tensor,
        cache: FlatCache,
        out: Tensor,
        k_scale: float,
    ) -> None:
        self._runtime.native_run(
            self._module.run,
            float_workspace,
            int_workspace,
            self.plan_info,
            q_nope,
            q_pe,
            cache.ckv,
            cache.kpe,
            kv_indices,
            out,
            None,
            _NOT_CAUSAL,
            self._config.num_heads,
            _PAGE_SIZE,
            self._config.sm_scale,
            False,
            k_scale,
            k_scale,
            None,
        )
