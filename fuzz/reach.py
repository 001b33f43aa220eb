"""Which values of which dimensions a frame has, and which pairs of them were reached."""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from conformance.core.case import GEOMETRIES
from fuzz.engine import Frame
from fuzz.faults import FAULTS
from fuzz.history import DEVICES, Shape

DIMENSIONS: dict[str, tuple[str, ...]] = {
    "dtype": ("bf16", "fp8"),
    "kpe": ("0", "64"),
    "heads": ("1", "2 to 64", "above"),
    "geo": ("flat", "odd", "pool", "serve", "tiny", "wide"),
    "lag": ("0", "1", "more"),
    "device": DEVICES,
    "how": ("eager", "graph", "draft"),
    "host": ("bounds", "exact"),
    "split": ("as told", "moved"),
    "rows": ("none", "one", "several"),
    "padding": ("no", "yes"),
    "lengths": ("none", "below", "above", "both"),
    "fault": ("none", *FAULTS),
}
"""What is counted of a frame. lengths: how contexts lie to the selection's limit."""


def values(shape: Shape, frame: Frame, *, graph: bool, fault: str) -> dict[str, str]:
    """Return a frame's value in each dimension."""
    step = frame.step
    return {
        "dtype": shape.dtype,
        "kpe": str(shape.kpe),
        "heads": "1" if shape.heads == 1 else "2 to 64" if shape.heads <= 64 else "above",
        "geo": shape.geo,
        "lag": str(shape.lag) if shape.lag < 2 else "more",
        "device": shape.device,
        "how": "draft" if frame.drafting else "graph" if graph else "eager",
        "host": "exact" if step.bounds is None else "bounds",
        "split": "moved" if step.true_q_lens != step.q_lens else "as told",
        "rows": ("none", "one", "several")[min(step.rows, 2)],
        "padding": "yes" if step.padded_rows > step.rows else "no",
        "lengths": _lengths(step.contexts(), GEOMETRIES[shape.geo].index_topk),
        "fault": fault,
    }


def _lengths(contexts: Sequence[int], topk: int) -> str:
    if not contexts:
        return "none"
    below, above = min(contexts) <= topk, max(contexts) > topk
    return "both" if below and above else "below" if below else "above"


Pair = tuple[tuple[str, str], tuple[str, str]]
"""Two dimensions, each with a value, in the order of DIMENSIONS."""


def pairs(reached: Iterable[Mapping[str, str]]) -> Counter[Pair]:
    """Return how many frames had each pair of values."""
    found: Counter[Pair] = Counter()
    for frame in reached:
        found.update(itertools.combinations(((d, frame[d]) for d in DIMENSIONS), 2))
    return found


INFEASIBLE: dict[Pair, str] = {}
"""Pairs that no drawn history has, each with the reason."""
for _fault, _where, _values, _reason in (
    ("low-bound", "host", ("exact",), "without bounds there is none to be low"),
    ("low-bound", "split", ("moved",), "which request a low bound is of is then not known"),
    ("low-bound", "rows", ("none",), "a bound of no row does nothing"),
    ("low-bound", "geo", ("tiny",), "no valid count there exceeds the slack"),
    ("low-bound", "lengths", ("none",), "a bound of no row does nothing"),
    ("garbage-entry", "rows", ("none",), "there is no entry"),
    ("garbage-entry", "lengths", ("none",), "there is no entry"),
    ("garbage-tail", "rows", ("none",), "there is no row to have a tail"),
    ("garbage-tail", "lengths", ("none",), "there is no row to have a tail"),
    ("other-scale", "dtype", ("bf16",), "a BF16 cache has no scale"),
    ("other-scale", "rows", ("none",), "nothing is computed"),
    ("other-scale", "lengths", ("none",), "nothing is computed"),
    ("moved-table", "how", ("eager", "draft"), "drawn where a graph would read it"),
    ("moved-table", "rows", ("none",), "there is nothing to read in it"),
    ("moved-table", "lengths", ("none",), "there is nothing to read in it"),
    ("small-graph", "how", ("eager", "draft"), "graphs alone have a size"),
    ("small-graph", "rows", ("none", "one"), "the smallest graph has a row"),
    ("small-graph", "lengths", ("none",), "the smallest graph has a row"),
    *(
        (_name, "how", ("draft",), "faults are planted in an engine's own steps")
        for _name in ("garbage-tail", "nan-elsewhere", "inf-elsewhere", "huge-elsewhere",
                      "low-bound", "garbage-entry", "other-scale")
    ),
):  # fmt: skip
    for _value in _values:
        INFEASIBLE[((_where, _value), ("fault", _fault))] = _reason
for _one, _other, _reason in (
    (("how", "draft"), ("host", "exact"), "draft steps come with bounds"),
    (("how", "draft"), ("split", "moved"), "each request has one row"),
    (("how", "draft"), ("rows", "none"), "there is none then"),
    (("how", "draft"), ("padding", "yes"), "they are not padded"),
    (("how", "draft"), ("lengths", "none"), "each row has a context"),
    (("split", "moved"), ("rows", "none"), "there is nothing to move"),
    (("split", "moved"), ("rows", "one"), "there is nothing to move"),
    (("split", "moved"), ("lengths", "none"), "there is nothing to move"),
    (("rows", "none"), ("lengths", "below"), "no row, no length"),
    (("rows", "none"), ("lengths", "above"), "no row, no length"),
    (("rows", "none"), ("lengths", "both"), "no row, no length"),
    (("rows", "one"), ("lengths", "none"), "a row has a length"),
    (("rows", "several"), ("lengths", "none"), "a row has a length"),
    (("rows", "one"), ("lengths", "both"), "one row has one length"),
):
    INFEASIBLE[(_one, _other)] = _reason


def possible() -> set[Pair]:
    """Return all pairs of values that some history has."""
    every = [(name, value) for name, values in DIMENSIONS.items() for value in values]
    wanted = {(a, b) for a, b in itertools.combinations(every, 2) if a[0] != b[0]}
    return wanted - set(INFEASIBLE)
