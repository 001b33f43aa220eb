"""A canonical case through FlashInfer's own wrapper, called as its documentation says."""

import importlib
from typing import Any

import torch
from torch import Tensor

from conformance.bench.wrapper import FLOAT_WORKSPACE, told
from golden.inputs import Inputs


def attend(inputs: Inputs, device: torch.device) -> Tensor:
    """Plan the rows' exact lengths and run. BF16 [rows, num_heads, head_dim_ckv].

    An FP8 cache's scales are handed over as they are: of the tensor as a number, of groups as an
    array.
    """
    mla: Any = importlib.import_module("flashinfer.mla")
    recipe, int32 = inputs.recipe, torch.int32
    slots, ckv = inputs.slots(), recipe.head_dim_ckv
    lengths = torch.tensor([len(row) for row in slots], dtype=int32)
    offsets = torch.cat([torch.zeros(1, dtype=int32), lengths.cumsum(0).to(int32)])
    kind = torch.bfloat16 if recipe.fmt == "bf16" else torch.float8_e4m3fn
    cache = inputs.cache.data.to(device).view(kind).view(-1, 1, inputs.cache.head_dim)
    wrapper = mla.BatchMLAPagedAttentionWrapper(
        torch.empty(FLOAT_WORKSPACE, dtype=torch.uint8, device=device), backend="fa3"
    )
    csr = {
        "qo_indptr": torch.arange(recipe.rows + 1, dtype=int32),
        "kv_indptr": offsets,
        "kv_indices": torch.cat(slots).to(int32),
        "kv_len_arr": lengths,
    }
    wrapper.plan(
        **told(mla, {name: tensor.to(device) for name, tensor in csr.items()}),
        num_heads=recipe.num_heads,
        head_dim_ckv=ckv,
        head_dim_kpe=recipe.head_dim_kpe,
        page_size=1,
        causal=False,
        sm_scale=recipe.sm_scale,
        q_data_type=torch.bfloat16,
        kv_data_type=kind,
    )
    scales: dict[str, Any] = {}
    if (groups := inputs.cache.group_scales) is not None:
        scales = {"ckv_scale_arr": groups.to(device)[:, None], "kpe_scale": recipe.scale}
    elif recipe.fmt != "bf16":
        scales = {"ckv_scale": recipe.scale, "kpe_scale": recipe.scale}
    q_nope, q_pe = inputs.q_nope.to(device), inputs.q_pe.to(device)
    out: Tensor = wrapper.run(q_nope, q_pe, cache[..., :ckv], cache[..., ckv:], **scales)
    return out
