"""What FlashInfer's SM90 MLA kernel has code for."""

from smla.config import SparseMLAConfig
from smla.runtime import Runtime
from smla.schedule import ScheduleLayout


def refusals(
    config: SparseMLAConfig, runtime: Runtime, *, head_dims_ckv: frozenset[int] | None
) -> list[str]:
    """Return why FlashInfer's SM90 MLA kernel cannot serve `config`; empty when it can.

    head_dims_ckv: the compressed widths a module exists for; None for any (a simulation).
    """
    reasons = []
    if runtime.capability != (9, 0):
        major, minor = runtime.capability
        reasons.append(f"compute capability {major}.{minor}: the kernel needs 9.0 (Hopper)")
    if config.num_heads > 128:
        reasons.append(f"{config.num_heads} heads: the kernel takes 1 to 128")
    if config.head_dim_kpe not in (0, 64):
        reasons.append(f"qk_rope_head_dim {config.head_dim_kpe}: the kernel takes 0 or 64")
    if head_dims_ckv is not None and config.head_dim_ckv not in head_dims_ckv:
        allowed = ", ".join(map(str, sorted(head_dims_ckv)))
        reasons.append(f"kv_lora_rank {config.head_dim_ckv}: the kernel takes {allowed}")
    layout = ScheduleLayout(min(config.num_heads, 128), runtime.num_sms, config.head_dim_ckv)
    if config.max_graph_tokens > layout.most_rows:
        reasons.append(
            f"captured forwards of up to {config.max_graph_tokens} rows: a graph runs one schedule "
            f"of {layout.capacity} work items, which holds any {layout.most_rows} rows"
        )
    if config.block_size % 64:
        reasons.append(f"block size {config.block_size}: must be a multiple of 64")
    return reasons
