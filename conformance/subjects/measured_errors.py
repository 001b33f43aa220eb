"""smla on canonical cases, for the benchmark's table of errors."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import smla
from conformance.bench.shape import NotServed
from conformance.subjects.measured import Simulated
from golden.inputs import Inputs
from smla import errors
from smla.engines.flashinfer.compat import InstalledFlashInfer, NativeSource

NAME = "smla"


def factory(native: Callable[[], Any] | None = None) -> Callable[[Inputs], Tensor]:
    """What computes a case's step, BF16 [rows, num_heads, head_dim_ckv], or raises NotServed.

    native: makes a simulated FlashInfer module, to run on the CPU; None for the installed
    FlashInfer on the current GPU.
    """
    if native is None:
        return partial(_attend, smla.CudaRuntime(), InstalledFlashInfer())
    return partial(_attend, smla.CpuRuntime(), Simulated(native))


def _attend(runtime: smla.Runtime, source: NativeSource, inputs: Inputs) -> Tensor:
    try:
        return _served(runtime, source, inputs)
    except errors.SmlaError as refused:
        raise NotServed(str(refused)) from refused


def _served(runtime: smla.Runtime, source: NativeSource, inputs: Inputs) -> Tensor:
    recipe = inputs.recipe
    fp8, grouped = recipe.fmt != "bf16", recipe.fmt == "e4m3_group"
    config = smla.SparseMLAConfig(
        num_heads=recipe.num_heads,
        sm_scale=recipe.sm_scale,
        index_topk=recipe.index_topk,
        index_kpool=recipe.index_kpool,
        topk_width=recipe.topk_width,
        max_tokens=recipe.rows,
        head_dim_ckv=recipe.head_dim_ckv,
        head_dim_kpe=recipe.head_dim_kpe,
        kv_dtype=torch.float8_e4m3fn if fp8 else torch.bfloat16,
        kv_scaling="group" if grouped else "tensor",
        block_size=recipe.block_size,
    )
    backend = smla.SparseMLABackend(config, runtime=runtime, source=source)
    starts = torch.tensor([0, *recipe.q_lens]).cumsum(0).to(torch.int32)
    lengths = torch.tensor(recipe.contexts, dtype=torch.int32)

    def placed(tensor: Tensor) -> Tensor:
        there = runtime.empty(tuple(tensor.shape), tensor.dtype)
        runtime.write(there, tensor)
        return there

    batch = smla.BatchLayout(
        query_start_loc_cpu=starts,
        query_start_loc=placed(starts),
        seq_lens=placed(lengths),
        seq_lens_cpu_upper_bound=lengths,
        block_table=placed(inputs.block_table),
    )
    metadata = backend.builder().build(batch)
    rows = placed(inputs.cache.data)
    typed = rows if fp8 else rows.view(torch.bfloat16)
    blocks = typed.view(-1, recipe.block_stride_rows, inputs.cache.head_dim)
    scales: dict[str, Any] = {"k_scale": recipe.scale} if fp8 else {}
    if (groups := inputs.cache.group_scales) is not None:
        scales["ckv_scale_arr"] = placed(
            groups[: len(groups) - recipe.block_stride_rows + recipe.block_size].contiguous()
        )
    return backend.forward(
        placed(inputs.q_nope),
        placed(inputs.q_pe),
        blocks[:, : recipe.block_size],
        placed(inputs.topk),
        metadata,
        **scales,
    )
