"""Result records: JSON lines, in a file with header and footer per process that runs cases.

A case has two lines: `started`, which is its record as it will read if the process dies there, and
`record`. Both are on disk before anything else happens, so that a death costs one case.
"""

import json
import os
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

SCHEMA = "smla-records/4"
READABLE = ("smla-records/3", SCHEMA)
"""Schemas that are read: what a newer one added has a default."""

_MESSAGE = 4000
_AGAIN = "run again, or take the file away: the folder's other files stand for themselves"


class Outcome(StrEnum):
    """What became of a case."""

    PASS = "pass"
    FAIL = "fail"
    CRASH = "crash"
    HANG = "hang"
    REFUSED = "refused"
    UNOBSERVABLE = "unobservable"
    SKIPPED = "skipped"
    XFAIL = "xfail"  # went wrong as the ledger of known deviations says
    XPASS = "xpass"  # passed where the ledger says that it goes wrong


class RecordError(ValueError):
    """A record file is incomplete, damaged or of another schema. Ends a command with 3."""

    def __init__(self, path: Path, found: str, remedy: str) -> None:
        super().__init__(
            f"{path}: found {found}; allowed: a whole file of schema {' or '.join(READABLE)}; "
            f"to fix: {remedy}"
        )


@dataclass(frozen=True)
class Expected:
    """What the ledger of known deviations says of a case, as `OUTCOME (KIND): WHY`."""

    outcome: str
    kind: str
    why: str

    def __str__(self) -> str:
        return f"{self.outcome} ({self.kind}): {self.why}"

    @staticmethod
    def read(text: str) -> "Expected | None":
        """Return what a record's `expected` says, None for nothing."""
        found = re.fullmatch(r"(\S+) \((\S+)\): (.*)", text, re.DOTALL)
        return Expected(*found.groups()) if found else None


def settled(outcome: Outcome, expected: str) -> Outcome:
    """Return what an outcome is beside what the ledger expects: only its very word is excused."""
    known = Expected.read(expected)
    if known is None:
        return outcome
    if outcome is Outcome.PASS:
        return Outcome.XPASS
    return Outcome.XFAIL if outcome == known.outcome else outcome


@dataclass(frozen=True)
class Record:
    """One case on one tier. error: worst relative error of a row; ratio: worst error over bound.

    subject: its name as the run was given it; subject_version: its own, empty where it has none.
    flashinfer: the FlashInfer version below the subject, simulated on the twin, installed on a GPU.
    expected: what the ledger of known deviations says of the case, see `Expected`, empty where it
    says nothing. schedule: the work items of a failed case, for a drawing. history: of a case that
    is one of many steps, what was seen of it; the judge says in which form. Figures that a judge
    compared stand there as `conformance.report.figures` reads them.
    crash is an exception that no check raised, a dead process or a dead CUDA context, hang a case
    that did not end in its time; message says what was seen, repro reruns it.
    """

    case: str
    requirement: str
    tier: str
    subject: str
    outcome: Outcome
    error: float | None
    ratio: float | None
    interpreted: bool
    message: str
    repro: str
    seconds: float | None = None
    flashinfer: str = ""
    subject_version: str = ""
    expected: str = ""
    schedule: dict[str, Any] | None = None
    history: dict[str, Any] | None = None

    @property
    def failed(self) -> bool:
        """Whether it speaks against the subject."""
        return self.outcome in (Outcome.FAIL, Outcome.CRASH, Outcome.HANG, Outcome.XPASS)

    def but(self, outcome: Outcome, message: str) -> "Record":
        """Return the record of what was seen, with its outcome beside what the ledger expects.

        Every record is made here, so that whoever reads it again sees the same.
        """
        outcome = settled(outcome, self.expected)
        if outcome is Outcome.XPASS:
            message = (
                f"{self.case}: passes\n  expected {self.expected}\n"
                f"  to fix   take its entry out of the ledger\n  repro    {self.repro}"
            )
        return replace(self, outcome=outcome, message=message[:_MESSAGE])


@dataclass
class RecordFile:
    """What a file holds. open: cases started and not recorded. left: why its process stopped early.

    whole: whether the footer stands where it belongs. A later record of a case takes the place of
    an earlier one.
    """

    header: dict[str, Any]
    records: dict[str, Record] = field(default_factory=dict)
    open: dict[str, Record] = field(default_factory=dict)
    whole: bool = False
    left: str = ""


class RecordWriter:
    """Writes a record file. Once a footer is written it writes nothing more.

    Safe to use from a watchdog's thread: whoever comes first decides what becomes of a case.
    heard: is given each line too, for whoever keeps a copy elsewhere.
    """

    def __init__(
        self, path: Path, environment: dict[str, Any], heard: Callable[[str], None] | None = None
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[str] = path.open("w")
        self._heard = heard
        self._lock = threading.Lock()
        self._count = 0
        self._open: Record | None = None
        self._closed = False
        self._line({"kind": "header", "schema": SCHEMA, "environment": environment})

    def _line(self, value: dict[str, Any]) -> None:
        line = json.dumps(value) + "\n"
        self._file.write(line)
        self._file.flush()
        if self._heard is not None:
            self._heard(line)

    def start(self, expected: Record) -> None:
        """Say that a case starts; expected: its record if nothing more is heard of it."""
        with self._lock:
            if not self._closed:
                self._open = expected
                self._line({"kind": "started", **asdict(expected)})

    def add(self, record: Record) -> bool:
        """Write the record of the case under way; return whether it had none yet."""
        with self._lock:
            return self._add(record)

    def leave(self, record: Record, why: str) -> bool:
        """Like `add`, as the last of this process, which must end if it returns True."""
        with self._lock:
            if self._add(record):
                self._footer(why)
                return True
            return False

    def close(self) -> None:
        """Write the footer: without it the file counts as incomplete."""
        with self._lock:
            if not self._closed:
                self._footer("")
                self._file.close()

    def _add(self, record: Record) -> bool:
        if self._closed or self._open is None:
            return False
        self._line({"kind": "record", **asdict(record)})
        self._open, self._count = None, self._count + 1
        return True

    def _footer(self, left: str) -> None:
        self._line({"kind": "footer", "records": self._count, "left": left})
        self._closed = True


def read_records(folder: Path, pattern: str = "*") -> list[Record]:
    """Return all records of a report folder; raise RecordError for a file that is not whole.

    pattern: which of its files, of their names' part behind `records-`.
    """
    records: list[Record] = []
    for path in sorted(folder.glob(f"records-{pattern}.jsonl")):
        file = load(path)
        if not file.whole:
            raise RecordError(path, "no footer: its process did not finish", _AGAIN)
        if file.open:
            case = next(iter(file.open))
            raise RecordError(path, f"{case} started and has no record", _AGAIN)
        records += file.records.values()
    return records


def load(path: Path) -> RecordFile:
    """Return what a file holds; a last line that a dying process left half written is no line."""
    try:
        lines = path.read_text().splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as problem:
        raise RecordError(path, f"no text ({problem})", _AGAIN) from problem
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    values = [_line(path, number, line) for number, line in enumerate(lines, 1)]
    schema = values[0].get("schema") if values else None
    if schema not in READABLE:
        remedy = "run again with this suite, or read it with the one that wrote it"
        raise RecordError(path, f"schema {schema}" if values else "no header", remedy)
    file, count = RecordFile(values[0]), 0
    for number, value in enumerate(values[1:], 2):
        kind = value.pop("kind", None)
        if kind == "footer":
            file.whole, file.left = value.get("records") == count, value.get("left", "")
            continue
        file.whole = False
        if kind not in ("started", "record"):
            raise RecordError(path, f"a line {number} of unknown kind {kind!r}", _AGAIN)
        try:
            record = Record(**{**value, "outcome": Outcome(value["outcome"])})
        except (KeyError, TypeError, ValueError) as problem:
            raise RecordError(path, f"no record in line {number} ({problem})", _AGAIN) from problem
        if kind == "started":
            file.open[record.case] = record
        else:
            file.open.pop(record.case, None)
            file.records[record.case], count = record, count + 1
    return file


def _line(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as problem:
        raise RecordError(path, f"no JSON in line {number} ({problem})", _AGAIN) from problem
    if not isinstance(value, dict):
        raise RecordError(path, f"no JSON object in line {number}", _AGAIN)
    return value


def close_dead(path: Path, outcome: Outcome | None, message: str) -> Record | None:
    """Close the file of a process that died; return the record that names the fault, if any can.

    The case under way gets `outcome`. Between two cases the one before is blamed: whatever it left
    behind is all of the subject that was alive. outcome None: no case of it is to blame, and the
    one under way is as if it had not started.
    """
    file, blamed = load(path), None
    if outcome is None:
        pass
    elif file.open:
        blamed = next(iter(file.open.values())).but(outcome, message)
    elif file.records:
        last = list(file.records.values())[-1]
        blamed = last.but(outcome, f"after this case, before the next: {message}")
    lines: list[dict[str, Any]] = [file.header]
    for record in [*file.records.values(), *([blamed] if blamed else [])]:
        lines.append({"kind": "record", **asdict(record)})
    lines.append({"kind": "footer", "records": len(lines) - 1, "left": f"died: {message}"})
    closed = path.with_suffix(".closed")
    closed.write_text("".join(json.dumps(line) + "\n" for line in lines))
    os.replace(closed, path)
    return blamed


def worst_ratio(records: Iterable[Record]) -> float | None:
    """Return the largest error over bound, None when nothing was measured."""
    return max((r.ratio for r in records if r.ratio is not None), default=None)
