"""What the player finds, in subjects with one fault; and that the right one has none."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from conformance.core.subject import Subject, Unobservable
from conformance.core.worker import load_subject
from conformance.tiers import VERSIONS, tier
from fuzz.faults import FAULTS
from fuzz.findings import kind
from fuzz.history import Fault, History, HistoryError, Part, Shape, Turn
from fuzz.player import Finding, Played, play
from fuzz.serving import PLAIN, drawn
from fuzz.tests import blind

SEEDS = 24
OUTPUT = "differs from golden|reads behind the valid entries|flags after"
SHAPE = Shape(
    dtype="fp8", kpe=64, heads=16, geo="serve", width="small", slots=3, budget=64, longest=200,
    drafts=3, lag=1, graphs=(4, 12), force_mqa=False, device="at once",
)  # fmt: skip


def played(history: History, subject: Subject | None = None) -> Played:
    version = VERSIONS[history.seed % len(VERSIONS)]
    return play(history, subject or load_subject(blind.REAL), tier("twin", version))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_backend_plays_without_a_finding(seed: int) -> None:
    seen = played(drawn(seed))
    assert seen.finding is None
    assert seen.frames and 0 < seen.ratio < 1


def upstream(name: str) -> Callable[[], Subject]:
    return lambda: load_subject(f"conformance.subjects.upstream:{name}")


def faulty(kind: type) -> Callable[[], Subject]:
    return lambda: blind.Faulty(kind)


@pytest.mark.parametrize(
    ("subject", "says"),
    [
        (upstream("PaddedPlan"), f"leave the int workspace|reach query row|{OUTPUT}"),
        (upstream("OneStagingBlock"), f"reach query row|{OUTPUT}"),
        (upstream("RefusesPaddedRows"), "the plan has"),
        (upstream("StalePlan"), OUTPUT),
        (upstream("BakedTable"), "block table is another"),
        (upstream("ClampsKvEnd"), "reads behind the valid entries"),
        (upstream("ReadsBack"), "waits for the device"),
        (faulty(blind.WithoutFlags), "flags after"),
        (faulty(blind.ForgetsNothing), f"block_table|{OUTPUT}"),
        (faulty(blind.SplitsAsTheHost), OUTPUT),
        (faulty(blind.TrustsBounds), OUTPUT),
        (faulty(blind.ComputesNothing), "rows to compute"),
        (faulty(blind.AnyStream), "another stream than the build"),
        (faulty(blind.ForgetsToPlan), OUTPUT),
        (faulty(blind.WritesSlotZero), "whether the cache is as it was|differs from golden"),
    ],
)
def test_a_fault_is_found(subject: Callable[[], Subject], says: str) -> None:
    for seed in range(5 * SEEDS):
        try:
            finding = played(drawn(seed), subject()).finding
        except Unobservable:
            continue
        if finding:
            assert re.search(says, finding.message), finding
            return
    raise AssertionError("not found")


EAGER = {"graph": False}
PLACES: dict[str, dict[str, Any]] = {
    "layers": EAGER,
    "second-stream": EAGER,
    "over-capacity": EAGER,
    "skipped-plan": {"parts": (Part(1, 1), Part(0, 1)), **EAGER},
}
"""What the last turn must be, where it is not a graph of four rows of each request."""


def with_fault(fault: Fault, **turn: Any) -> History:
    """A history in whose last turn the kind of fault has a place."""
    graphs = [Turn(parts=(Part(0, 1), Part(1, 1)), graph=True) for _ in range(2)]
    eager = Turn(parts=(Part(0, 1), Part(1, 1)), padding=2)
    last = {"parts": (Part(0, 4), Part(1, 4)), "graph": True, **PLACES.get(fault.kind, {}), **turn}
    last.setdefault(
        "padding", 0 if last["graph"] or last["parts"] != (Part(1, 1), Part(0, 1)) else 2
    )
    turns = (
        Turn((60, 12), parts=(Part(0, 32), Part(1, 12))),
        Turn(parts=(Part(1, 1), Part(0, 28))),
        *graphs,
        *([eager] if fault.kind == "skipped-plan" else []),
        Turn(**last, fault=fault),
    )
    return History(3, SHAPE, turns)


@pytest.mark.parametrize("kind", FAULTS)
def test_every_kind_of_fault_becomes_what_it_must(kind: str) -> None:
    history = with_fault(Fault(kind, 1, 5))
    seen = played(history)
    assert seen.finding is None
    assert seen.frames == len(history.turns) and seen.reached[-1]["fault"] == kind


PLANTED: dict[str, type] = {
    "garbage-tail": blind.CountsTails,
    "stale-bounds": blind.RefusesLooseBounds,
    "warm-up": blind.WritesSlotZero,
    "layers": blind.OneScale,
}
"""Subjects that show that a fault is planted; if none is named, one that reads the whole cache."""


@pytest.mark.parametrize("kind", [name for name, kind in FAULTS.items() if kind.inside])
def test_a_fault_inside_of_the_contract_is_planted(kind: str) -> None:
    wrong = PLANTED.get(kind, blind.TouchesAll)
    history = with_fault(Fault(kind, 1, 5), graph=False)
    finding = played(history, blind.Faulty(wrong)).finding
    assert finding and (finding.frame, finding.fault) == ("turn 4", kind)
    plain = history
    plain = replace(plain, turns=tuple(replace(turn, fault=None) for turn in plain.turns))
    assert played(plain, blind.Faulty(wrong)).finding is None


@pytest.mark.parametrize("kind", [name for name, kind in FAULTS.items() if kind.flag])
def test_a_flag_that_cannot_be_seen_is_no_pass(kind: str) -> None:
    history, subject = with_fault(Fault(kind, 1, 5)), blind.Faulty(blind.ShowsNoFlags)
    seen = played(history, subject)
    assert seen.unplanted == [f"{kind}: flags"] and seen.reached[-1]["fault"] == "none"


class Unconstructible(blind.Faulty):
    def construct(self, *args: Any, **options: Any) -> Any:
        raise ValueError("not today")


def test_a_construction_that_fails_is_a_finding() -> None:
    finding = played(drawn(0), Unconstructible(blind.Instance)).finding
    assert finding and finding.crash and finding.frame == "construction"
    assert "not today" in finding.message


def test_findings_of_one_kind_have_one_name() -> None:
    first, *others = [
        Finding("turn 3", "", f"FUZZ/dtype=bf16/{n}: turn {n} (row {n} of request 1, row 2 of "
                f"request 7, ...) differs from golden\n{n} of 9")
        for n in range(4)
    ]  # fmt: skip
    assert {kind(other) for other in others} == {kind(first)}
    assert "differs from golden" in kind(first)


@pytest.mark.parametrize("kind", [name for name, kind in FAULTS.items() if kind.flag])
def test_a_flag_that_is_not_raised_is_a_finding(kind: str) -> None:
    subject = blind.Faulty(blind.WithoutFlags)
    seen = played(with_fault(Fault(kind, 1, 5)), subject)
    assert seen.finding and "flags after" in seen.finding.message
    assert seen.finding.fault == kind


@pytest.mark.parametrize(
    ("kind", "turn"),
    [
        ("low-bound", {"known": False}),
        ("garbage-entry", {"parts": ()}),
        ("garbage-tail", {"parts": (), "graph": False}),
        ("small-graph", {"parts": (Part(0, 1),)}),
    ],
)
def test_a_fault_without_a_place_is_refused(kind: str, turn: dict[str, Any]) -> None:
    with pytest.raises(HistoryError, match=kind):
        played(with_fault(Fault(kind), **turn))


def test_a_finding_names_turn_request_and_case() -> None:
    history = with_fault(Fault("garbage-tail"))
    finding = played(history, blind.Faulty(blind.TrustsBounds)).finding
    late = replace(history, turns=(*history.turns[:2], *history.turns[4:]))
    assert finding is None, "no draft was rejected, so bounds are lengths"
    parts = (Part(0, 4, 0), Part(1, 4, 0))
    turns = (*late.turns[:2], Turn(parts=parts), Turn(parts=parts))
    finding = played(replace(late, turns=turns), blind.Faulty(blind.TrustsBounds)).finding
    assert finding and finding.frame == "turn 3"
    assert history.case in finding.message and "repro    python -m fuzz" in finding.message
    later = replace(late, turns=turns, shape=replace(SHAPE, device="later"))
    finding = played(later, blind.Faulty(blind.TrustsBounds)).finding
    assert finding and "row 0 of request 0" in finding.message


def test_profiles_fix_shapes() -> None:
    fixed = replace(PLAIN, turns=3, faults=False, shape=(("heads", 128), ("device", "held")))
    for seed in range(10):
        history = drawn(seed, fixed)
        assert (history.shape.heads, history.shape.device) == (128, "held")
        assert len(history.turns) <= 3 and not any(turn.fault for turn in history.turns)


def test_a_write_into_the_cache_is_found_though_the_fault_replaces_the_cache() -> None:
    for name in ("nan-elsewhere", "late-frame", "garbage-tail"):
        for drafting in (0, 1):
            history = with_fault(Fault(name, 1, 5), drafting=drafting)
            finding = played(history, blind.Faulty(blind.WritesTheCache)).finding
            assert finding and "whether the cache is as it was" in finding.message


class Clockless(blind.Faulty):
    """As Faulty, without the capability to run on the suite's clock."""

    def __init__(self, wrong: Any) -> None:
        super().__init__(wrong)
        self.capabilities = self.capabilities - {"clock"}


@pytest.mark.parametrize("device", ["later", "held"])
def test_a_device_that_cannot_be_late_is_told_of(device: str) -> None:
    history = replace(with_fault(Fault("garbage-tail")), shape=replace(SHAPE, device=device))
    seen = played(history, Clockless(blind.Instance))
    assert seen.unplanted == [f"device {device}: capability clock"]
    assert {frame["device"] for frame in seen.reached} == {"at once"}
    assert {frame["device"] for frame in played(history).reached} <= {device, "later"}
    wrong = played(history, Clockless(blind.ReadsTails)).finding
    assert wrong and "reads behind the valid entries" in wrong.message, "reads are looked at then"


@pytest.mark.parametrize("kind", [name for name, kind in FAULTS.items() if kind.error])
def test_an_error_that_happens_to_say_the_word_is_no_refusal(kind: str) -> None:
    word, history = FAULTS[kind].error, with_fault(Fault(kind, 1, 5))
    finding = played(history, blind.Faulty(blind.stumbling(word))).finding
    assert finding and finding.fault == kind and word in finding.message


def test_what_becomes_unobservable_on_the_way_is_a_finding() -> None:
    finding = played(with_fault(Fault("garbage-tail")), blind.Faulty(blind.OptsOut)).finding
    assert finding and "in the middle of a history" in finding.message


def test_a_second_layer_s_padding_is_looked_at() -> None:
    for row in (0, 1):
        history = with_fault(Fault("layers", row, 5), padding=3)
        finding = played(history, blind.Faulty(blind.ClearsPaddingLater)).finding
        assert finding and "elements written behind the rows" in finding.message


@pytest.mark.parametrize("kind", [name for name, kind in FAULTS.items() if kind.among])
def test_frames_are_in_flight_around_what_stays_in_its_frame(kind: str) -> None:
    turns = with_fault(Fault(kind, 1, 5), graph=False).turns
    again = Turn(parts=(Part(0, 1), Part(1, 1)))
    shape = replace(SHAPE, device="held", graphs=())
    turns = tuple(replace(turn, graph=False) for turn in turns)
    history = History(3, shape, (*turns[:2], again, again, turns[-1], again))
    assert played(history).finding is None
    finding = played(history, blind.Faulty(blind.RefusesCompany)).finding
    assert finding and finding.frame == "turn 4" and "company" in finding.message
