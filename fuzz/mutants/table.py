"""What was measured of each mutant: histories until a finding, from ten seeds far apart."""

import functools
import hashlib
import json
import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from conformance.mutants.model import Mutant, MutantError
from fuzz.mutants.lane import Lane
from fuzz.serving import drawn

FILE = Path(__file__).with_name("table.json")
SCHEMA = "smla-history-mutants/1"
STARTS = tuple(1_000_000 * number for number in range(1, 11))
MOST = 500
"""Histories of a lane, at most; the median over the starting seeds may be no larger."""
LEAST = 30
"""Histories that a lane without a mutant has, at least."""


@dataclass(frozen=True)
class Row:
    """A mutant's lanes, one for each of STARTS. mutant: its name, empty for the sources without.

    digest: of the edit; drawing: of what the starting seeds drew when this was measured.
    """

    mutant: str
    digest: str
    drawing: str
    lanes: Sequence[Lane]

    @property
    def median(self) -> float:
        """Histories until the finding; one more than MOST counts where there was none."""
        return statistics.median(lane.until or MOST + 1 for lane in self.lanes)

    @property
    def largest(self) -> int:
        """Histories of the longest lane."""
        return max(lane.histories for lane in self.lanes)

    def current(self, mutant: Mutant | None) -> bool:
        """Whether edit and drawing are those of today, and every starting seed has its lane."""
        edit = mutant.digest if mutant else ""
        starts = tuple(lane.start for lane in self.lanes)
        return (self.digest, self.drawing, starts) == (edit, drawing(), STARTS)


@functools.cache
def drawing() -> str:
    """Return a hash of the histories that the starting seeds draw, and of one behind each."""
    seeds = [seed for start in STARTS for seed in (start, start + 1)]
    text = "".join(drawn(seed).dumps() for seed in seeds)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def read_table(path: Path = FILE) -> dict[str, Row]:
    """Return a file's rows by mutant; raise MutantError unless it is a table of this schema."""
    try:
        table = json.loads(path.read_text())
        if table.get("schema") != SCHEMA:
            raise ValueError(f"no schema {SCHEMA}")
        return {row["mutant"]: _row(row) for row in table["rows"]}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as problem:
        raise MutantError(
            f"{path}: found {problem}; allowed: rows as --all-seeds writes them; to fix: delete it "
            "and run `python -m fuzz mutants --all-seeds`"
        ) from problem


def _row(row: dict[str, Any]) -> Row:
    return Row(**{**row, "lanes": [Lane(**lane) for lane in row["lanes"]]})


def write_table(path: Path, rows: Iterable[Row], mutants: Iterable[Mutant]) -> None:
    """Write the rows of these mutants in their order, and last the one without a mutant.

    The file is whole at any time.
    """
    by = {row.mutant: row for row in rows}
    names = [name for name in (*(mutant.name for mutant in mutants), "") if name in by]
    lines = ",\n".join(_text(by[name]) for name in names)
    whole = path.with_suffix(".whole")
    whole.write_text(f'{{"schema": {json.dumps(SCHEMA)},\n"rows": [\n{lines}\n]}}\n')
    os.replace(whole, path)


def _text(row: Row) -> str:
    head = {name: value for name, value in asdict(row).items() if name != "lanes"}
    lanes = ",\n  ".join(json.dumps(asdict(lane)) for lane in row.lanes)
    return f'{json.dumps(head)[:-1]}, "lanes": [\n  {lanes}]}}'
