"""The plan of FlashInfer's MLA wrapper, simulated: what is checked, copied, kept and waited for.

`conformance.twin.wrapper` makes the whole wrapper of it.
"""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import torch

from conformance.twin import plan_checks as checks
from conformance.twin.eager import IMMEDIATE, Waits
from conformance.twin.errors import TwinDomainError
from conformance.twin.wrapping import INT_WORKSPACE_BYTES, Wrapping

NAMES = ("qo_indptr", "kv_indptr", "kv_indices", "kv_len_arr")
_MIRRORED = ("_int_workspace_buffer", "_pin_memory_int_workspace_buffer")


class _Planned:
    """What one plan leaves behind: the wrapper itself in 0.6.18, `_planned_backend` later."""

    _backend = "fa3"

    def __init__(self, int_workspace: torch.Tensor, scratch: torch.Tensor) -> None:
        self._int_workspace_buffer = int_workspace
        self._pin_memory_int_workspace_buffer = scratch
        self._plan_info: list[int] = []


class Planning:
    """The half of the wrapper that plans.

    waits: every wait of the host for the device so far, with its reason.
    """

    wrapping: ClassVar[Wrapping]
    make_module: ClassVar[Any]
    device_work: ClassVar[Any] = IMMEDIATE
    any_dims: ClassVar[bool] = False

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        use_cuda_graph: bool = False,
        qo_indptr: torch.Tensor | None = None,
        kv_indptr: torch.Tensor | None = None,
        kv_indices: torch.Tensor | None = None,
        kv_len_arr: torch.Tensor | None = None,
        backend: str = "auto",
    ) -> None:
        if backend not in ("auto", "fa3"):
            raise TwinDomainError(f"backend {backend!r}; the twin covers 'fa3' and 'auto'")
        known = getattr(self.device_work, "waits", None)
        self.waits = Waits() if known is None else known
        self._float_workspace_buffer = float_workspace_buffer
        self.device = float_workspace_buffer.device
        self._use_cuda_graph = use_cuda_graph
        self._qo_indptr_buf, self._kv_indptr_buf = qo_indptr, kv_indptr
        self._kv_indices_buf, self._kv_len_arr_buf = kv_indices, kv_len_arr
        self._backend = "fa3" if self.wrapping.backend_object is False else backend
        self._warned: set[str] = set()
        if self.wrapping.backend_object:
            self._planned_backend: _Planned | None = None
        else:
            self._int_workspace_buffer, self._pin_memory_int_workspace_buffer = (
                self._device_bytes(INT_WORKSPACE_BYTES),
                torch.empty(INT_WORKSPACE_BYTES, dtype=torch.uint8),
            )

    def _device_bytes(self, size: int) -> torch.Tensor:
        made = torch.empty(size, dtype=torch.uint8, device=self.device)
        adopt = getattr(self.device_work, "adopt", None)
        return made if adopt is None else adopt(made)

    def plan(self, *args: Any, **kwargs: Any) -> None:
        """Plan flat CSR tensors; arguments as FlashInfer's, positional or by name."""
        if args:
            self._deprecate("positional", "positional arguments of plan and run")
        with torch._C.DisableTorchFunction():  # what waits here is counted here
            self._plan(*args, **kwargs)

    def _plan(
        self,
        qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        kv_indices: torch.Tensor,
        kv_len_arr: torch.Tensor,
        num_heads: int,
        head_dim_ckv: int,
        head_dim_kpe: int,
        page_size: int,
        causal: bool,
        sm_scale: float,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
        use_profiler: bool = False,
    ) -> None:
        if use_profiler:
            raise TwinDomainError("use_profiler True is not covered")
        self._deprecate("flat", "flat metadata tensors of plan")
        arrays = dict(zip(NAMES, (qo_indptr, kv_indptr, kv_indices, kv_len_arr), strict=True))
        for name, tensor in arrays.items():
            if name != "kv_indices" and self._on_device(tensor):
                self.waits.add(f"{name} read back from the device")
        self._check(arrays, num_heads, head_dim_ckv, head_dim_kpe, page_size, q_data_type,
                    kv_data_type)  # fmt: skip
        module = self.make_module()
        if self.wrapping.backend_object:
            previous = self._planned_backend
            carried = previous if self._use_cuda_graph else None
            planned = _Planned(
                carried._int_workspace_buffer
                if carried is not None
                else self._device_bytes(INT_WORKSPACE_BYTES),
                torch.empty(INT_WORKSPACE_BYTES, dtype=torch.uint8),
            )
        else:
            planned = _Planned(self._int_workspace_buffer, self._pin_memory_int_workspace_buffer)
            self._stage(arrays)  # before the plan, whatever becomes of it
        taken = self._snapshots(arrays, planned)
        try:
            given = (self._float_workspace_buffer, planned._int_workspace_buffer,
                     planned._pin_memory_int_workspace_buffer)  # fmt: skip
            result = module.plan(
                *given, qo_indptr, kv_indptr, kv_len_arr, num_heads, head_dim_ckv, causal
            )
            if len(result) == 2:  # the copy is FlashInfer's adapter's, from pinned memory
                planned._plan_info, size = result
                device, scratch = given[1:]
                device[:size].copy_(scratch[:size])
            else:
                planned._plan_info = result
            pages = self._page_range(arrays) if self.wrapping.reads_page_range else None
            if self.wrapping.backend_object:
                self._stage(arrays)
        except BaseException:
            for buffer, copy in taken:
                buffer.copy_(copy)
            raise
        self._cached_module = module
        self._planned_shape = (int(qo_indptr[kv_len_arr.numel()]), num_heads)
        self._planned_pages = pages
        self._causal, self._page_size, self._sm_scale = causal, page_size, sm_scale
        self._head_dim_ckv, self._head_dim_kpe = head_dim_ckv, head_dim_kpe
        self._q_data_type, self._kv_data_type = q_data_type, kv_data_type
        self._plan_info = planned._plan_info
        if self.wrapping.backend_object:
            self._planned_backend = planned
            for name in _MIRRORED:
                setattr(self, name, getattr(planned, name))

    def _on_device(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is the device's: as the device says, or else in a reserved buffer."""
        known = getattr(self.device_work, "on_device", None)
        if known is not None and known(tensor):
            return True
        ours = (self._float_workspace_buffer, *self._reserved().values())
        place = tensor.untyped_storage().data_ptr()
        return any(b is not None and b.untyped_storage().data_ptr() == place for b in ours)

    def _reserved(self) -> dict[str, torch.Tensor | None]:
        buffers = (self._qo_indptr_buf, self._kv_indptr_buf, self._kv_indices_buf)
        return dict(zip(NAMES, (*buffers, self._kv_len_arr_buf), strict=True))

    def _check(
        self,
        arrays: dict[str, torch.Tensor],
        heads: int,
        ckv: int,
        kpe: int,
        page_size: int,
        q_type: torch.dtype,
        kv_type: torch.dtype,
    ) -> None:
        wrapping, reserved = self.wrapping, self._reserved()
        if wrapping.checks_metadata:
            checks.check_csr(arrays, page_size)
            if self._use_cuda_graph:
                checks.check_reserved(reserved, arrays)
                checks.check_all_reserved(reserved)
        checks.check_types(q_type, kv_type, ckv, kpe)
        if wrapping.checks_kernel and kv_type != torch.float8_e4m3fn and kv_type != q_type:
            raise checks.PlanUnsupported(f"kv_data_type {kv_type} and q_data_type {q_type} differ")
        if not self.any_dims:
            checks.check_dims(kv_type, ckv, kpe, fa3=wrapping.checks_kernel)
        starts, lengths = arrays["qo_indptr"].tolist(), arrays["kv_len_arr"].tolist()
        sms = self.make_module().num_sms
        if wrapping.counts_works:
            checks.check_works(starts, lengths, heads, sms)
        if wrapping.checks_workspace:
            needed = checks.float_workspace_bytes(starts, len(lengths), heads, ckv, sms)
            held = self._float_workspace_buffer.nbytes
            if held < needed:
                raise checks.PlanUnsupported(f"float workspace of {held} bytes; needed: {needed}")

    def _stage(self, arrays: dict[str, torch.Tensor]) -> None:
        """Copy the caller's tensors into the reserved buffers, or make device tensors of them."""
        for name, given in arrays.items():
            if not self._on_device(given):
                self.waits.uploaded(name, given.nbytes)
        if self._use_cuda_graph:
            for name, buffer in self._reserved().items():
                if buffer is None:
                    raise AttributeError(f"a graph needs a reserved {name}; found None")
                given = arrays[name]
                (buffer[: len(given)] if name == "kv_indices" else buffer).copy_(given)
            return
        for name, given in arrays.items():
            setattr(self, f"_{name}_buf", given.to(self.device))

    def _snapshots(
        self, arrays: dict[str, torch.Tensor], planned: _Planned
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Clones that a failed plan is undone with: device memory, no wait."""
        if not self._use_cuda_graph or self.wrapping.snapshots == "none":
            return []
        targets = [planned._int_workspace_buffer]
        for name, buffer in self._reserved().items():
            if buffer is not None:
                whole = self.wrapping.snapshots == "all" or name != "kv_indices"
                targets.append(buffer if whole else buffer[: len(arrays[name])])
        return [(target, target.clone()) for target in targets]

    def _page_range(self, arrays: dict[str, torch.Tensor]) -> tuple[int, int]:
        """Least page and one past the largest of those planned."""
        rows = arrays["kv_len_arr"].numel()
        first, last = (int(arrays["kv_indptr"][row]) for row in (0, rows))
        if first >= last:
            return 0, 0
        indices = arrays["kv_indices"]
        if self._on_device(indices):
            self.waits.add("the least of kv_indices read back from the device")
            self.waits.add("the largest of kv_indices read back from the device")
        low, high = torch.aminmax(indices[first:last])
        return int(low), int(high) + 1

    def _deprecate(self, kind: str, what: str) -> None:
        if self.wrapping.warns and kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(f"{what} are deprecated in FlashInfer {self.wrapping.version}",
                          DeprecationWarning, stacklevel=3)  # fmt: skip
