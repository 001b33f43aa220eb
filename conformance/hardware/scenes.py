"""The scenes of a hardware record: a fixed list of batches, small enough to keep for each version.

Between them: one piece a row and many, pieces that the clamp empties, rows without tokens, lengths
that grow again under one plan, drafts that the device split anew, padding rows, blocks with foreign
rows between them; heads from 8 to 128 with and without a rope part; BF16, and FP8 with a scale per
tensor (fp8) or per row and group (fp8g).

A scene's name is for people; all that is drawn comes from its case. A changed scene is another
list, and no record of another list is replayed: add new ones at the end, and record again.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from conformance.core.case import Case, Step, parse

PAIRS = 14
"""Most (row, head) pairs of outputs that a record keeps, and most rows of partial outputs."""

LSES = 256
"""Most partial LSEs that a record keeps."""


@dataclass(frozen=True)
class Scene:
    """A case and its steps: all are built, the last one is run and recorded."""

    name: str
    id: str
    steps: tuple[Step, ...]

    @property
    def case(self) -> Case:
        """What configuration and inputs are drawn from."""
        return parse(self.id)

    @property
    def step(self) -> Step:
        """The step that is recorded."""
        return self.steps[-1]

    def pairs(self) -> list[tuple[int, int]]:
        """The (row, head) pairs whose outputs are kept, padding rows among them."""
        return pairs(self.step.padded_rows, int(self.case["heads"]), PAIRS)


def spread(count: int, most: int) -> list[int]:
    """Return at most `most` of range(count), the first and the last among them, evenly spaced."""
    if count <= most:
        return list(range(count))
    return [at * (count - 1) // max(1, most - 1) for at in range(most)]


def pairs(count: int, heads: int, most: int) -> list[tuple[int, int]]:
    """Return at most `most` pairs of range(count) and range(heads), in order.

    The very first and the very last pair are among them. Each of range(count) has one where they
    fit, and all have equally many, give or take one, evenly spaced over the heads. Each one's
    first head is another: where all began at the same, a step of as many pairs as there are heads
    would meet that head alone. Of the orders of these beginnings one with the most heads is taken.
    """
    most = min(most, count * heads)
    kept = spread(count, most)
    orders = sorted(range(1, len(kept) + 1), key=lambda order: abs(8 * order - 5 * len(kept)))
    found = [_in_order(kept, heads, most, order) for order in orders]
    return max(found, key=lambda some: len({head for _, head in some}))


def _in_order(kept: Sequence[int], heads: int, most: int, order: int) -> list[tuple[int, int]]:
    size, found = len(kept), []
    for at, one in enumerate(kept):
        turns = (at + 1) * most // size - at * most // size
        start = at * order % size
        own = [heads * (turn * size + start) // (turns * size) for turn in range(turns)]
        if at == size - 1:
            own[-1] = heads - 1
        found += [(one, head) for head in own]
    return found


def digest(scenes: Sequence[Scene]) -> str:
    """Return the SHA-256 of a list of scenes and of what is kept, names and order included."""
    told = [[asdict(scene), scene.pairs()] for scene in scenes]
    text = json.dumps([PAIRS, LSES, told], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _scene(
    name: str, geo: str, heads: int, kpe: int, dtype: str, *steps: Step, number: int = 0
) -> Scene:
    dims = f"dtype={dtype},kpe={kpe},heads={heads},geo={geo},width=full"
    return Scene(name, f"TWIN-3/{dims}/{number}", steps)


def _step(
    q_lens: Sequence[int],
    seq_lens: Sequence[int],
    bounds: Sequence[int] | None = None,
    *,
    padding: int = 0,
    split: Sequence[int] | None = None,
) -> Step:
    """A step whose host knows the lengths as bounds, where no others are given."""
    bounds = seq_lens if bounds is None else bounds
    return Step(
        tuple(q_lens),
        tuple(seq_lens),
        tuple(bounds),
        sum(q_lens) + padding,
        None if split is None else tuple(split),
    )


_GROWING = _step((1, 1, 2, 1), (60, 33, 66, 200), (64, 64, 70, 205))

SCENES = (
    _scene("one-token", "tiny", 16, 0, "bf16", _step((1,), (1,))),
    _scene("mixed", "tiny", 8, 64, "bf16", _step((1, 2, 1, 0, 2), (5, 40, 130, 9, 33))),
    _scene(
        "no-context", "flat", 16, 64, "fp8", _step((1, 2, 1, 1), (0, 1, 70, 300), (5, 9, 75, 310))
    ),
    _scene(
        "emptied-splits", "wide", 64, 0, "bf16", _step((1, 1, 1), (3, 70, 900), (800, 800, 910))
    ),
    _scene(
        "device-split",
        "wide",
        128,
        64,
        "bf16",
        _step((4, 4, 1), (500, 301, 90), (506, 310, 95), split=(2, 6, 1)),
    ),
    _scene("unsplit", "pool", 128, 0, "fp8", _step((1,) * 13, range(180, 570, 30))),
    _scene("unsplit-rope", "odd", 72, 64, "bf16", _step((2,) * 8, range(30, 310, 35), padding=3)),
    _scene("many-pieces", "glm", 128, 64, "bf16", _step((1, 2), (9001, 2300), (9003, 2310))),
    _scene("many-pieces-fp8", "glm", 16, 64, "fp8", _step((1, 2), (4099, 2050), (4101, 2300))),
    _scene("no-pool", "v32", 128, 0, "fp8", _step((1, 1), (3000, 700), (3004, 1500))),
    _scene("odd-heads", "odd", 100, 0, "fp8", _step((1, 3), (97, 260), (120, 262))),
    _scene(
        "grows-again",
        "serve",
        16,
        0,
        "bf16",
        _GROWING,
        replace(_GROWING, seq_lens=(2, 33, 5, 66)),
        replace(_GROWING, seq_lens=(63, 3, 69, 204)),
    ),
    _scene("padded", "serve", 8, 64, "fp8", _step((4, 1, 2), (9, 64, 131), padding=5)),
    _scene("prompt", "flat", 48, 64, "fp8", _step((1, 9), (65, 120), (70, 120))),
    _scene("groups", "pool", 16, 64, "fp8g", _step((1, 2, 1), (5, 100, 260), (9, 104, 300))),
    _scene("groups-no-rope", "wide", 128, 0, "fp8g", _step((2, 1), (400, 0), (402, 70))),
    _scene("full-width-heads", "pool", 128, 0, "bf16", _step((1,) * 6, (1, 64, 129, 255, 200, 3))),
)
