"""Progress of a pytest process: a bar on a terminal, elsewhere a line now and then.

It counts what pytest reports, in xdist's controller or in the one process that runs the tests, and
takes the place of pytest's own dots.
"""

import sys
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pytest
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

EVERY_S = 30.0
NOTHING: Mapping[str, Any] = MappingProxyType({})
STEPS = 10
"""A line at least each tenth of the cases, and each half minute in which one ended."""


@dataclass
class Tally:
    """Cases done and failed, of how many, and what follows for the rest. clock: in seconds."""

    clock: Callable[[], float]
    total: int = 0
    done: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    known: set[str] = field(default_factory=set)
    since: float | None = None

    def expect(self, total: int) -> None:
        """Say how many cases there are; time runs from here."""
        self.total = total
        self.since = self.clock() if self.since is None else self.since

    def hear(
        self, test: str, *, last: bool, failed: bool, known: bool, said: Mapping[str, Any] = NOTHING
    ) -> None:
        """Count a test's phase. last: it has no further one. known: a failure that was foretold.

        said: the properties of its report.
        """
        if failed:
            self.failed.add(test)
        if known:
            self.known.add(test)
        if last:
            self.done.add(test)

    @property
    def share(self) -> tuple[float, float]:
        """How much is done, of how much."""
        return len(self.done), self.total

    @property
    def rate(self) -> float:
        """Cases a second so far, 0 where nothing can be said."""
        passed = self.clock() - self.since if self.since is not None else 0.0
        return len(self.done) / passed if passed > 0 else 0.0

    @property
    def left_s(self) -> float | None:
        """Seconds that the rest takes at this rate, None where nothing can be said."""
        return (self.total - len(self.done)) / self.rate if self.rate else None

    def text(self) -> str:
        """Say all of it in a line, without what it is of."""
        percent = 100 * len(self.done) // self.total if self.total else 0
        parts = [f"{len(self.done)} of {self.total} cases ({percent} %)"]
        parts.append(f"{len(self.failed)} failed")
        if self.known:
            parts.append(f"{len(self.known)} failed as known")
        if self.rate:
            parts.append(f"{self.rate:.1f} a second")
        if self.left_s is not None and len(self.done) < self.total:
            parts.append(f"about {_span(self.left_s)} left")
        return ", ".join(parts)


class Lines:
    """Says a tally in lines: at each tenth of the cases, after each half minute, and last."""

    def __init__(self, tally: Tally, label: str, write: Callable[[str], None]) -> None:
        self._tally, self._label, self._write = tally, label, write
        self._step, self._said_at, self._said = 0, tally.clock(), -1

    def update(self) -> None:
        """Say it if it is time."""
        tally = self._tally
        done, total = tally.share
        step = int(STEPS * done / total) if total else 0
        if step > self._step or tally.clock() - self._said_at >= EVERY_S:
            self._say()
        self._step = max(step, self._step)

    def close(self) -> None:
        """Say where it ended, unless that was the last line."""
        if self._tally.total and self._said != len(self._tally.done):
            self._say()

    def _say(self) -> None:
        self._write(f"{self._label}: {self._tally.text()}")
        self._said_at, self._said = self._tally.clock(), len(self._tally.done)


class Bar:
    """Shows a tally as a bar, drawn when a test ends: between tests nobody captures the output."""

    def __init__(self, tally: Tally, label: str, console: Console) -> None:
        self._tally = tally
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[said]}"),
            console=console,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task: TaskID = self._bar.add_task(label, total=None, said="collecting")
        self._bar.start()

    def update(self) -> None:
        """Draw it again."""
        done, total = self._tally.share
        said = self._tally.text()
        self._bar.update(self._task, total=total or None, completed=done, said=said, refresh=True)

    def close(self) -> None:
        """Draw it a last time and leave it there."""
        self.update()
        self._bar.stop()


class Reporter:
    """The pytest plugin that counts and shows."""

    def __init__(self, label: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.tally = Tally(clock)
        self._label = label
        self._shown: Lines | Bar | None = None

    def _show(self) -> Lines | Bar:
        if self._shown is None:
            console = Console(highlight=False, soft_wrap=True)
            if sys.stdout.isatty() and not console.is_dumb_terminal:
                self._shown = Bar(self.tally, self._label, console)
            else:
                self._shown = Lines(self.tally, self._label, _write)
        return self._shown

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:  # none in xdist's controller
            self.tally.expect(len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self.tally.expect(len(ids))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # A test whose worker died has one report alone, of no phase of pytest's.
        last = report.when not in ("setup", "call")
        known = hasattr(report, "wasxfail")
        said = dict(report.user_properties)
        self.tally.hear(report.nodeid, last=last, failed=report.failed, known=known, said=said)
        if last:
            self._show().update()

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self) -> Generator[None, tuple[Any, ...], tuple[Any, ...]]:
        """Keep pytest's count of outcomes, without its dots and letters."""
        category, *_ = yield
        return category, "", ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        if self._shown is not None:
            self._shown.close()


def _write(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _span(seconds: float) -> str:
    whole = round(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"
