"""Progress: what is counted, when a line is said, and what a line says; with a clock of its own."""

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from conformance.core import progress
from conformance.core.progress import EVERY_S, Bar, Lines, Reporter, Tally


class Hand:
    """A clock moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def pass_cases(tally: Tally, *numbers: int) -> None:
    for number in numbers:
        tally.hear(f"t{number}", last=True, failed=False, known=False)


def test_a_line_says_counts_rate_failures_and_what_is_left() -> None:
    clock = Hand()
    tally = Tally(clock)
    tally.expect(200)
    assert tally.text() == "0 of 200 cases (0 %), 0 failed"
    pass_cases(tally, *range(48))
    tally.hear("bad", last=False, failed=True, known=False)
    tally.hear("bad", last=True, failed=True, known=False)
    tally.hear("known", last=False, failed=False, known=True)
    tally.hear("known", last=True, failed=False, known=False)
    clock.now += 20
    said = "50 of 200 cases (25 %), 1 failed, 1 failed as known, 2.5 a second, about 1 min 0 s left"
    assert tally.text() == said
    pass_cases(tally, *range(48, 198))
    assert tally.text() == "200 of 200 cases (100 %), 1 failed, 1 failed as known, 10.0 a second"


@pytest.mark.parametrize(("seconds", "said"), [(7, "7 s"), (61, "1 min 1 s"), (7300, "2 h 1 min")])
def test_spans(seconds: int, said: str) -> None:
    clock = Hand()
    tally = Tally(clock)
    tally.expect(1 + seconds)
    clock.now += 1
    pass_cases(tally, 1)
    assert tally.text().endswith(f"about {said} left")


@pytest.mark.parametrize("total", [1, 7, 10, 48, 3390])
def test_a_line_for_each_tenth_and_no_more(total: int) -> None:
    said: list[str] = []
    tally = Tally(Hand())
    tally.expect(total)
    lines = Lines(tally, "x on twin", said.append)
    for number in range(total):
        pass_cases(tally, number)
        lines.update()
    lines.close()
    assert len(said) == min(total, 10), said
    assert said[-1].startswith(f"x on twin: {total} of {total} cases (100 %)")


def test_a_line_when_half_a_minute_brought_no_tenth() -> None:
    said: list[str] = []
    clock = Hand()
    tally = Tally(clock)
    tally.expect(1000)
    lines = Lines(tally, "x", said.append)
    for number in range(20):
        clock.now += EVERY_S / 4
        pass_cases(tally, number)
        lines.update()
    assert len(said) == 5
    lines.close()
    assert len(said) == 5, "the last line is not said twice"
    pass_cases(tally, 20)
    lines.close()
    assert len(said) == 6, "a run that was cut short says where"


def report(test: str, when: str | None, failed: bool = False, **more: Any) -> Any:
    named = {"nodeid": test, "when": when, "failed": failed}
    return SimpleNamespace(user_properties=[], **named, **more)


def heard(monkeypatch: pytest.MonkeyPatch) -> tuple[Reporter, io.StringIO]:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    return Reporter("x", Hand()), out


def test_it_counts_what_pytest_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    reporter, out = heard(monkeypatch)
    reporter.pytest_xdist_node_collection_finished(["a", "b", "c", "d"])
    reporter.pytest_xdist_node_collection_finished(["a", "b", "c", "d"])
    for when in ("setup", "call", "teardown"):
        reporter.pytest_runtest_logreport(report("a", when))
        reporter.pytest_runtest_logreport(report("b", when, failed=when == "call"))
    reporter.pytest_runtest_logreport(report("c", "???", failed=True))  # its worker died
    reporter.pytest_runtest_logreport(report("d", "call", wasxfail="known"))
    reporter.pytest_runtest_logreport(report("d", "teardown"))
    reporter.pytest_sessionfinish()
    last = out.getvalue().splitlines()[-1]
    assert last == "x: 4 of 4 cases (100 %), 2 failed, 1 failed as known"


def test_one_process_counts_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    reporter, out = heard(monkeypatch)
    session: Any = SimpleNamespace(items=["a", "b"])
    reporter.pytest_collection_finish(session)
    reporter.pytest_runtest_logreport(report("a", "teardown"))
    assert out.getvalue().splitlines() == ["x: 1 of 2 cases (50 %), 0 failed"]


def test_nothing_collected_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    reporter, out = heard(monkeypatch)
    reporter.pytest_sessionfinish()
    assert out.getvalue() == ""


def test_pytest_s_letters_are_silent_and_counted() -> None:
    hook = Reporter("x").pytest_report_teststatus()
    next(hook)
    with pytest.raises(StopIteration) as stop:
        hook.send(("failed", "F", "FAILED"))
    assert stop.value.value == ("failed", "", "")


def test_a_terminal_has_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdout", Screen())
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(Reporter("x", Hand())._show(), Bar)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(Reporter("x", Hand())._show(), Lines)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as CI sets it
    assert isinstance(Reporter("x", Hand())._show(), Lines)


def test_the_bar_shows_the_same_words() -> None:
    tally = Tally(Hand())
    tally.expect(8)
    screen = io.StringIO()
    bar = Bar(tally, "x on twin", Console(file=screen, force_terminal=True, width=160))
    pass_cases(tally, 1, 2)
    tally.hear("bad", last=True, failed=True, known=False)
    bar.update()
    bar.close()
    assert "3 of 8 cases (37 %), 1 failed" in screen.getvalue()
    assert progress.STEPS == 10
