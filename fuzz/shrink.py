"""Shrinks a history that was a finding, greedily: what is simpler and still one is kept."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from conformance.core.subject import Subject, Tier, Unobservable
from fuzz.failure import Finding
from fuzz.findings import kind
from fuzz.history import History, HistoryError
from fuzz.player import play
from fuzz.simpler import MOVES, Move, settled, size
from fuzz.telling import told

TRIES = 400


@dataclass
class Shrunk:
    """The smallest history that still is a finding of the same kind. tries: histories played."""

    history: History
    finding: Finding
    tries: int = 0


def smallest(
    history: History, finding: Finding, subject: Subject, tier: Tier, *,
    tries: int = TRIES, again: str = "",
) -> Shrunk:  # fmt: skip
    """Return the smallest history that was come to, with its finding, which is of the same kind.

    finding: what `play` saw of the history on this subject and tier. tries: how many histories are
    played at most; what was come to by then is returned, at worst the history itself. again: the
    command that will play the smallest.
    """
    best, wanted, known = Shrunk(history, finding), kind(finding), {history}

    def better(candidate: History) -> bool:
        """Whether a candidate is simpler and of the same kind; it is the best then."""
        possible = settled(candidate)
        if possible is None or possible in known or size(possible) >= size(best.history):
            return False
        known.add(possible)
        best.tries += 1
        found = _found(possible, subject, tier, again)
        if found is None or kind(found) != wanted:
            return False
        best.history, best.finding = possible, found
        return True

    before = None
    better(_cut(history, finding))
    while before != best.history and best.tries < tries:
        before = best.history
        for move in MOVES:
            # The first that is better is the next to be made simpler.
            while best.tries < tries and any(map(better, _bounded(move, best, tries))):
                pass
    return best


def small(path: Path, history: History) -> Path:
    """Return where the smallest of a history goes, beside the file that it came from."""
    return path.with_name(f"history-{history.seed}-small.json")


def keep(path: Path, shrunk: Shrunk) -> None:
    """Write the smallest history, and what was seen of it beside that."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(shrunk.history.dumps())
    path.with_suffix(".txt").write_text(f"{told(shrunk.history, shrunk.finding)}\n")


def _bounded(move: Move, best: Shrunk, tries: int) -> Iterator[History]:
    """Yield what a move makes of the best as long as there are tries left."""
    return takewhile(lambda _: best.tries < tries, move(best.history))


def _cut(history: History, finding: Finding) -> History:
    """Return a history without the turns behind the finding's."""
    _, _, number = finding.frame.partition("turn ")
    digits = number.partition(",")[0]
    return replace(history, turns=history.turns[: int(digits) + 1]) if digits else history


def _found(history: History, subject: Subject, tier: Tier, again: str) -> Finding | None:
    try:
        return play(history, subject, tier, again).finding
    except (HistoryError, Unobservable):
        return None
