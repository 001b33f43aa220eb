"""The hunt: a mutant's lanes in a copy of the sources."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from conformance.mutants.model import Mutant, MutantError
from fuzz.mutants.copies import copied, module
from fuzz.mutants.lane import Lane
from fuzz.mutants.table import LEAST, MOST, STARTS, Row, drawing

_MINUTES = 120


class Fate(StrEnum):
    """What became of a mutant."""

    KILLED = "killed"
    SURVIVED = "survived"


@dataclass(frozen=True)
class Hunted:
    """A mutant's fate in one lane."""

    mutant: Mutant
    lane: Lane

    @property
    def fate(self) -> Fate:
        """Killed by a finding of a check; an exception that no check raised kills nothing."""
        return Fate.KILLED if self.lane.found else Fate.SURVIVED


def lanes(mutant: Mutant | None, caps: Mapping[int, int]) -> list[Lane]:
    """Play lanes in a copy of the sources. caps: histories at most, by first seed.

    Raises MutantError for a mutant that does not fit, and where the copy's process fails.
    """
    name = mutant.name if mutant else "the unchanged sources"
    with copied(mutant) as root:
        file = root.parent / "lanes.jsonl"
        wanted = [f"{start}:{most}" for start, most in caps.items()]
        try:
            ran = module(root, "fuzz.mutants.lane", str(file), *wanted, minutes=_MINUTES)
        except subprocess.TimeoutExpired as problem:
            raise MutantError(f"{name}: {problem}") from problem
        if ran.returncode:
            raise MutantError(f"{name}: the player failed:\n{ran.stderr[-2000:]}")
        return [Lane(**json.loads(line)) for line in file.read_text().splitlines()]


def measured(mutant: Mutant) -> Row:
    """Return a mutant's row: every starting seed, each to its finding or to MOST histories."""
    found = lanes(mutant, dict.fromkeys(STARTS, MOST))
    return Row(mutant.name, mutant.digest, drawing(), found)


def unchanged(most: Mapping[int, int]) -> Row:
    """Return the row without a mutant. most: histories from each starting seed."""
    return Row("", "", drawing(), lanes(None, most))


def needed(rows: Mapping[str, Row]) -> dict[int, int]:
    """Return, by starting seed, the most histories that a mutant needed, and LEAST at least."""
    most = dict.fromkeys(STARTS, LEAST)
    for name, row in rows.items():
        for lane in row.lanes if name else ():
            most[lane.start] = max(most[lane.start], lane.histories)
    return most


def hunted(mutant: Mutant, row: Row | None) -> Hunted:
    """Hunt a mutant from the first starting seed, for three times the histories of its row."""
    known = row.lanes[0].until if row else None
    most = MOST if known is None else max(3 * known, LEAST)
    (lane,) = lanes(mutant, {STARTS[0]: most})
    return Hunted(mutant, lane)
