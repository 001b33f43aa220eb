"""The pieces of split rows: where their partial results lie, and which of these a record keeps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from conformance.core.schedule import ScheduleReader, Work
from conformance.hardware.scenes import LSES, PAIRS, pairs, spread


@dataclass(frozen=True)
class Piece:
    """A packed row of the partial results: whose it is, and of which positions of that row."""

    row: int
    head: int
    start: int
    end: int


def pieces_of(schedule: ScheduleReader, num_heads: int) -> dict[int, Piece]:
    """Return the pieces of a schedule's split rows, by packed row of the float workspace."""
    tile = 64 * schedule.info["num_blks_x"]
    found = {}
    lengths = schedule.array("q_len").tolist()
    for work, q_len in zip(schedule.works(), lengths, strict=True):
        if work.partial >= 0:
            for local in range(min(tile, q_len * num_heads - work.q_start)):
                found[work.partial + local] = _piece(work, work.q_start + local, num_heads)
    return found


def kept_places(schedule: ScheduleReader, num_heads: int) -> tuple[list[int], list[int]]:
    """Return the packed rows whose partial outputs, and whose partial LSEs, are kept."""
    pieces = pieces_of(schedule, num_heads)
    return chosen(pieces, num_heads, PAIRS), chosen(pieces, num_heads, LSES)


def chosen(pieces: Mapping[int, Piece], num_heads: int, most: int) -> list[int]:
    """Return at most `most` packed rows: of each split row where they fit, and of many heads."""
    runs: dict[int, dict[int, list[int]]] = {}
    for place, piece in sorted(pieces.items(), key=lambda item: (item[1].head, item[0])):
        runs.setdefault(piece.row, {}).setdefault(piece.start, []).append(place)
    rows = [[places for _, places in sorted(runs[row].items())] for row in sorted(runs)]
    kept = [rows[row][at] for row, at in _shared([len(row) for row in rows], most)]
    if not kept:
        return []
    found = pairs(len(kept), num_heads, most)
    return sorted({kept[at][head * len(kept[at]) // num_heads] for at, head in found})


def place_in_words(place: int, piece: Piece) -> str:
    where = f"row {piece.row} head {piece.head} positions {piece.start}..{piece.end}"
    return f"packed row {place} ({where})"


def _shared(counts: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Return at most `most` (row, piece), of each row equally many where it has as many."""
    rows = spread(len(counts), most)
    shares, left = dict.fromkeys(rows, 0), min(most, sum(counts[row] for row in rows))
    while left:
        for row in [row for row in rows if shares[row] < counts[row]][:left]:
            shares[row] += 1
            left -= 1
    return [(row, at) for row in rows for at in spread(counts[row], shares[row])]


def _piece(work: Work, packed: int, num_heads: int) -> Piece:
    row, head = divmod(packed, num_heads)
    return Piece(work.row + row, head, work.start, max(work.start, work.end))
