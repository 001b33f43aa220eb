"""Which values of which dimensions a frame has, and which pairs of them were reached."""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from conformance.core.case import GEOMETRIES
from fuzz.engine import Frame
from fuzz.faults import FAULTS
from fuzz.history import DEVICES, Shape
from fuzz.places import may_be_dense

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
    "prefill": ("none", "sparse", "dense", "forced"),
    "fault": ("none", *FAULTS),
}
"""What is counted of a frame. lengths: how contexts lie to the selection's limit. prefill: dense
where some is long enough for dense attention and selects all it has; forced: where it may not.
"""


def values(shape: Shape, frame: Frame, *, graph: bool, fault: str) -> dict[str, str]:
    """Return a frame's value in each dimension."""
    step = frame.step
    device = shape.device
    if step.bounds is None and device == DEVICES[2]:
        device = DEVICES[1]  # a host that reads back would wait for ever
    return {
        "dtype": shape.dtype,
        "kpe": str(shape.kpe),
        "heads": "1" if shape.heads == 1 else "2 to 64" if shape.heads <= 64 else "above",
        "geo": shape.geo,
        "lag": str(shape.lag) if shape.lag < 2 else "more",
        "device": device,
        "how": "draft" if frame.drafting else "graph" if graph else "eager",
        "host": "exact" if step.bounds is None else "bounds",
        "split": "moved" if step.true_q_lens != step.q_lens else "as told",
        "rows": ("none", "one", "several")[min(step.rows, 2)],
        "padding": "yes" if step.padded_rows > step.rows else "no",
        "lengths": _lengths(step.contexts(), GEOMETRIES[shape.geo].index_topk),
        "prefill": _prefill(shape, frame),
        "fault": fault,
    }


def _prefill(shape: Shape, frame: Frame) -> str:
    step = frame.step
    if frame.decodes == len(frame.requests):
        return "none"
    bounds = step.seq_lens if step.bounds is None else step.bounds
    topk = GEOMETRIES[shape.geo].index_topk
    if may_be_dense(step) and max(bounds[frame.decodes :]) <= topk:
        return "forced" if shape.force_mqa else "dense"
    return "sparse"


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

_NO_ROW = (("rows", "none"), ("lengths", "none"))
_FEW = (*_NO_ROW, ("rows", "one"))
_FLAGS = [name for name, kind in FAULTS.items() if kind.flag]
for _fault, _values, _reason in (
    ("low-bound", (("host", "exact"),), "without bounds there is none to be low"),
    ("low-bound", (("split", "moved"),), "which request a low bound is of is then not known"),
    ("low-bound", (("geo", "tiny"),), "no valid count there exceeds the slack"),
    ("low-bound", _NO_ROW, "a bound of no row does nothing"),
    ("stale-bounds", (("host", "exact"),), "without bounds there is none to be stale"),
    ("stale-bounds", _NO_ROW, "a bound of no row does nothing"),
    ("late-frame", _FEW, "there is no other request to stay right"),
    ("warm-up", _NO_ROW, "drawn before a step that shows what it left"),
    ("layers", _NO_ROW, "nothing is computed"),
    ("layers", (("how", "graph"),), "what a graph captured is one layer"),
    ("untold-split", (("host", "exact"),), "the host reads the split back"),
    ("untold-split", (("split", "moved"),), "it is told there"),
    ("untold-split", (("geo", "tiny"),), "no valid count there exceeds the slack"),
    ("untold-split", _FEW, "there is nothing to move"),
    ("skipped-plan", (("how", "graph"),), "drawn where a metadata object is passed"),
    ("skipped-plan", _NO_ROW, "there is no entry to be missed"),
    ("garbage-entry", _NO_ROW, "there is no entry"),
    ("garbage-tail", _NO_ROW, "there is no row to have a tail"),
    ("other-scale", (("dtype", "bf16"),), "a BF16 cache has no scale"),
    ("other-scale", _NO_ROW, "nothing is computed"),
    ("moved-table", (("how", "eager"),), "drawn where a graph would read it"),
    ("moved-table", _NO_ROW, "there is nothing to read in it"),
    ("small-graph", (("how", "eager"),), "graphs alone have a size"),
    ("small-graph", _FEW, "the smallest graph has a row"),
    ("second-stream", _NO_ROW, "nothing is queued"),
    ("second-stream", (("how", "graph"),), "the engine replays it, not the subject"),
    ("over-capacity", (("how", "graph"),), "no graph is that large"),
    *((_name, (("how", "draft"),), "faults are planted in an engine's own steps")
      for _name in FAULTS),
    *((_name, (("prefill", "dense"), ("prefill", "forced")), "drawn where all rows are computed")
      for _name in _FLAGS),
):  # fmt: skip
    for _value in _values:
        INFEASIBLE[(_value, ("fault", _fault))] = _reason
_SHORT_GEOS = [(("geo", geo), ("prefill", value)) for geo in DIMENSIONS["geo"] if geo != "wide"
               for value in ("dense", "forced")]  # fmt: skip
for _pair, _reason in (
    ((("device", DEVICES[2]), ("host", "exact")), "a host that reads back would wait for ever"),
    ((("how", "draft"), ("host", "exact")), "draft steps come with bounds"),
    ((("how", "draft"), ("split", "moved")), "each request has one row"),
    ((("how", "draft"), ("rows", "none")), "there is none then"),
    ((("how", "draft"), ("padding", "yes")), "they are not padded"),
    ((("how", "draft"), ("lengths", "none")), "each row has a context"),
    *(((("how", "draft"), ("prefill", _p)), "they are decodes")
      for _p in ("sparse", "dense", "forced")),
    ((("split", "moved"), ("rows", "none")), "there is nothing to move"),
    ((("split", "moved"), ("rows", "one")), "there is nothing to move"),
    ((("split", "moved"), ("lengths", "none")), "there is nothing to move"),
    ((("rows", "none"), ("lengths", "below")), "no row, no length"),
    ((("rows", "none"), ("lengths", "above")), "no row, no length"),
    ((("rows", "none"), ("lengths", "both")), "no row, no length"),
    *(((("rows", "none"), ("prefill", _p)), "no row, no prefill")
      for _p in ("sparse", "dense", "forced")),
    *(((("lengths", "none"), ("prefill", _p)), "no row, no prefill")
      for _p in ("sparse", "dense", "forced")),
    *(((("rows", "one"), ("prefill", _p)), "they have more rows") for _p in ("dense", "forced")),
    ((("rows", "one"), ("lengths", "none")), "a row has a length"),
    ((("rows", "several"), ("lengths", "none")), "a row has a length"),
    ((("rows", "one"), ("lengths", "both")), "one row has one length"),
    *((_pair, "more than 128 tokens, all of them selected: in geometry wide alone")
      for _pair in _SHORT_GEOS),
    *(((("heads", "above"), ("prefill", _p)), "only few heads make dense attention pay so early")
      for _p in ("dense", "forced")),
    ((("lengths", "above"), ("prefill", "dense")), "its rows' lengths begin below"),
    ((("lengths", "above"), ("prefill", "forced")), "its rows' lengths begin below"),
):  # fmt: skip
    INFEASIBLE[_pair] = _reason


def possible() -> set[Pair]:
    """Return all pairs of values that some history has."""
    every = [(name, value) for name, values in DIMENSIONS.items() for value in values]
    wanted = {(a, b) for a, b in itertools.combinations(every, 2) if a[0] != b[0]}
    return wanted - set(INFEASIBLE)
