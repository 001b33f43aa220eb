"""What was measured: rows by section, what failed, the tables a person reads and the JSON file."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from conformance.bench.timer import Timed, reason
from conformance.core.run import Exit, SuiteError

SCHEMA = "smla-bench/1"


@dataclass
class Results:
    """Everything measured so far; written after each section, so that a run cut short tells.

    sections: rows as JSON, by section. failures: (measure, reason). answers: what is judged, by
    its question; None: not told here.
    """

    console: Console
    out: Path
    rehearsal: bool
    environment: dict[str, Any]
    options: dict[str, Any]
    sections: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    failures: list[tuple[str, str]] = field(default_factory=list)
    answers: dict[str, bool | None] = field(default_factory=dict)

    @contextmanager
    def attempt(self, measure: str) -> Iterator[None]:
        """Let a measure fail by itself: what it raises is shown and kept, and the run goes on."""
        try:
            yield
        except Exception as problem:
            self.failed(measure, reason(problem))

    def failed(self, measure: str, why: str) -> None:
        """Keep and show that a measure failed."""
        self.failures.append((measure, why))
        self.line(f"failed: {measure}: {why}")

    def add(self, section: str, **row: Any) -> None:
        """Keep a row of a section; timings and refusals become JSON."""
        self.sections.setdefault(section, []).append({k: _json(v) for k, v in row.items()})

    def table(self, title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Print a table."""
        table = Table(title=title, title_justify="left")
        for number, name in enumerate(head):
            table.add_column(name, justify="left" if number == 0 else "right")
        for row in rows:
            table.add_row(*map(str, row))
        self.console.print(table)

    def line(self, text: str) -> None:
        """Print a line."""
        self.console.print(text, markup=False)

    @property
    def exit(self) -> Exit:
        """1 where an answer is no, 2 where a measure failed, else 0."""
        if False in self.answers.values():
            return Exit.DOES_NOT
        return Exit.INCOMPLETE if self.failures else Exit.CONFORMS

    def write(self) -> None:
        """Write the JSON file as things stand."""
        told = {
            "schema": SCHEMA,
            "rehearsal": self.rehearsal,
            "environment": self.environment,
            "options": self.options,
            "sections": self.sections,
            "answers": self.answers,
            "failures": [{"measure": name, "reason": why} for name, why in self.failures],
            "exit": int(self.exit),
        }
        try:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self.out.write_text(json.dumps(told, indent=1) + "\n")
        except OSError as problem:
            raise SuiteError(f"{self.out}: {problem.strerror}") from problem


def cell(timed: Timed | None) -> str:
    """A timing as a table shows it, microseconds: median (99th percentile, spread)."""
    if timed is None:
        return ""
    if timed.refused is not None:
        return "refused"
    if (timing := timed.timing) is None:
        return "-"
    return f"{number(timing.median)} ({number(timing.p99)}, {100 * timing.spread:.0f} %)"


def number(value: float) -> str:
    """A figure with about three digits."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def ratio(one: Timed | None, other: Timed | None) -> float | None:
    """How many times as long the one took; None unless both were timed."""
    if one is None or other is None or one.timing is None or other.timing is None:
        return None
    return one.timing.median / other.timing.median if other.timing.median else None


def times(value: float | None) -> str:
    """A ratio as a table shows it."""
    return "-" if value is None else f"{number(value)} x"


def _json(value: Any) -> Any:
    if isinstance(value, Timed):
        if value.refused is not None:
            return {"refused": value.refused}
        return None if value.timing is None else value.timing.as_json()
    return value
