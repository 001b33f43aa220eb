"""FlashInfer's native planner and kernel, called with our own buffers and staging."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from smla import errors
from smla.config import SparseMLAConfig
from smla.engines.flashinfer.compat import (
    FINITE_MASK,
    NativeSource,
    complete,
    out_dtype,
    planned,
)
from smla.kv_cache import FlatCache
from smla.runtime import Runtime
from smla.scale import LEAST_POWER, KVScale, is_sm_scale
from smla.schedule import ScheduleLayout

_CLEAR_OF_THE_MASK = 16.0
"""Logits below a row's largest at which masked positions weigh nothing: 63 e^-16 < 2^-17."""

_NOT_CAUSAL = 0
_PAGE_SIZE = 1


class FlashInferEngine:
    """Plans and runs one native module.

    plan_info: what FlashInfer returned last; every plan has the same one, checked each time.
    """

    capabilities = frozenset({"needs_plan", "exact_reads", "bf16", "fp8", "fp8_group"})

    def __init__(self, config: SparseMLAConfig, runtime: Runtime, source: NativeSource) -> None:
        self.layout = ScheduleLayout(config.num_heads, runtime.num_sms, config.head_dim_ckv)
        self.plan_info = list(self.layout.plan_info)
        self.plan_copies = False
        self.out_dtype = out_dtype(config)
        self._native_info: Sequence[int] = ()
        self._staged_bytes: int | None = None
        self._config = config
        self._runtime = runtime
        self._module = complete(source.load(config))
        self._rows = torch.from_numpy(np.arange(config.max_tokens + 1, dtype=np.int32))

    def plan(
        self,
        float_workspace: Tensor,
        int_workspace: Tensor,
        staging: Tensor,
        first_row: int,
        lengths: Tensor,
        kv_indptr: Tensor,
    ) -> None:
        result = self._runtime.native_plan(
            self._module.plan,
            float_workspace,
            int_workspace,
            staging,
            self._rows[first_row : first_row + lengths.numel() + 1],
            kv_indptr,
            lengths,
            self._config.num_heads,
            self._config.head_dim_ckv,
            False,
        )
        info, staged_bytes = planned(result)
        self.plan_copies = staged_bytes is None
        # FlashInfer's own object is cheaper to compare and to pass back than a list of its items.
        if info != self._native_info or staged_bytes != self._staged_bytes:
            self.plan_info = self.layout.check(info, staged_bytes)
            self._native_info, self._staged_bytes = info, staged_bytes

    def check_scale(self, scale: KVScale) -> None:
        logits = self._config.sm_scale * scale.rest
        if not is_sm_scale(logits):
            raise errors.ScaleError(
                "k_scale",
                found=f"{scale.value}, with sm_scale {self._config.sm_scale}",
                allowed="a product that float32 holds",
                remedy="bring the two scales nearer to 1",
            )
        # Such a version masks with a finite logit, which true ones must stay away from: they may
        # not be larger inside the kernel than they are, nor the mask too near to them.
        low, near = scale.rest < 1, logits * FINITE_MASK < _CLEAR_OF_THE_MASK
        if self.plan_copies and (low or near):
            raise errors.ScaleError(
                "k_scale",
                found=f"{scale.value}, with sm_scale {self._config.sm_scale}",
                allowed=f"k_scale of at least {LEAST_POWER}, and a mask of -{FINITE_MASK:g} "
                f"{_CLEAR_OF_THE_MASK:g} logits away, with this FlashInfer (before 0.7.0)",
                remedy="install FlashInfer 0.7.0 or newer, which masks with an infinite logit",
            )

    def run(
        self,
        float_workspace: Tensor,
        int_workspace: Tensor,
        kv_indices: Tensor,
        q_nope: Tensor,
        q_pe: Tensor,
        cache: FlatCache,
        out: Tensor,
        *,
        sm_scale: float,
        kv_scale: float,
        ckv_scale_arr: Tensor | None,
    ) -> None:
        self._runtime.native_run(
            self._module.run,
            float_workspace,
            int_workspace,
            self._native_info,
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
            sm_scale,
            False,
            kv_scale,
            kv_scale,
            ckv_scale_arr,  # where given, read in the place of the first of the two
        )
