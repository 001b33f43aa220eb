"""A drawn finding shrinks to the least that shows it, and to nothing of another kind."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from conformance.core.subject import Subject, Unobservable
from conformance.core.worker import load_subject
from conformance.tiers import tier
from fuzz import shrink, simpler
from fuzz.cli import main
from fuzz.failure import Finding
from fuzz.findings import kind
from fuzz.history import Fault, History, HistoryError, Part, Turn
from fuzz.player import play
from fuzz.serving import Profile, drawn
from fuzz.simpler import MOVES, settled, size
from fuzz.tests import blind
from fuzz.tests.test_failure import HISTORY, Stops

CLAMPS_KV_END = "conformance.subjects.upstream:ClampsKvEnd"
TIER = tier("twin")


def drawn_findings(subject: Subject, count: int) -> Iterator[tuple[History, Finding]]:
    for seed in range(200):
        history = drawn(seed, Profile(turns=10))
        try:
            finding = play(history, subject, TIER).finding
        except Unobservable:
            continue
        if finding:
            yield history, finding
            count -= 1
        if not count:
            return
    raise AssertionError("too few findings")


def test_a_clamp_of_kv_end_alone_shrinks_to_one_row() -> None:
    subject = load_subject(CLAMPS_KV_END)
    for history, finding in drawn_findings(subject, 3):
        small = shrink.smallest(history, finding, subject, TIER)
        turns, shape = small.history.turns, small.history.shape
        assert [(turn.arrive, turn.parts) for turn in turns] == [((1,), (Part(0, 1),))]
        assert (shape.slots, shape.budget, shape.heads, shape.dtype) == (1, 1, 16, "bf16")
        assert not shape.graphs and shape.drafts == shape.lag == 0
        assert kind(small.finding) == kind(finding)
        assert play(small.history, subject, TIER).finding == small.finding
        assert small.tries < 100


@pytest.mark.parametrize("wrong", [blind.TrustsBounds, blind.SplitsAsTheHost])
def test_what_needs_several_turns_keeps_them(wrong: type) -> None:
    subject = blind.Faulty(wrong)
    for history, finding in drawn_findings(subject, 1):
        small = shrink.smallest(history, finding, subject, TIER)
        assert kind(small.finding) == kind(finding)
        assert size(small.history) < size(history)
        assert len(small.history.turns) > 1, "prompts must be computed before drafts can be"
        if wrong is blind.SplitsAsTheHost:
            assert sum(len(turn.arrive) for turn in small.history.turns) == 2, "two share rows"
            told = any(turn.device for turn in small.history.turns)
            assert told or small.finding.fault == "untold-split"


class Alternates(blind.Instance):
    """Stops in steps of 3 rows or more, and writes where it must not in smaller ones."""

    def forward(self, *args: Any, **options: Any) -> None:
        rows = args[4].num_rows
        if rows >= 3:
            raise RuntimeError("too many")
        super().forward(*args, **options)
        if 0 < rows < 3:
            args[6].zero_()


def test_a_finding_never_becomes_another() -> None:
    subject = blind.Faulty(Alternates)
    whole = History(1, replace(HISTORY.shape, budget=40), (Turn((30,), parts=(Part(0, 30),)),))
    finding = play(whole, subject, TIER).finding
    assert finding and "too many" in finding.message
    small = shrink.smallest(whole, finding, subject, TIER)
    assert "too many" in small.finding.message
    assert [part.queries for part in small.history.turns[0].parts] == [3]
    least = replace(whole, turns=(Turn((2,), parts=(Part(0, 2),)),))
    other = play(least, subject, TIER).finding
    assert other and kind(other) != kind(finding), "below lies a finding of another kind"


def test_tries_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    subject, played = blind.Faulty(Stops), []

    def watched(history: History, *args: Any) -> Any:
        played.append(history)
        return play(history, *args)

    finding = play(HISTORY, subject, TIER).finding
    assert finding
    monkeypatch.setattr(shrink, "play", watched)
    for tries in (1, 2, 5):
        played.clear()
        small = shrink.smallest(HISTORY, finding, subject, TIER, tries=tries)
        assert len(played) == small.tries == tries
        assert kind(small.finding) == kind(finding)
    played.clear()
    shrink.smallest(HISTORY, finding, subject, TIER)
    assert len(set(played)) == len(played), "none is played twice"


def test_what_is_simpler_is_smaller_or_is_left_out() -> None:
    fault = Fault("garbage-tail", 3, 4)
    for seed in range(12):
        history = drawn(seed)
        assert settled(history) == history, "a drawn history is in order"
        busy = replace(history.turns[-1], fault=fault, padding=2)
        history = replace(history, turns=(*history.turns[:-1], busy))
        for move in MOVES:
            made = [other for other in map(settled, move(history)) if other]
            assert any(size(other) < size(history) for other in made) or not made, move.__name__
            assert history not in [other for other in made if size(other) < size(history)]


def test_requests_behind_one_that_goes_move_up() -> None:
    turns = (
        Turn((5, 6, 7), parts=(Part(0, 5), Part(1, 6), Part(2, 7))),
        Turn(parts=(Part(0, 1), Part(1, 2), Part(2, 1)), device=(1, 1, 2), finish=(0, 2)),
    )
    shape = replace(HISTORY.shape, slots=3)
    first, *_, last = simpler.fewer_requests(History(0, shape, turns))
    assert [part.request for part in last.turns[1].parts] == [0, 1]
    assert (last.turns[0].arrive, last.turns[1].finish) == ((6, 7), (1,))
    assert last.turns[1].device == (1, 2)
    assert (first.turns[0].arrive, first.turns[1].finish) == ((5, 6), (0,))


def test_the_command_writes_the_smallest(tmp_path: Path) -> None:
    history = replace(HISTORY, seed=2)
    path = tmp_path / "found.json"
    path.write_text(history.dumps())
    options = ["--subject", CLAMPS_KV_END, "--flashinfer", "0.7.4"]
    done = CliRunner().invoke(main, ["shrink", *options, str(path)])
    small = tmp_path / "history-2-small.json"
    assert done.exit_code == 1, done.output
    assert str(small) in done.output and "READ-C" in done.output
    least = History.loads(small.read_text())
    assert len(least.turns) == 1 and size(least) < size(history)
    text = small.with_suffix(".txt").read_text()
    assert text in done.output and "--flashinfer 0.7.4" in text
    again = CliRunner().invoke(main, ["replay", *options, str(small)])
    assert again.exit_code == 1, again.output
    sound = CliRunner().invoke(main, ["shrink", str(path)])
    assert sound.exit_code == 0 and "nothing to shrink" in sound.output


def test_the_command_refuses_what_is_no_history(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    done = CliRunner().invoke(main, ["shrink", str(tmp_path / "x.json")])
    assert isinstance(done.exception, HistoryError) and "schema" in str(done.exception)
