"""The access log: each index entry, cache row and scale the simulated kernel touches, and why.

Filling it costs a few references per tile; questions are answered lazily from what was kept.
`row` is the query row a batch row starts at (its qo_indptr), so with one query token per batch row
it is the query row. `position` counts the entries of that row's index list from 0. Not counted: the
128-byte L2 prefetch hint on loads, which may bring in bytes of a neighbouring FP8 row.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

FOREIGN_SLOT = -(2**31)  # stands for an index entry read outside kv_indices


class Why(enum.Enum):
    """Why a lane touched memory."""

    USED = "below kv_end: contributes to the output"
    MASKED = "from kv_end to the load bound: loaded, then given probability 0"
    STAND_IN = "at or behind the load bound: no index entry is read, slot 0 is used instead"


_WHY = tuple(Why)


@dataclass(frozen=True)
class TileReads:
    """The reads of one 64-wide tile of each of n work items."""

    rows: torch.Tensor  # [n]
    first: torch.Tensor  # [n] position of lane 0
    bound: torch.Tensor  # [n] load bound: index entries at or behind it are not read
    kv_end: torch.Tensor  # [n]
    masks: torch.Tensor  # [n] whether the tile is masked at all
    slots: torch.Tensor  # [n, 64] int64; the stand-in slot at or behind the bound
    zero_fill: bool  # lanes at or behind the bound load no cache row
    scales: bool  # a scale array is read, for every lane
    num_slots: int  # slots of the cache


@dataclass(frozen=True)
class Touch:
    """One lane's reads: the index entry (unless STAND_IN), the cache row, the scales."""

    row: int
    position: int
    slot: int
    why: Why
    cache: bool  # the cache row was read (False: only its scales)
    scales: bool


class AccessLog:
    """All reads since construction or `clear`, over any number of runs."""

    def __init__(self) -> None:
        self.tiles: list[TileReads] = []
        self._flat: np.ndarray | None = None

    def record(self, tile: TileReads) -> None:
        """Keep one tile; the kernel calls this."""
        self.tiles.append(tile)
        self._flat = None

    def clear(self) -> None:
        """Forget everything."""
        self.tiles.clear()
        self._flat = None

    def reach(self) -> dict[int, int]:
        """Per row: one past the highest position whose index entry was read; untouched: absent."""
        return {row: max(stop for _, stop in spans) for row, spans in self.spans().items()}

    def spans(self, rows: Collection[int] | None = None) -> dict[int, list[tuple[int, int]]]:
        """Per row: [first, stop) of the index entries read, one per tile, in the order made.

        rows: which ones are asked for. A tile that read no entry is absent.
        """
        spans: dict[int, list[tuple[int, int]]] = {}
        for tile in self.tiles:
            stops = torch.minimum(tile.first + tile.slots.shape[1], tile.bound).tolist()
            for row, first, stop in zip(
                tile.rows.tolist(), tile.first.tolist(), stops, strict=True
            ):
                if first < stop and (rows is None or row in rows):
                    spans.setdefault(row, []).append((first, stop))
        return spans

    def touched_positions(self, row: int) -> set[int]:
        """Positions of a row whose index entry (and cache row) was read."""
        reads = self._entries()
        return set(reads["position"][reads["row"] == row].tolist())

    def touched_slots(self) -> set[int]:
        """Slots whose cache row was read, stand-ins included."""
        flat = self._table()
        return set(flat["slot"][flat["cache"]].tolist())

    def scale_slots(self) -> set[int]:
        """Slots whose scales were read, stand-ins included."""
        flat = self._table()
        return set(flat["slot"][flat["scales"]].tolist())

    def negative_slots(self) -> list[Touch]:
        """Reads through a negative slot."""
        flat = self._table()
        return _touches(flat[flat["slot"] < 0])

    def foreign_slots(self) -> list[Touch]:
        """Reads through a slot outside the cache, negative ones included."""
        flat = self._table()
        return _touches(flat[(flat["slot"] < 0) | (flat["slot"] >= flat["num_slots"])])

    def behind(self, valid: Sequence[int] | Mapping[int, int]) -> list[Touch]:
        """Reads at or behind a row's valid count (rows that `valid` does not hold count 0)."""
        reads = self._entries()
        counts = dict(valid) if isinstance(valid, Mapping) else dict(enumerate(valid))
        rows, place = np.unique(reads["row"], return_inverse=True)
        ends = np.array([counts.get(row, 0) for row in rows.tolist()], np.int64)[place]
        return _touches(reads[reads["position"] >= ends])

    def stand_ins(self) -> list[Touch]:
        """Reads of the stand-in slot by lanes at or behind the load bound."""
        flat = self._table()
        return _touches(flat[flat["why"] == _WHY.index(Why.STAND_IN)])

    def touches(self, row: int | None = None) -> list[Touch]:
        """Every read, in the order made; of one row where it is given."""
        flat = self._table()
        return _touches(flat if row is None else flat[flat["row"] == row])

    def _entries(self) -> np.ndarray:
        flat = self._table()
        entries: np.ndarray = flat[flat["why"] != _WHY.index(Why.STAND_IN)]
        return entries

    def _table(self) -> np.ndarray:
        if self._flat is None:
            parts = [_flatten(tile) for tile in self.tiles]
            self._flat = np.concatenate(parts) if parts else np.empty(0, _COLUMNS)
        return self._flat


_COLUMNS = np.dtype(
    [
        ("row", np.int64),
        ("position", np.int64),
        ("slot", np.int64),
        ("num_slots", np.int64),
        ("why", np.int8),
        ("cache", np.bool_),
        ("scales", np.bool_),
    ]
)


def _flatten(tile: TileReads) -> np.ndarray:
    position = (tile.first[:, None] + torch.arange(tile.slots.shape[1])).numpy()
    inside = position < tile.bound.numpy()[:, None]
    masked = tile.masks.numpy()[:, None] & (position >= tile.kv_end.numpy()[:, None])
    table = np.empty(position.shape, _COLUMNS)
    table["row"] = tile.rows.numpy()[:, None]
    table["position"] = position
    table["slot"] = tile.slots.numpy()
    table["num_slots"] = tile.num_slots
    table["why"] = np.where(
        inside,
        np.where(masked, _WHY.index(Why.MASKED), _WHY.index(Why.USED)),
        _WHY.index(Why.STAND_IN),
    )
    table["cache"] = inside | (not tile.zero_fill)
    table["scales"] = tile.scales
    read: np.ndarray = table[table["cache"] | table["scales"]]
    return read


def _touches(table: np.ndarray) -> list[Touch]:
    return [
        Touch(
            int(r["row"]),
            int(r["position"]),
            int(r["slot"]),
            _WHY[r["why"]],
            bool(r["cache"]),
            bool(r["scales"]),
        )
        for r in table
    ]
