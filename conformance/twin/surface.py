"""FlashInfer's native MLA module (SM90): plan and run with exactly its arguments, on the CPU.

Source: FlashInfer, csrc/batch_mla_sm90_plan.cu and batch_mla_sm90_run.cu; `run` is the same in all
versions on record, `plan` differs in what it returns and whether it copies
(`Semantics.plan_copies`). The native code checks next to nothing; where it would misread memory,
this module raises TwinDomainError and says what the twin covers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from conformance.twin.access import AccessLog
from conformance.twin.errors import NativeError, TwinDomainError
from conformance.twin.kernel import Call, execute
from conformance.twin.pinned import HostCopy
from conformance.twin.planner import layout, plan
from conformance.twin.semantics import Semantics, of_version
from conformance.twin.workspace import as_bytes

MASK_NONE = 0
FULL_SMS = 132  # H100 SXM, H200


class NativeModule:
    """The raw module of one FlashInfer version on a device with `num_sms` SMs.

    version: one on record, or semantics of one's own.
    log: where every read of `run` is recorded; None records nothing.
    enqueue: takes what a `plan` that copies by itself leaves on the stream, a
    `conformance.twin.pinned.HostCopy` (`Clock.enqueue` runs it late); None copies at once.
    """

    def __init__(
        self,
        version: str | Semantics = "0.7.2.post1",
        num_sms: int = FULL_SMS,
        log: AccessLog | None = None,
        enqueue: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self.semantics = version if isinstance(version, Semantics) else of_version(version)
        self.version = self.semantics.version
        self.num_sms = num_sms
        self.log = log
        self._enqueue = enqueue

    def plan(
        self,
        float_ws: torch.Tensor,
        int_ws: torch.Tensor,
        pinned: torch.Tensor,
        qo_indptr: torch.Tensor,
        kv_indptr: torch.Tensor,
        kv_len: torch.Tensor,
        num_heads: int,
        head_dim_o: int,
        causal: bool,
    ) -> tuple[list[int], int] | list[int]:
        """Write the schedule into `pinned`; return (plan-info, bytes for the caller to copy).

        qo_indptr, kv_indptr [rows + 1] and kv_len [rows] are int32 host tensors. The workspaces
        are only measured; the int workspace is neither read nor written. A module that copies by
        itself queues the copy of `pinned`, as it will be then, to the int workspace, and returns
        plan-info alone.
        """
        if causal:
            raise TwinDomainError("causal True is not covered; sparse MLA plans with causal False")
        for name, tensor in (
            ("qo_indptr", qo_indptr),
            ("kv_indptr", kv_indptr),
            ("kv_len", kv_len),
        ):
            _require_int32(name, tensor)
        needed = layout(self.num_sms).staged_bytes
        if int_ws.nbytes < needed:
            raise NativeError(f"int workspace holds {int_ws.nbytes} bytes; the plan needs {needed}")
        staging = pinned.view(-1).view(torch.uint8)
        info, staged = plan(
            qo_indptr,
            kv_indptr,
            kv_len,
            num_heads,
            head_dim_o,
            self.num_sms,
            staging,
            float_ws.nbytes,
        )
        if not self.semantics.plan_copies:
            return info, staged
        copy = HostCopy(as_bytes(int_ws)[:staged], staging[:staged])
        if self._enqueue is None:
            copy()
        else:
            self._enqueue(copy)
        return info

    def run(
        self,
        float_ws: torch.Tensor,
        int_ws: torch.Tensor,
        info: Sequence[int],
        q_nope: torch.Tensor,
        q_pe: torch.Tensor,
        ckv: torch.Tensor,
        kpe: torch.Tensor,
        kv_indices: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor | None,
        mask_mode: int,
        num_heads: int,
        page_size: int,
        sm_scale: float,
        return_lse_base_on_e: bool,
        ckv_scale: float,
        kpe_scale: float,
        ckv_scale_arr: torch.Tensor | None,
    ) -> None:
        """Execute the int workspace: q_nope [rows, heads, ckv] against ckv [slots, 1, ckv].

        kpe parts may have 0 channels. Writes out, lse where given (base e or 2) and the float
        workspace; rows that no work item covers keep what they held.
        """
        if mask_mode != MASK_NONE or page_size != 1:
            raise TwinDomainError(
                f"mask mode {mask_mode}, page size {page_size}: the twin covers mask mode "
                f"{MASK_NONE} (none) and page size 1"
            )
        _require_int32("kv_indices", kv_indices)
        _require_dtypes(q_nope, q_pe, ckv, kpe, out, lse)
        _require_shapes(q_nope, q_pe, ckv, kpe, out, lse, num_heads)
        if ckv_scale_arr is not None and ckv.dtype != torch.float8_e4m3fn:
            ckv_scale_arr = None  # compiled into the FP8 kernel alone; a BF16 cache ignores it
        call = Call(
            float_ws=float_ws,
            int_ws=int_ws,
            info=info,
            q_nope=q_nope,
            q_pe=q_pe,
            ckv=ckv,
            kpe=kpe,
            kv_indices=kv_indices,
            out=out,
            lse=lse,
            sm_scale=sm_scale,
            lse_base_e=return_lse_base_on_e,
            ckv_scale=ckv_scale,
            kpe_scale=kpe_scale,
            ckv_scale_arr=ckv_scale_arr,
        )
        with torch.no_grad():
            execute(call, self.semantics, self.log)


def _require_int32(name: str, tensor: torch.Tensor) -> None:
    if tensor.dtype != torch.int32 or tensor.dim() != 1 or not tensor.is_contiguous():
        raise TwinDomainError(
            f"{name} is {tensor.dtype} {tuple(tensor.shape)}; the native module reads it as a "
            "contiguous int32 vector"
        )


def _require_dtypes(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    ckv: torch.Tensor,
    kpe: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
) -> None:
    if {q_nope.dtype, q_pe.dtype} != {torch.bfloat16}:
        raise TwinDomainError(f"q_nope {q_nope.dtype}, q_pe {q_pe.dtype}: both must be bfloat16")
    if out.dtype not in (torch.bfloat16, torch.float16):
        raise TwinDomainError(f"out is {out.dtype}; modules exist for bfloat16 and float16")
    if ckv.dtype != kpe.dtype or ckv.dtype not in (torch.bfloat16, torch.float8_e4m3fn):
        raise TwinDomainError(
            f"ckv {ckv.dtype}, kpe {kpe.dtype}: both must be bfloat16 or both float8_e4m3fn"
        )
    if lse is not None and (lse.dtype != torch.float32 or not lse.is_contiguous()):
        raise TwinDomainError(f"lse is {lse.dtype}; it must be contiguous float32")


def _require_shapes(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    ckv: torch.Tensor,
    kpe: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    num_heads: int,
) -> None:
    _, heads, dim = q_nope.shape
    fits = (
        heads == num_heads
        and q_pe.shape[:2] == q_nope.shape[:2]
        and out.shape[1:] == (heads, dim)
        and ckv.shape[1:] == (1, dim)
        and kpe.shape[1:] == (1, q_pe.shape[2])
        and (lse is None or lse.shape[1:] == (heads,))
    )
    if not fits:
        raise TwinDomainError(
            f"num_heads {num_heads}, q_nope {tuple(q_nope.shape)}, q_pe {tuple(q_pe.shape)}, ckv "
            f"{tuple(ckv.shape)}, kpe {tuple(kpe.shape)}, out {tuple(out.shape)} do not belong "
            "together"
        )
    for name, tensor in (
        ("q_nope", q_nope),
        ("q_pe", q_pe),
        ("ckv", ckv),
        ("kpe", kpe),
        ("out", out),
    ):
        if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            raise TwinDomainError(
                f"{name} has stride {tensor.stride(-1)} between channels; the kernel assumes 1"
            )
