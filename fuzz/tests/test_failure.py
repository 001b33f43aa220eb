"""Every field of a finding, with subjects of which it is known what goes wrong, and where."""

import ast
import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance.core.catalogue import REQUIREMENTS
from conformance.core.schedule import FIELDS
from conformance.core.subject import Subject
from conformance.core.worker import load_subject
from conformance.tiers import tier
from fuzz import player, telling
from fuzz.failure import CHECKS, FLAGS, PLANTED, Finding
from fuzz.faults import FAULTS
from fuzz.findings import keep
from fuzz.history import Fault, History, Part, Shape, Turn
from fuzz.tests import blind

SHAPE = Shape(
    dtype="bf16", kpe=0, heads=16, geo="serve", width="small", slots=3, budget=40, longest=200,
    drafts=3, lag=1, graphs=(), force_mqa=False, device="at once",
)  # fmt: skip
PREFILLS = (Turn((30, 20), parts=(Part(0, 30), Part(1, 10))), Turn(parts=(Part(1, 10),)))
# Of the last turn rows 0 to 2 are of request 1, rows 3 and 4 of request 0.
HISTORY = History(7, SHAPE, (*PREFILLS, Turn(parts=(Part(1, 3), Part(0, 2)))))
LAST = HISTORY.turns[-1]


class OneElement(blind.Instance):
    """Computes one element wrongly, in steps of 5 rows."""

    row, head, dim, value = 4, 11, 5, 40.0

    def forward(self, *args: Any, **options: Any) -> None:
        super().forward(*args, **options)
        if args[4].num_rows == 5:
            out = args[6]
            self.runtime.native_run(out[self.row, self.head, self.dim].fill_, self.value)


class Stops(blind.Instance):
    """Does not know how to compute 5 rows."""

    def forward(self, *args: Any, **options: Any) -> None:
        if args[4].num_rows == 5:
            raise RuntimeError("five is right out\nand so is this line")
        super().forward(*args, **options)


class WritesOn(blind.Instance):
    """Writes one row too many."""

    def forward(self, *args: Any, **options: Any) -> None:
        super().forward(*args, **options)
        args[6][args[4].num_rows :] = 0


class Raises(blind.Instance):
    """Raises a flag for no reason."""

    def observe(self) -> Any:
        return replace(super().observe(), flags=frozenset({"scale_changed"}))


def found(history: History, subject: Subject | type, again: str = "the command") -> Finding:
    subject = blind.Faulty(subject) if isinstance(subject, type) else subject
    finding = player.play(history, subject, tier("twin"), again).finding
    assert finding is not None
    return finding


def last(**changes: Any) -> History:
    return replace(HISTORY, turns=(*PREFILLS, replace(LAST, **changes)))


def test_a_wrong_output_is_told_of_by_row_and_request() -> None:
    finding = found(HISTORY, OneElement)
    assert (finding.frame, finding.fault, finding.crash) == ("turn 2", "", False)
    assert (finding.row, finding.request) == (4, 0)
    assert finding.requirement == "NUM-1" and finding.repro == "the command"
    worst = finding.worst[0]
    assert (worst.row, worst.request, worst.head, worst.dim) == (4, 0, 11, 5)
    assert worst.got == 40.0 and finding.got == "40"
    assert abs(worst.got - worst.expected) > worst.bound > 0
    assert float(finding.expected) == pytest.approx(worst.expected, rel=1e-6)
    assert len(finding.worst) == 1 or abs(finding.worst[1].got) < 40


@pytest.mark.parametrize(("row", "owner"), [(0, 1), (2, 1), (3, 0)])
def test_each_row_is_its_request_s(row: int, owner: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OneElement, "row", row)
    finding = found(HISTORY, OneElement)
    assert (finding.row, finding.request) == (row, owner)


def test_rows_are_counted_with_those_that_a_fault_spares() -> None:
    history = last(fault=Fault("garbage-entry", row=1))
    finding = found(history, OneElement)
    assert (finding.row, finding.request, finding.fault) == (4, 0, "garbage-entry")
    assert finding.requirement == "IDX-2"


def test_the_split_of_the_device_decides_whose_a_row_is() -> None:
    history = replace(HISTORY, turns=(*PREFILLS, replace(LAST, device=(4, 1))))
    finding = found(history, OneElement)
    assert (finding.row, finding.request, finding.requirement) == (4, 0, "DRAFT-3")
    history = replace(HISTORY, turns=(*PREFILLS, replace(LAST, device=(1, 4))))
    assert found(history, OneElement).request == 0


@pytest.mark.parametrize(
    ("shape", "turn", "requirement"),
    [
        ({"graphs": (5,)}, {"graph": True}, "GRAPH-2"),
        ({"graphs": (9,)}, {"graph": True}, "GRAPH-3"),
        ({"dtype": "fp8"}, {}, "NUM-2"),
        ({}, {"fault": Fault("garbage-tail")}, "READ-B"),
        ({}, {"fault": Fault("nan-elsewhere")}, "READ-D"),
    ],
)
def test_an_output_speaks_for_what_its_frame_shows(
    shape: dict[str, Any], turn: dict[str, Any], requirement: str
) -> None:
    history = replace(last(**turn), shape=replace(SHAPE, **shape))
    assert found(history, OneElement).requirement == requirement


def test_the_schedule_is_the_row_s() -> None:
    finding = found(HISTORY, OneElement)
    schedule = finding.schedule
    assert schedule is not None and schedule.after == "turn 2"
    assert [name for name, _ in schedule.info] == list(FIELDS)
    assert dict(schedule.info)["num_blks_x"] == 1 and dict(schedule.info)["num_blks_y"] == 132
    # Row 4 is the second query token of request 0, which had 30 tokens: 32 of them are its.
    assert schedule.valid == 32
    assert schedule.items and all(item.q == (0, 16) for item in schedule.items)
    tiled = sorted(item.kv for item in schedule.items if item.kv[0] < item.kv[1])
    assert tiled[0][0] == 0 and tiled[-1][1] == 32
    assert all(one[1] == two[0] for one, two in itertools.pairwise(tiled))
    reads = [item.touched for item in schedule.items if item.touched]
    assert min(first for first, _ in reads) == 0 and max(end for _, end in reads) == 31


def test_a_schedule_of_a_later_frame_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    more = (*HISTORY.turns, Turn(parts=(Part(1, 1), Part(0, 1))))
    later = History(7, replace(SHAPE, device="later"), more)
    finding = found(later, OneElement)
    assert finding.frame == "turn 2" and finding.row == 4
    assert finding.schedule is not None and finding.schedule.after == "turn 3"
    assert finding.schedule.valid is None and not finding.schedule.items, "it has two rows"


def test_reads_behind_the_valid_entries_name_their_row() -> None:
    finding = found(HISTORY, load_subject("conformance.subjects.upstream:ClampsKvEnd"))
    assert finding.requirement == "READ-C"
    assert finding.row is not None and finding.request is not None
    assert f"row {finding.row}, position" in finding.got and "masked" in finding.got
    assert finding.expected == "none"
    assert finding.schedule is not None and finding.schedule.valid is not None
    furthest = max(item.touched[1] for item in finding.schedule.items if item.touched)
    assert furthest >= finding.schedule.valid
    assert any(item.load_end > item.kv[1] for item in finding.schedule.items)


def test_a_crash_is_told_of() -> None:
    finding = found(HISTORY, Stops)
    assert finding.crash and finding.row is None and finding.request is None
    assert finding.got == "RuntimeError: five is right out"
    assert finding.expected == "no exception" and finding.requirement == "NUM-1"
    assert "where    the whole frame" in telling.told(HISTORY, finding)


def test_rows_that_are_not_live_and_flags_speak_for_their_requirements() -> None:
    finding = found(last(padding=2), WritesOn)
    assert finding.requirement == "PLAN-11" and finding.expected == "0"
    assert int(finding.got) == 2 * SHAPE.heads * 64
    finding = found(HISTORY, Raises)
    assert finding.requirement == "NUM-3"
    assert (finding.got, finding.expected) == ("scale_changed", "none")
    finding = found(last(fault=Fault("garbage-entry", row=3)), blind.WithoutFlags)
    assert (finding.requirement, finding.row, finding.request) == ("LEN-3", 3, 0)
    assert (finding.got, finding.expected) == ("none", "count_below_formula")


def test_the_text_says_all_of_it(tmp_path: Path) -> None:
    history = last(fault=Fault("garbage-tail"))
    finding = found(history, OneElement, "python -m fuzz replay HERE")
    text = telling.told(history, finding)
    for part in (
        "turn 2", history.case, "3 turns, 2 requests", FAULTS["garbage-tail"].sentence,
        f"READ-B: {REQUIREMENTS['READ-B'].sentence}", "row 4 of request 0", "got      40",
        f"expected {finding.expected}", "head 11 dim 5", "num_blks_y 132", "32 valid entries",
        "kv [0, 32)", "q [0, 16)", "repro    python -m fuzz replay HERE",
    ):  # fmt: skip
        assert part in text, f"not told: {part}\n{text}"
    assert 8 <= len(text.splitlines()) <= 24
    path = keep(tmp_path, history, telling.told(history, finding))
    assert path.with_suffix(".txt").read_text() == f"{text}\n"
    assert History.loads(path.read_text()) == history


def test_without_a_schedule_the_text_says_so() -> None:
    finding = replace(found(HISTORY, Stops), schedule=None)
    assert "schedule not shown" in telling.told(HISTORY, finding)


def test_a_subject_that_shows_no_schedule_is_still_told_of() -> None:
    class Hides(OneElement):
        def observe(self) -> Any:
            return replace(super().observe(), int_workspace=None)

    finding = found(HISTORY, Hides)
    assert (finding.row, finding.schedule) == (4, None)


def test_every_check_of_the_player_speaks_for_a_requirement() -> None:
    assert {*CHECKS.values(), *FLAGS.values(), *PLANTED.values()} <= set(REQUIREMENTS)
    assert set(PLANTED) == set(FAULTS), "to fix: fuzz.failure.PLANTED"
    told = [kind.flag for kind in FAULTS.values() if kind.flag]
    assert set(told) <= set(FLAGS), "to fix: fuzz.failure.FLAGS"
    starts = []
    for node in ast.walk(ast.parse(Path(player.__file__).read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("self.lab."):
            name = ast.unparse(node.func).rpartition(".")[2]
            if name in ("expect", "check"):
                starts.append(ast.unparse(node.args[2 if name == "expect" else 1]))
    assert len(starts) > 5
    known = re.compile("|".join([*CHECKS, "flags after", r"kind\.sentence"]))
    assert [start for start in starts if not known.search(start)] == [], (
        "a check that speaks for nothing; to fix: fuzz.failure.CHECKS"
    )
