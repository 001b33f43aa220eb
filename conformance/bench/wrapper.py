"""FlashInfer's own wrapper, held and planned as serving engines do, in any version.

All max_tokens rows are planned, padding rows without query tokens, into reserved buffers (CUDA
graphs need them), from CSR metadata on the host. What differs by version:

| | 0.6.18 | from 0.7.0 |
|---|---|---|
| CSR metadata | four tensors | `MLAPlanMetadata.csr`; four tensors still work, deprecated |
| layouts | split tensors, always | packed unless plan() is told "split" |
| offsets | any | must be the running sum of the lengths, int32, rank 1 |
| buffers | qo_indptr and kv_indptr of exactly max_tokens + 1 entries | and equal in shape |
"""

import importlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from conformance.bench.shape import Call, Shape

FLOAT_WORKSPACE = 128 << 20  # FlashInfer's own advice
_PAGE_SIZE = 1


def told(mla: Any, csr: dict[str, Any]) -> dict[str, Any]:
    """CSR metadata of split tensors as this version's plan() takes it."""
    metadata = getattr(mla, "MLAPlanMetadata", None)
    if metadata is None:
        return csr
    return {"metadata": metadata.csr(**csr), "query_layout": "split", "kv_cache_layout": "split"}


class Wrapper:
    """One wrapper with its reserved buffers. mla: the module `flashinfer.mla`, or a stand-in."""

    def __init__(self, shape: Shape, device: torch.device, mla: Any = None) -> None:
        mla = importlib.import_module("flashinfer.mla") if mla is None else mla
        self._shape = shape
        rows, int32 = shape.max_tokens, torch.int32
        self._kv_indices = torch.zeros(rows * shape.topk_width, dtype=int32, device=device)
        self._wrapper = mla.BatchMLAPagedAttentionWrapper(
            torch.empty(FLOAT_WORKSPACE, dtype=torch.uint8, device=device),
            use_cuda_graph=True,
            qo_indptr=torch.zeros(rows + 1, dtype=int32, device=device),
            kv_indptr=torch.zeros(rows + 1, dtype=int32, device=device),
            kv_indices=self._kv_indices,
            kv_len_arr=torch.zeros(rows, dtype=int32, device=device),
            backend="fa3",
        )
        self._mla = mla

    def planning(self, contexts: Sequence[int]) -> Call:
        """The call of plan() for rows of these contexts; its metadata is ready on the host."""
        shape = self._shape
        rows, int32 = shape.max_tokens, torch.int32
        lengths = torch.zeros(rows, dtype=int32)
        lengths[: len(contexts)] = torch.tensor([shape.planned(n) for n in contexts], dtype=int32)
        offsets = torch.zeros(rows + 1, dtype=int32)
        torch.cumsum(lengths, 0, dtype=int32, out=offsets[1:])
        csr: dict[str, Any] = {
            "qo_indptr": torch.arange(rows + 1, dtype=int32).clamp(max=len(contexts)),
            "kv_indptr": offsets,
            # The part in use: the wrapper copies whatever it is given, here onto itself.
            "kv_indices": self._kv_indices[: max(int(offsets[-1]), 1)],
            "kv_len_arr": lengths,
        }
        return partial(
            self._wrapper.plan,
            **told(self._mla, csr),
            num_heads=shape.num_heads,
            head_dim_ckv=shape.head_dim_ckv,
            head_dim_kpe=0,
            page_size=_PAGE_SIZE,
            causal=False,
            sm_scale=shape.head_dim_ckv**-0.5,
            q_data_type=torch.bfloat16,
            kv_data_type=torch.float8_e4m3fn if shape.fp8 else torch.bfloat16,
        )
