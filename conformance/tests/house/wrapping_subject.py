"""A subject that plans and runs through FlashInfer's wrapper class, as engines do."""

from typing import Any

import torch
from torch import Tensor

from conformance.core.case import Config
from conformance.core.subject import HostBatch, Observation, Tier
from conformance.twin.eager import Eager

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn


class Metadata:
    prefill_to_mha = False

    def __init__(self, rows: int) -> None:
        self.num_rows = rows


class Instance:
    """Plans every reserved row of each step anew, and lets a graph's padding run along."""

    def __init__(self, config: Config, runtime: Eager) -> None:
        from flashinfer.mla import BatchMLAPagedAttentionWrapper

        self.runtime, self._config = runtime, config
        rows, width = config.max_tokens, config.geometry.topk_width
        self._reserved = {
            name: runtime.zeros((size,), torch.int32)
            for name, size in (
                ("qo_indptr", rows + 1),
                ("kv_indptr", rows + 1),
                ("kv_indices", rows * width + 1),
                ("kv_len_arr", rows),
            )
        }
        self._places = runtime.zeros((width,), torch.int32)
        self._places.copy_(torch.arange(width))
        with runtime.active():
            self._wrapper = BatchMLAPagedAttentionWrapper(
                runtime.empty((20 << 20,), torch.uint8),
                use_cuda_graph=True,
                backend="fa3",
                **self._reserved,
            )

    def build(self, batch: HostBatch) -> Metadata:
        config, rows = self._config, self._config.max_tokens
        live = int(batch.query_start_loc_cpu[-1])
        lengths = self.runtime.read(batch.seq_lens).int()  # the suite's read: nothing waits
        topk, pool = config.geometry.index_topk, config.geometry.index_kpool
        counts = torch.where(lengths <= topk, lengths, topk + lengths % pool)
        given = torch.zeros(rows, dtype=torch.int32)
        given[:live] = counts
        offsets = torch.nn.functional.pad(given.cumsum(0), (1, 0)).int()
        starts = torch.arange(rows + 1, dtype=torch.int32).clamp(max=live)
        self._table = batch.block_table
        with self.runtime.active():
            self._wrapper.plan(
                starts,
                offsets,
                self._reserved["kv_indices"][: int(offsets[-1])],
                given,
                config.num_heads,
                config.head_dim_ckv,
                config.head_dim_kpe,
                1,
                False,
                config.sm_scale,
                q_data_type=BF16,
                kv_data_type=FP8 if config.fp8 else BF16,
            )
        return Metadata(live)

    def forward(
        self,
        q_nope: Tensor,
        q_pe: Tensor,
        kv_cache: Tensor,
        topk_indices: Tensor,
        metadata: Metadata,
        k_scale: float | None,
        out: Tensor,
        device_k_scale: Tensor | None = None,
    ) -> None:
        size, dim = self._config.geometry.block_size, self._config.head_dim_ckv
        rows, indices = q_nope.shape[0], self._reserved["kv_indices"]
        scales = {"ckv_scale": k_scale, "kpe_scale": k_scale} if self._config.fp8 else {}
        with self.runtime.active():
            chosen = topk_indices.clamp(min=0)
            requests = torch.arange(rows).clamp(max=self._table.shape[0] - 1)
            slots = self._table[requests.unsqueeze(1), (chosen // size).long()] * size
            first = self._reserved["kv_indptr"][:rows].unsqueeze(1) + self._places
            place = torch.where(topk_indices >= 0, first, indices.numel() - 1)
            indices.scatter_(0, place.flatten().long(), (slots + chosen % size).flatten().int())
            cache = kv_cache.view(FP8) if self._config.fp8 else kv_cache
            cache = cache.view(-1, 1, dim)
            out.copy_(self._wrapper.run(q_nope, q_pe, cache, cache[..., :0], **scales))

    def observe(self) -> Observation:
        return Observation()


class WrappingSubject:
    name = "wrapping"
    capabilities = frozenset({"bf16", "fp8", "capture"})

    def refusals(self, config: Config, capability: tuple[int, int]) -> list[str]:
        return []

    def construct(
        self, config: Config, tier: Tier, *, interpret: bool, wrap: Any = None, clock: Any = None
    ) -> Instance:
        assert tier.native is not None and tier.package is not None
        runtime = Eager(tier.native().num_sms)
        tier.package(runtime)
        return Instance(config, runtime)
