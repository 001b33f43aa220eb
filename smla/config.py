"""What a backend is constructed for: dimensions, dtypes, index geometry and capacity."""

from dataclasses import dataclass

import torch

from smla import errors
from smla.lengths import max_valid_count
from smla.scale import GROUP, SM_SCALES, is_sm_scale

KV_DTYPES = (torch.bfloat16, torch.float8_e4m3fn)
KV_SCALINGS = ("tensor", "group")

_KV_REMEDIES = {
    torch.float8_e5m2: "write the cache as E4M3 or BF16: FlashInfer's SM90 kernel has no other "
    "decoder, and an E5M2 code read as E4M3 is another number",
    torch.uint8: "name the logical element type, torch.float8_e4m3fn; for vLLM's fp8_ds_mla name "
    "torch.bfloat16, and convert the cache with smla.convert_ds_mla",
    torch.float16: "keep the cache in BF16: the kernel multiplies it with BF16 queries",
}
"""What to do about the formats that a cache may be in and the kernel cannot read."""


@dataclass(frozen=True)
class SparseMLAConfig:
    """Everything fixed for the life of a backend; one per attention group.

    num_heads: query heads of this rank (1..128).
    sm_scale: softmax scale of the logits (natural exponent).
    index_topk, index_kpool: how many tokens the indexer selects, and in pools of how many.
    topk_width: columns of the top-k buffer (at least index_topk + index_kpool - 1).
    max_tokens: the most rows of a batch, padding included; it sizes the device buffers.
    head_dim_ckv, head_dim_kpe: kv_lora_rank (512) and qk_rope_head_dim (0 or 64).
    kv_dtype: torch.bfloat16, or torch.float8_e4m3fn for caches stored as uint8.
    kv_scaling: what of an FP8 cache has a scale: "tensor" (one for all of it), or "group" (128
        channels of the compressed part of each token, in a float32 array beside the cache).
    block_size: tokens in a cache block (a multiple of 64).
    max_graph_tokens: the most rows, padding included, of a forward that will be captured; 0 where
        not known yet: each capture is then checked by itself.
    plan_slack: tokens by which a planned length may exceed its row bound.
    force_mqa: never route prefill rows to dense MHA.
    debug: read the flag word after each forward and raise (waits for the device).

    Raises errors.ShapeError, DtypeError, ScaleError, BufferWidthError or CapacityError for values
    that no engine could serve; what an engine serves is told by `SparseMLABackend.reasons`.
    """

    num_heads: int
    sm_scale: float
    index_topk: int
    topk_width: int
    max_tokens: int
    index_kpool: int = 1
    head_dim_ckv: int = 512
    head_dim_kpe: int = 0
    kv_dtype: torch.dtype = torch.bfloat16
    kv_scaling: str = "tensor"
    block_size: int = 64
    max_graph_tokens: int = 0
    plan_slack: int = 32
    force_mqa: bool = False
    debug: bool = False

    def __post_init__(self) -> None:
        for name, least in (
            ("num_heads", 1),
            ("index_topk", 1),
            ("index_kpool", 1),
            ("topk_width", 1),
            ("max_tokens", 1),
            ("head_dim_ckv", 1),
            ("head_dim_kpe", 0),
            ("block_size", 1),
            ("max_graph_tokens", 0),
            ("plan_slack", 0),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise errors.ShapeError(
                    name, found=repr(value), allowed=f"an int >= {least}", remedy=f"pass {name}"
                )
        if self.kv_dtype not in KV_DTYPES:
            raise errors.DtypeError(
                "kv_dtype",
                found=self.kv_dtype,
                allowed="torch.bfloat16 or torch.float8_e4m3fn (stored as uint8)",
                remedy=_KV_REMEDIES.get(
                    self.kv_dtype, "name the cache's logical element type, or keep it in BF16"
                ),
            )
        self._check_scaling()
        if not is_sm_scale(self.sm_scale):
            raise errors.ScaleError(
                "sm_scale",
                found=self.sm_scale,
                allowed=SM_SCALES,
                remedy="pass the model's softmax scale",
            )
        if self.topk_width < self.max_valid:
            raise errors.BufferWidthError(
                "topk_width",
                found=self.topk_width,
                allowed=f">= index_topk + index_kpool - 1 = {self.max_valid}",
                remedy="widen the top-k buffer, or lower index_topk or index_kpool",
            )
        if self.max_tokens * self.topk_width >= 2**31:
            raise errors.CapacityError(
                "max_tokens * topk_width",
                found=self.max_tokens * self.topk_width,
                allowed="below 2**31: packed offsets are int32",
                remedy="lower max_tokens",
            )

    def _check_scaling(self) -> None:
        if self.kv_scaling not in KV_SCALINGS:
            raise errors.ScaleError(
                "kv_scaling",
                found=repr(self.kv_scaling),
                allowed="'tensor' or 'group'",
                remedy="say what of the cache has a scale of its own",
            )
        if self.kv_scaling == "tensor":
            return
        if self.kv_dtype != torch.float8_e4m3fn:
            raise errors.ScaleError(
                "kv_scaling",
                found=f"'group' for kv_dtype {self.kv_dtype}",
                allowed="'group' for torch.float8_e4m3fn alone",
                remedy="a BF16 cache holds the values themselves: leave kv_scaling out",
            )
        if self.head_dim_ckv % GROUP:
            raise errors.ShapeError(
                "head_dim_ckv",
                found=self.head_dim_ckv,
                allowed=f"a multiple of {GROUP} where kv_scaling is 'group'",
                remedy="use one scale per tensor for this width",
            )

    @property
    def scale_groups(self) -> int:
        """Scales of a cache row's compressed part; 0 where there is one per tensor, or none."""
        return self.head_dim_ckv // GROUP if self.kv_scaling == "group" else 0

    @property
    def max_valid(self) -> int:
        """The largest valid count of a row."""
        return max_valid_count(self.index_topk, self.index_kpool)

    @property
    def head_dim(self) -> int:
        """Elements of a cache row: compressed part and rope part."""
        return self.head_dim_ckv + self.head_dim_kpe

    @property
    def storage_dtype(self) -> torch.dtype:
        """The element type of the cache tensor itself."""
        return torch.uint8 if self.kv_dtype == torch.float8_e4m3fn else self.kv_dtype
