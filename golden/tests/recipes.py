"""Small recipes."""

from typing import Any

from golden.recipe import Recipe

SMALL: dict[str, Any] = {
    **{"name": "small", "num_heads": 4, "head_dim_ckv": 128, "head_dim_kpe": 16},
    **{"index_topk": 64, "index_kpool": 4, "topk_width": 80, "contexts": [7, 130, 67]},
    **{"q_lens": [1, 2, 1], "fmt": "bf16", "scale": 1.0, "scale_exps": [], "block_size": 16},
    **{"block_stride_rows": 20, "blocks": 20, "sm_scale": 0.08, "q_exp": 0, "numerics": "plain"},
}
FORMATS: dict[str, dict[str, Any]] = {
    "bf16": {},
    "e4m3": {"fmt": "e4m3", "scale": 0.7},
    "group": {"fmt": "e4m3_group", "scale": 0.5, "scale_exps": [-2, 1]},
}


def small(fmt: str = "bf16", **changes: Any) -> Recipe:
    return Recipe.from_dict({**SMALL, **FORMATS[fmt], **changes})
