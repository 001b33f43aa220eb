"""A backend of your own under the suite: plain torch, BF16 caches, a row at a time."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch

import smla
from conformance.core.subject import Observation


class Group:
    def __init__(self, config: Any, runtime: Any) -> None:
        self.config, self.runtime = config, runtime

    def build(self, batch: Any) -> Any:  # once per step
        given = batch.query_start_loc, batch.seq_lens, batch.block_table
        starts, lengths, table = (tensor.tolist() for tensor in given)
        requests = zip(pairwise(starts), lengths, table, strict=True)
        rows = [(b, n - end + i + 1) for (start, end), n, b in requests for i in range(start, end)]
        return SimpleNamespace(num_rows=len(rows), prefill_to_mha=False, rows=rows)

    def forward(self, q_nope, q_pe, cache, topk_indices, metadata, k_scale, out) -> None:  # type: ignore[no-untyped-def]
        size, scale = self.config.geometry.block_size, self.config.sm_scale
        for row, (blocks, context) in enumerate(metadata.rows):
            tokens = [t for t in topk_indices[row].tolist() if 0 <= t < context]
            tokens = [t for t in tokens if t // size < len(blocks)]
            tokens = [t for t in tokens if 0 <= blocks[t // size] < len(cache)]
            block = torch.tensor([blocks[t // size] for t in tokens], dtype=torch.long)
            keys = cache[block, torch.tensor(tokens, dtype=torch.long) % size].float()
            weights = torch.softmax(torch.cat([q_nope, q_pe], -1)[row].float() @ keys.T * scale, -1)
            out[row] = (weights @ keys[:, : out.shape[-1]]).to(out.dtype)

    def observe(self) -> Observation:
        return Observation()  # nothing: requirements that look inside are then unobservable


class MyBackend:
    name, version, capabilities = "my-backend", "1.0", frozenset({"bf16"})

    def refusals(self, config: Any, capability: tuple[int, int]) -> list[str]:
        return [f"FP8 caches: found {config.kv_dtype_name or 'E4M3'}"] if config.fp8 else []

    def construct(self, config: Any, tier: Any, *, interpret: bool, wrap: Any = None) -> Group:
        return Group(config, smla.CudaRuntime() if tier.name == "hopper" else smla.CpuRuntime())
