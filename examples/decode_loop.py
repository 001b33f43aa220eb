"""A decode loop: on a Hopper GPU with FlashInfer, elsewhere on the CPU with a simulated one."""

from typing import Any

import torch

import smla
from conformance.twin.surface import NativeModule


class SimulatedFlashInfer:
    version = "simulated"
    head_dims_ckv: frozenset[int] | None = None

    def load(self, config: smla.SparseMLAConfig) -> Any:
        return NativeModule()


hopper = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
runtime = smla.CudaRuntime() if hopper else smla.CpuRuntime()
source = None if hopper else SimulatedFlashInfer()
config = smla.SparseMLAConfig(
    num_heads=16, sm_scale=512**-0.5, index_topk=128, topk_width=128, max_tokens=8, plan_slack=2
)
backend = smla.SparseMLABackend(config, runtime=runtime, source=source)
builder, device = backend.builder(), runtime.device

torch.manual_seed(0)
lengths = torch.tensor([7, 100, 500], dtype=torch.int32)
starts = torch.arange(4, dtype=torch.int32)  # one query token per request
table = torch.randperm(27, dtype=torch.int32).view(3, 9)
cache = torch.randn(27, 64, 512).bfloat16()
for step in range(6):
    lengths = lengths + 1
    batch = smla.BatchLayout(
        query_start_loc_cpu=starts,
        query_start_loc=starts.to(device),
        seq_lens=lengths.to(device),
        seq_lens_cpu_upper_bound=lengths,
        block_table=table.to(device),
    )
    metadata = builder.build(batch)  # once per step, for all layers
    q = torch.randn(3, 16, 512).bfloat16()
    topk = torch.full((3, 128), -1, dtype=torch.int32)
    expected = torch.empty(3, 16, 512, dtype=torch.float64)
    for row, length in enumerate(lengths.tolist()):  # an indexer: the best-scored tokens
        keys = cache[table[row]].view(-1, 512)[:length].double()
        best = (keys @ q[row].double().mean(0)).topk(min(length, 128)).indices
        topk[row, : best.numel()] = best
        weights = torch.softmax(q[row].double() @ keys[best].T * config.sm_scale, dim=-1)
        expected[row] = weights @ keys[best]
    q = q.to(device)
    out = backend.forward(q, q[..., :0], cache.to(device), topk.to(device), metadata)
    error = float((out.cpu().double() - expected).norm() / expected.norm())
    stats = builder.state.stats
    print(f"step {step}: plans {stats.plans}, reuses {stats.reuses}, relative error {error:.1e}")
