"""Drawing a case's configuration and lengths: biased to the edges, reaching everything."""

from collections.abc import Sequence

from conformance.core.case import Case, Config, Geometry, Step
from golden import Draw

_LEAST_TOKENS = 48
_SPARE_TOKENS = 8
_K_SCALES = (1.0, 0.5, 0.0625, 0.0123, 0.37, 3.1)
_ROPE_SCALES = (1.0, 0.5, 2.0**-4, 2.0**-7)
_SMALL = {"bf16": 64, "fp8": 64, "fp8g": 256}
"""The small compressed width: of a cache with group scales, two groups of channels."""


def config_of(case: Case, steps: Sequence[Step], *, full_width: bool) -> Config:
    """Return the configuration of a case, with rows enough for `steps` and some to spare.

    full_width: the compressed width is the kernel's real 512 whatever the case says.
    """
    largest = max(step.padded_rows for step in steps)
    heads, kpe, dtype = int(case["heads"]), int(case["kpe"]), case["dtype"]
    fp8, grouped = dtype != "bf16", dtype == "fp8g"
    ckv = 512 if full_width or case["width"] == "full" else _SMALL[dtype]
    scales = _ROPE_SCALES if grouped else _K_SCALES
    k_scale = case.draw.fork("k_scale").choice(scales) if fp8 else 1.0
    return Config(
        num_heads=heads,
        head_dim_ckv=ckv,
        head_dim_kpe=kpe,
        fp8=fp8,
        geometry=case.geometry,
        max_tokens=max(_LEAST_TOKENS, largest + _SPARE_TOKENS),
        # Unit-variance queries and cache values then give logits of about unit variance.
        sm_scale=(ckv + kpe) ** -0.5 / k_scale,
        k_scale=k_scale,
        force_mqa=case["how"].endswith("mqa"),
        group_scales=grouped,
    )


def step_of(case: Case) -> Step:
    """Draw a case's batch: decodes and drafts first, sometimes a prefill, idle and padding ones."""
    draw = case.draw.fork("step")
    q_lens = _many(draw) if case["rows"] == "many" else _few(draw, case)
    geometry = case.geometry
    seq_lens = tuple(_length(draw, case["lens"], count, geometry) for count in q_lens)
    bounds = tuple(
        max(count, length + _loss(draw, case["loss"], count, geometry))
        for count, length in zip(q_lens, seq_lens, strict=True)
    )
    padded = sum(q_lens) + draw.choice((0, 0, 1, 5))
    return Step(q_lens, seq_lens, bounds, padded)


def _few(draw: Draw, case: Case) -> tuple[int, ...]:
    large = case.geometry.index_topk >= 2048
    requests = draw.randint(1, 4) if large else draw.randint(1, 7)
    counts = [draw.choice((1, 1, 1, 2, 3, 4)) for _ in range(requests)]
    if requests > 2 and draw.randint(0, 3) == 0:
        counts[draw.randint(0, requests)] = 0  # an idle request in the middle
    if not large and draw.randint(0, 4) == 0:
        counts.append(draw.randint(5, 13))  # a chunk of a prompt
    if sum(counts) == 0:
        counts[0] = 1
    return tuple(counts)


def _many(draw: Draw) -> tuple[int, ...]:
    target = draw.choice((131, 132, 133, 200, 264, 300))
    counts: list[int] = []
    while sum(counts) < target:
        counts.append(min(draw.choice((1, 2, 4, 8)), target - sum(counts)))
    return tuple(counts)


def edges(geometry: Geometry) -> list[int]:
    """Contexts around which the valid count changes its rule or a tile or block ends."""
    topk, kpool, block = geometry.index_topk, geometry.index_kpool, geometry.block_size
    around = [1, 2, 3, 5, 31, 32, 33, 63, 64, 65, block, block + 1]
    around += [topk + delta for delta in (-1, 0, 1)]
    around += [topk + kpool + delta for delta in (-1, 0, 1)]
    around += [topk + 2 * kpool - 1, 2 * topk - 1, 2 * topk, 2 * topk + kpool - 1]
    return [value for value in around if value > 0]


def _length(draw: Draw, kind: str, queries: int, geometry: Geometry) -> int:
    topk, kpool = geometry.index_topk, geometry.index_kpool
    longest = topk * 2 + kpool if topk >= 2048 else topk * 3 + kpool
    if queries == 0:
        return draw.choice((0, draw.randint(0, longest)))
    if kind == "mixed":
        kind = draw.choice(("edge", "edge", "short", "full", "long"))
    if kind == "dead":
        # Some rows see nothing: the request ended, or its device length trails its drafts.
        return draw.choice((0, 0, draw.randint(0, queries), draw.randint(queries, longest)))
    if kind == "edge":
        return max(queries, draw.choice(edges(geometry)))
    if kind == "vast" and draw.randint(0, 3) == 0:
        # Around 128 Ki tokens: beyond 16 bits, and on both sides of a completed pool.
        return draw.choice((131327, 131328, 131329, 131327 + kpool))
    if kind in ("short", "vast"):
        return queries + draw.randint(0, 40)
    if kind == "full":
        # Every row of the request is saturated whatever its place.
        return topk + kpool + queries + draw.randint(0, longest - topk)
    return max(queries, draw.randint(1, longest + 1))


def _loss(draw: Draw, kind: str, queries: int, geometry: Geometry) -> int:
    """How far the host's bound exceeds the truth."""
    if kind == "none":
        return 0
    if kind == "far":
        return draw.randint(0, 2 * geometry.index_topk + 200)
    return draw.randint(0, 5) * int(queries > 0)
