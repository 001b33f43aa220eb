"""FlashInfer's `flashinfer.mla.BatchMLAPagedAttentionWrapper` of one version, simulated.

For code that calls FlashInfer through its wrapper: constructor, plan, run and the attributes that
such code reaches for, over the simulated module (`conformance.twin.surface`). What versions do
differently is data in `conformance.twin.wrapping`, what they refuse is in
`conformance.twin.plan_checks`. Covered: backend "fa3" (or "auto", which is that on a Hopper GPU),
flat tensors, split inputs; other forms raise TwinDomainError.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

from conformance.twin.eager import IMMEDIATE
from conformance.twin.errors import TwinDomainError
from conformance.twin.planning import Planning
from conformance.twin.surface import MASK_NONE
from conformance.twin.wrapping import of_version


class SimulatedWrapper(Planning):
    """The wrapper; `package` makes the class of a version."""

    def run(
        self,
        q_nope: torch.Tensor,
        q_pe: torch.Tensor,
        ckv_cache: torch.Tensor,
        kpe_cache: torch.Tensor,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
        profiler_buffer: torch.Tensor | None = None,
        kv_len: torch.Tensor | None = None,
        page_table: torch.Tensor | None = None,
        return_lse_base_on_e: bool = False,
        o_scale: float | None = None,
        *,
        ckv_scale: float | None = None,
        ckv_scale_arr: torch.Tensor | None = None,
        kpe_scale: float | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Run what was planned; rows that no work item covers keep what `out` held."""
        self._deprecate("run", "separate tensors of run, and positional ones")
        if not getattr(self, "_plan_info", None):
            raise (RuntimeError if self.wrapping.backend_object else AttributeError)(
                "run() before plan(): there is no schedule"
            )
        covered = (profiler_buffer, kv_len, page_table, o_scale)
        if any(value is not None for value in covered):
            raise TwinDomainError("profiler_buffer, kv_len, page_table, o_scale are not covered")
        for name, tensor, planned in (
            ("q_nope", q_nope, self._q_data_type),
            ("q_pe", q_pe, self._q_data_type),
            ("ckv_cache", ckv_cache, self._kv_data_type),
            ("kpe_cache", kpe_cache, self._kv_data_type),
        ):
            if tensor.dtype != planned:
                raise ValueError(f"{name} has dtype {tensor.dtype}; planned was {planned}")
        if self.wrapping.checks_geometry:
            self._check_geometry(q_nope, ckv_cache)
        scales = _scales(self._kv_data_type, ckv_scale, ckv_scale_arr, kpe_scale)
        if out is None:
            out = torch.empty_like(q_nope)
        elif out.shape != q_nope.shape or out.dtype != q_nope.dtype:
            raise ValueError(f"out is {out.dtype} {tuple(out.shape)}; q_nope's are needed")
        if return_lse and lse is None:
            lse = torch.empty(q_nope.shape[:2], dtype=torch.float32, device=self.device)
        info, module = list(self._plan_info), self._cached_module
        fixed = (self._float_workspace_buffer, self._int_workspace_buffer, info, q_nope, q_pe)
        indices, result = self._kv_indices_buf, out
        rest = (MASK_NONE, q_nope.shape[1], self._page_size, self._sm_scale, return_lse_base_on_e)

        def work() -> None:
            module.run(*fixed, ckv_cache, kpe_cache, indices, result, lse, *rest, *scales)

        self.device_work.launch(work)
        return (out, lse) if return_lse and lse is not None else out

    def _check_geometry(self, q_nope: torch.Tensor, ckv_cache: torch.Tensor) -> None:
        if tuple(q_nope.shape[:2]) != self._planned_shape:
            raise ValueError(
                f"q_nope has (rows, heads) {tuple(q_nope.shape[:2])}; the planned query shape is "
                f"{self._planned_shape}"
            )
        if ckv_cache.shape[1] != self._page_size:
            raise ValueError(f"page size {ckv_cache.shape[1]}; planned was {self._page_size}")
        least, most = self._planned_pages or (0, 0)
        if least < 0 or ckv_cache.shape[0] < most:
            raise ValueError(f"the cache has {ckv_cache.shape[0]} pages; planned: {least}..{most}")


def _scales(
    kv_type: torch.dtype,
    ckv_scale: float | None,
    ckv_scale_arr: torch.Tensor | None,
    kpe_scale: float | None,
) -> tuple[float, float, torch.Tensor | None]:
    """The module's scale arguments; ValueError as every version raises it."""
    if kv_type != torch.float8_e4m3fn:
        if any(value is not None for value in (ckv_scale, ckv_scale_arr, kpe_scale)):
            raise ValueError(f"scales belong to FP8 caches; the planned one is {kv_type}")
        return 1.0, 1.0, None
    if (ckv_scale is None) == (ckv_scale_arr is None) or kpe_scale is None:
        raise ValueError("an FP8 cache needs kpe_scale, and one of ckv_scale and ckv_scale_arr")
    for name, value in (("ckv_scale", ckv_scale), ("kpe_scale", kpe_scale)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} is {value}; it must be finite and positive")
    return 1.0 if ckv_scale is None else float(ckv_scale), float(kpe_scale), ckv_scale_arr


def package(
    version: str,
    make_module: Callable[[], Any],
    *,
    device: Any = IMMEDIATE,
    any_dims: bool = False,
) -> dict[str, ModuleType]:
    """Modules `flashinfer` and `flashinfer.mla` of a version, to stand in `sys.modules`.

    make_module: makes the simulated native module. device: does device work (`launch`), and may
    tell (`on_device`) and be told (`adopt`) what lies in its memory, and count waits (`waits`).
    any_dims: head dimensions without a kernel are planned too, since the twin runs them.
    """
    wrapper = type(
        "BatchMLAPagedAttentionWrapper",
        (SimulatedWrapper,),
        {
            "wrapping": of_version(version),
            "make_module": staticmethod(make_module),
            "device_work": device,
            "any_dims": any_dims,
        },
    )
    top, mla = ModuleType("flashinfer"), ModuleType("flashinfer.mla")
    for module in (top, mla):
        module.__spec__ = ModuleSpec(module.__name__, None, is_package=True)
        module.__path__ = []
    vars(top).update(__version__=version, mla=mla)
    vars(mla).update(BatchMLAPagedAttentionWrapper=wrapper)
    return {"flashinfer": top, "flashinfer.mla": mla}
