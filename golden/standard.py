"""The canonical cases: two models, slices of both, three cache formats, contexts at their edges.

Contexts lie around places where something changes: half a tile, tiles and blocks of 64, two and
three of them, the top-k of 2048 and its pools, twice that, 128 Ki tokens, beyond 16 bits, and 256
more. Block tables of long contexts map few physical blocks many times.

Not here: rows without tokens, which a recipe cannot describe; top-k lists with gaps or with ids
out of range; NaN and Inf; block sizes and head dimensions of other models. Slices and long contexts
have plain numbers, and hard numbers have 16 heads and a rope part of 64.
"""

from typing import Any

from golden.recipe import Recipe

_GLM = {"num_heads": 64, "head_dim_kpe": 0, "sm_scale": 512**-0.5}
_MODELS: dict[str, dict[str, Any]] = {
    "glm-kpool4": {**_GLM, "index_kpool": 4, "topk_width": 2176},
    "glm-kpool1": {**_GLM, "index_kpool": 1, "topk_width": 2176},
    "deepseek": {
        **{"num_heads": 128, "head_dim_kpe": 64, "sm_scale": 192**-0.5},
        **{"index_kpool": 1, "topk_width": 2048},
    },
}
_FORMATS: dict[str, dict[str, Any]] = {
    "bf16": {"fmt": "bf16", "scale": 1.0, "scale_exps": (), "q_exp": 0},
    "e4m3": {"fmt": "e4m3", "scale": 0.0371, "scale_exps": (), "q_exp": 5},
    "group": {"fmt": "e4m3_group", "scale": 0.25, "scale_exps": (-6, -4), "q_exp": 4},
}
_CONTEXTS = {
    "short": (1, 31, 32, 33, 63, 64, 65, 127, 128, 129, 191, 192, 193),
    "full": tuple(range(2047, 2053)),
    "double": tuple(range(4095, 4101)),
    "vast": (131071, 131072, 131073, 131327, 131328, 131329),
}
_SLICES = {"glm-kpool4": (8, 16, 32), "deepseek": (8, 16, 32)}
_HARD: dict[str, tuple[str, int]] = {  # the name of a kind, its numerics, and what q_exp gains
    "dominating": ("dominating", 1),
    "equal": ("equal", 0),
    "large": ("plain", 5),
    "negative": ("negative", 3),
    "cancelling-values": ("cancelling-values", -6),
    "cancelling-logits": ("cancelling-logits", 0),
    "denormal": ("denormal", 0),
}
_EXTREME: dict[str, tuple[str, dict[str, Any]]] = {
    "half-scale": ("e4m3", {"scale": 0.5, "q_exp": 1}),
    "tiny-scale": ("e4m3", {"scale": 1.3e-6, "q_exp": 20}),
    "huge-scale": ("e4m3", {"scale": 5.6e3, "q_exp": -12}),
    "far-scales": ("group", {"scale_exps": (-30, 10), "q_exp": -9}),
    "tiny-scales": ("group", {"scale_exps": (-70, -66), "scale": 2.0**-66, "q_exp": 67}),
    "huge-scales": ("group", {"scale_exps": (60, 64), "scale": 2.0**64, "q_exp": -64}),
}


def _recipe(name: str, contexts: tuple[int, ...], **others: Any) -> Recipe:
    fields: dict[str, Any] = {
        **{"name": name, "key": name, "contexts": contexts, "q_lens": (1,) * len(contexts)},
        **{"head_dim_ckv": 512, "index_topk": 2048, "block_size": 64, "block_stride_rows": 64},
        **{"blocks": 40, "numerics": "plain"},
    }
    return Recipe(**(fields | others))


def recipes() -> list[Recipe]:
    """Every canonical case, in the order of the set."""
    found = []
    for model, of_model in _MODELS.items():
        for fmt, of_fmt in _FORMATS.items():
            for kind, contexts in _CONTEXTS.items():
                found.append(_recipe(f"{model}-{fmt}-{kind}", contexts, **of_model, **of_fmt))
    for model, slices in _SLICES.items():
        for heads in slices:
            for fmt, of_fmt in _FORMATS.items():
                of_slice = {**_MODELS[model], **of_fmt, "num_heads": heads, "q_lens": (1, 2, 1)}
                if heads == 16:
                    of_slice["block_stride_rows"] = 80
                name = f"{model}-heads{heads}-{fmt}"
                found.append(_recipe(name, (129, 2050, 4099), **of_slice))
    sliced = {**_MODELS["deepseek"], "num_heads": 16, "blocks": 50}
    for kind, (numerics, more) in _HARD.items():
        for fmt, of_fmt in _FORMATS.items():
            hard = {**sliced, **of_fmt, "q_exp": of_fmt["q_exp"] + more, "numerics": numerics}
            found.append(_recipe(f"{kind}-{fmt}", (66, 1024, 2048), **hard))
    for kind, (fmt, extreme) in _EXTREME.items():
        found.append(
            _recipe(f"{kind}-{fmt}", (66, 1024, 2048), **sliced, **_FORMATS[fmt] | extreme)
        )
    return found
