"""Hypothesis finds nothing in the backend, and shrinks what it finds to a turn or two."""

from typing import Any

import pytest

from conformance.core.worker import load_subject
from conformance.tiers import tier
from fuzz import machine
from fuzz.history import History
from fuzz.machine import hunt
from fuzz.player import Played
from fuzz.tests import blind


def test_nothing_is_found_in_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Played] = []
    turns: list[int] = []
    play = machine.play

    def watched(history: History, *args: Any) -> Played:
        seen.append(play(history, *args))
        turns.append(len(history.turns))
        return seen[-1]

    monkeypatch.setattr(machine, "play", watched)
    assert hunt("ci", load_subject(blind.REAL), tier("twin")) is None
    assert len(seen) > 50 and sum(turns) > 5 * len(seen), "histories, and most of them of turns"
    reached = [frame for one in seen for frame in one.reached]
    for name, values in {"how": 3, "host": 2, "rows": 2, "dtype": 2, "lag": 3, "device": 3}.items():
        assert len({frame[name] for frame in reached}) >= values, name


def test_a_finding_shrinks_to_its_least() -> None:
    subject = load_subject("conformance.subjects.upstream:ClampsKvEnd")
    found = hunt("ci", subject, tier("twin"))
    assert found is not None
    history, finding = found
    assert "reads behind the valid entries" in finding.message
    assert len(history.turns) == 1 and history.shape.slots == 1
    assert [part.queries for part in history.turns[0].parts] == [1]
    assert machine.play(history, subject, tier("twin")).finding == finding
