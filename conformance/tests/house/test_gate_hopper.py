"""Evidence from a GPU counts if it is of the whole suite, of this suite and of these packages."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from conformance.core import environment
from conformance.core.record import Outcome, Record, RecordWriter
from conformance.core.request import Identity
from conformance.gate import hopper, policy, results
from conformance.gate.alternate import figure
from conformance.gate.errors import GateError, ResultsError
from conformance.gate.evidence import Evidence
from conformance.gate.measured import Measured
from conformance.gate.model import (
    TIERS,
    Change,
    Finding,
    Side,
    Status,
    TierResult,
    Weight,
    ran,
)
from conformance.gate.package import Package
from conformance.gate.suite_run import SuiteRun, run_suite
from conformance.gate.verdict import decide
from conformance.listing import case_ids

OLD, NEW = Side("1.0", "1.0", "a" * 64), Side("2.0", "2.0", "b" * 64)
ASKED = hopper.Asked("mine@/here", "m:f@/here", Identity("mine", "3"))
KNOWN = "fail (bug): it does that"


@cache
def cases() -> tuple[str, ...]:
    return tuple(case_ids(("hopper",)))


def record(case: str, version: str = "2.0", **more: Any) -> Record:
    first = Record(
        *(case, case.partition("/")[0], "hopper", "mine@/there", Outcome.PASS, None, None, False),
        *("", "repro"),
        flashinfer=version,
        subject_version="3",
    )
    return replace(first, **more)


def of(requirement: str, number: int = 0) -> str:
    return [case for case in cases() if case.startswith(f"{requirement}/")][number]


def evidence(side: Side, changes: Mapping[str, Mapping[str, Any]] | None = None) -> Evidence:
    """A whole run of right cases, save for what is changed."""
    changes = changes or {}
    records = tuple(record(case, side.version, **changes.get(case, {})) for case in cases())
    return Evidence(side, "mine", "3", records, where=f"{side.version}.tar.xz", gpu="H200")


def measured(*findings: Finding, ratio: float = 1.0, candidate: Side = NEW) -> Measured:
    rounds = [{"baseline": 10.0, "candidate": 10.0 * ratio}] * 3
    one = figure("host time of a plan, 8 rows", "plan", "H200", rounds)
    return Measured("mine", "3", OLD, candidate, "H200", (one,), findings, ("8 rows",))


def judged(before: Evidence | None, after: Evidence | None, *benchmarks: Measured) -> TierResult:
    given = [one for one in (before, after) if one is not None]
    return hopper.weighed(ASKED, OLD, NEW, given, benchmarks or [measured()])


def heavy(tier: TierResult) -> dict[str, Weight]:
    return {f.key: f.weight for f in tier.findings if f.weight is not Weight.NOTE}


WRONG = {"outcome": Outcome.FAIL, "message": "row 3 is off"}
FORETOLD = {"outcome": Outcome.XFAIL, "message": "row 3 is off", "expected": KNOWN}
HIDDEN = {"outcome": Outcome.UNOBSERVABLE, "message": "plan_info"}
SKIPPED = {"outcome": Outcome.SKIPPED, "message": "no such tool"}
REFUSES = {"outcome": Outcome.REFUSED, "message": "FP8"}
PASSES = {"outcome": Outcome.XPASS, "expected": KNOWN}


def test_a_whole_right_run_of_both_passes() -> None:
    tier = judged(evidence(OLD), evidence(NEW))
    assert tier.status is Status.PASS and not heavy(tier) and len(tier.figures) == 1
    assert tier.facts["cases"] == len(cases()) > 3000
    assert tier.facts["gpu"] == "H200" and tier.facts["baseline"] == f"{len(cases())} cases"
    assert len([f for f in tier.findings if f.change is Change.UNCHANGED]) > 50


@pytest.mark.parametrize(
    ("before", "after", "weight"),
    [
        ({}, WRONG, Weight.OBJECTION),
        ({}, FORETOLD, Weight.OBJECTION),
        ({}, {"outcome": Outcome.CRASH, "message": "x"}, Weight.OBJECTION),
        ({}, {"outcome": Outcome.HANG, "message": "x"}, Weight.OBJECTION),
        ({}, REFUSES, Weight.OBJECTION),
        ({}, HIDDEN, Weight.OBJECTION),
        (FORETOLD, FORETOLD, Weight.REVIEW),
        (WRONG, WRONG, Weight.OBJECTION),
        (FORETOLD, WRONG, Weight.OBJECTION),
        (FORETOLD, {}, None),
        (FORETOLD, PASSES, None),
        (WRONG, {}, None),
    ],
)
def test_one_case_before_and_now(
    before: Mapping[str, Any], after: Mapping[str, Any], weight: Weight | None
) -> None:
    case = of("NUM-1", 5)
    tier = judged(evidence(OLD, {case: before}), evidence(NEW, {case: after}))
    found = {key: w for key, w in heavy(tier).items() if key != "hopper/not-shown"}
    assert found == ({"hopper/NUM-1": weight} if weight else {})
    assert tier.status is (Status.FAIL if weight is Weight.OBJECTION else Status.PASS)
    if weight:
        (one,) = (f for f in tier.findings if f.key == "hopper/NUM-1")
        assert case in one.what


def test_what_is_wrong_on_both_does_not_hide_what_is_wrong_anew() -> None:
    old, new = of("NUM-1", 0), of("NUM-1", 1)
    tier = judged(evidence(OLD, {old: FORETOLD}), evidence(NEW, {old: FORETOLD, new: FORETOLD}))
    assert heavy(tier) == {"hopper/NUM-1": Weight.OBJECTION}
    unforetold = judged(
        evidence(OLD, {old: FORETOLD, new: WRONG}), evidence(NEW, {old: FORETOLD, new: WRONG})
    )
    assert heavy(unforetold) == {"hopper/NUM-1": Weight.OBJECTION}
    (found,) = (f for f in unforetold.findings if f.key == "hopper/NUM-1")
    assert new in found.what and "no ledger" in found.what


@pytest.mark.parametrize(
    ("after", "weight", "status"),
    [
        ({}, None, Status.NOT_RUN),
        (FORETOLD, Weight.REVIEW, Status.NOT_RUN),
        (WRONG, Weight.OBJECTION, Status.FAIL),
        (HIDDEN, None, Status.NOT_RUN),
    ],
)
def test_without_the_baseline_the_suite_s_own_word_can_only_refuse(
    after: Mapping[str, Any], weight: Weight | None, status: Status
) -> None:
    tier = judged(None, evidence(NEW, {of("NUM-1"): after}))
    assert tier.facts["baseline"] == "not seen" and tier.status is status
    assert {k: w for k, w in heavy(tier).items() if k == "hopper/NUM-1"} == (
        {"hopper/NUM-1": weight} if weight else {}
    )
    assert all("not seen" in f.before for f in tier.findings if f.key == "hopper/NUM-1")


def test_a_baseline_seen_in_part_is_compared_in_part() -> None:
    seen, unseen = of("NUM-1", 0), of("NUM-1", 1)
    whole = evidence(OLD, {seen: {}})
    part = replace(whole, records=tuple(r for r in whole.records if r.case == seen))
    known = judged(part, evidence(NEW, {unseen: FORETOLD}))
    assert heavy(known) == {"hopper/NUM-1": Weight.REVIEW} and known.status is Status.PASS
    worse = judged(part, evidence(NEW, {seen: FORETOLD, unseen: FORETOLD}))
    assert heavy(worse) == {"hopper/NUM-1": Weight.OBJECTION}


def cut(one: Evidence, keep: Callable[[Record], bool]) -> Evidence:
    return replace(one, records=tuple(r for r in one.records if keep(r)))


@pytest.mark.parametrize("gone", [1, 1000, 3000])
def test_a_selection_or_a_run_cut_short_is_no_evidence(gone: int) -> None:
    left = set(cases()[gone:])
    tier = judged(evidence(OLD), cut(evidence(NEW), lambda r: r.case in left))
    assert tier.status is Status.NOT_RUN
    assert f"{gone} of {len(cases())} cases" in tier.reason and cases()[0] in tier.reason
    assert "bundle" in tier.command and "--results" in tier.command and tier.findings


def test_a_selection_that_shows_a_fault_is_still_an_objection() -> None:
    one = of("NUM-1")
    tier = judged(None, cut(evidence(NEW, {one: WRONG}), lambda r: r.requirement == "NUM-1"))
    assert tier.status is Status.FAIL and tier.facts["not whole"]


@pytest.mark.parametrize(
    ("before", "after", "whole"),
    [
        (SKIPPED, SKIPPED, False),
        ({}, SKIPPED, False),
        (HIDDEN, HIDDEN, True),
        (REFUSES, REFUSES, True),
        (REFUSES, HIDDEN, False),
        (SKIPPED, HIDDEN, False),
        (HIDDEN, {}, True),
    ],
)
def test_a_requirement_below_its_least(
    before: Mapping[str, Any], after: Mapping[str, Any], whole: bool
) -> None:
    case = of("GRAPH-1")
    tier = judged(evidence(OLD, {case: before}), evidence(NEW, {case: after}))
    assert tier.status is (Status.PASS if whole else Status.NOT_RUN)
    if not whole:
        least = sum(c.startswith("GRAPH-1/") for c in cases())
        assert f"GRAPH-1: {least - 1} of at least {least}" in tier.reason and case in tier.reason
    if whole and after:
        assert heavy(tier)["hopper/not-shown"] is Weight.REVIEW


def test_a_suite_that_is_not_alive_says_nothing() -> None:
    dead = {case: FORETOLD for case in cases() if case.startswith("SMOKE/")}
    tier = judged(evidence(OLD, dead), evidence(NEW, dead))
    assert tier.status is Status.NOT_RUN and "SMOKE: no case passed" in tier.reason


def test_records_of_the_twin_are_no_evidence() -> None:
    twin = replace(evidence(NEW), records=tuple(record(c, tier="twin") for c in cases()))
    tier = judged(evidence(OLD), twin)
    assert tier.status is Status.NOT_RUN and f"{len(cases())} of {len(cases())}" in tier.reason


def test_results_of_several_hosts_add_up() -> None:
    whole = evidence(NEW)
    halves = [
        cut(whole, lambda r, odd=odd: cases().index(r.case) % 2 == odd)  # type: ignore[misc]
        for odd in (0, 1)
    ]
    tier = hopper.weighed(ASKED, OLD, NEW, [evidence(OLD), *halves], [measured()])
    assert tier.status is Status.PASS


def test_the_baseline_alone_is_no_evidence_of_the_candidate() -> None:
    tier = judged(evidence(OLD), None)
    assert tier.status is Status.NOT_RUN and "baseline alone" in tier.reason


def test_a_wait_that_only_the_gpu_shows_fails_the_tier_and_the_gate() -> None:
    found = Finding(
        "hopper/waits/replan", Change.ADDED, Weight.OBJECTION, "each plan waits",
        cause="flashinfer/mla/a.py: W.plan",
    )  # fmt: skip
    tier = judged(evidence(OLD), evidence(NEW), measured(found))
    assert tier.status is Status.FAIL
    cpu = [ran(name, ()) for name in TIERS if name != "hopper"]
    decision = decide([*cpu, tier], "mine", OLD, NEW)
    assert decision.exit == 1 and "each plan waits (in flashinfer/mla/a.py" in decision.paragraph
    passing = decide([*cpu, judged(evidence(OLD), evidence(NEW))], "mine", OLD, NEW)
    assert passing.exit == 0 and passing.word == "GO"


def test_a_slow_candidate_fails_by_the_policy_and_not_by_itself() -> None:
    tier = judged(evidence(OLD), evidence(NEW), measured(ratio=1.6))
    assert tier.status is Status.PASS
    (limited,) = policy.apply([tier], policy.Policy(), "mine", date(2026, 1, 1)).tiers
    assert limited.status is Status.FAIL and "hopper/figure/plan" in next(iter(heavy(limited)))


@pytest.mark.parametrize(
    "other", [measured(candidate=OLD), replace(measured(), subject="yours"),
              replace(measured(), subject_version="4")],
)  # fmt: skip
def test_a_benchmark_of_something_else_does_not_count(other: Measured) -> None:
    tier = judged(evidence(OLD), evidence(NEW), other)
    assert not tier.figures and heavy(tier) == {"hopper/not-measured": Weight.REVIEW}
    assert tier.facts["benchmarks left out"] == 1
    assert tier.status is Status.NOT_RUN and "no benchmark" in tier.reason


def test_a_benchmark_in_which_nothing_was_timed_is_none() -> None:
    tier = judged(evidence(OLD), evidence(NEW), replace(measured(), figures=()))
    assert tier.status is Status.NOT_RUN and "no benchmark" in tier.reason


def test_a_package_beside_itself_needs_no_benchmark() -> None:
    tier = hopper.weighed(ASKED, NEW, NEW, [evidence(NEW)], [])
    assert tier.status is Status.PASS


def some(side: Side) -> Evidence:
    """A few records, where it does not matter how many."""
    return cut(evidence(side), lambda r: r.requirement == "SMOKE")


class Archives:
    """Archives as a GPU host writes them."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        self.suite = environment.describe()
        self.count = 0

    def write(self, side: Side, one: Evidence | None = None, **more: Any) -> Path:
        self.count += 1
        root = self.folder / f"run-{self.count}"
        suite = {**self.suite, "gpu": {"name": "NVIDIA H200"}, **more.pop("suite", {})}
        writer = RecordWriter(root / "r" / "records-hopper-1-main.jsonl", suite)
        for each in (one or evidence(side)).records:
            writer.start(each)
            writer.add(each)
        writer.close()
        figures = more.pop("figures", {})
        for name, value in figures.items():
            (root / name).write_text(value)
        made = results.Results(
            flashinfer=side.version,
            wheel=side.digest,
            tier="hopper",
            commit=suite["commit"],
            sources=suite["sources"],
            environment=suite,
            command=("conformance", "run"),
            runs=(results.Run("mine@/there", "3", "r", 0),),
            figures=tuple(figures),
            root=root,
        )
        return results.write(replace(made, **more), self.folder / f"{self.count}.tar.xz")


@pytest.fixture
def archives(tmp_path: Path) -> Archives:
    return Archives(tmp_path)


def gated(*files: Path, asked: hopper.Asked = ASKED) -> TierResult:
    old, new = (Package(s.asked, s.version, Path("/nowhere"), s.digest) for s in (OLD, NEW))
    return hopper.judge(asked, old, new, Path("/nowhere"), files)


def test_archives_of_both_packages_pass(archives: Archives) -> None:
    files = [
        archives.write(OLD),
        archives.write(NEW, figures={"m.json": measured().text(), "bench.json": "{}"}),
    ]
    tier = gated(*files)
    assert tier.status is Status.PASS and len(tier.figures) == 1, tier.reason
    assert tier.facts["gpu"] == "NVIDIA H200" and tier.facts["results"] == "1.tar.xz, 2.tar.xz"


def test_an_archive_with_a_fault(archives: Archives) -> None:
    case = of("NUM-1")
    bad = archives.write(NEW, evidence(NEW, {case: WRONG}))
    tier = gated(archives.write(OLD), bad)
    assert tier.status is Status.FAIL and heavy(tier)["hopper/NUM-1"] is Weight.OBJECTION


def test_evidence_of_another_wheel_is_refused(archives: Archives) -> None:
    other = archives.write(replace(NEW, digest="c" * 64), some(NEW))
    with pytest.raises(ResultsError, match="found a wheel of SHA-256 cccc") as raised:
        gated(archives.write(NEW, some(NEW)), other)
    assert isinstance(raised.value, GateError), "which is exit code 3"


@pytest.mark.parametrize("what", ["commit", "sources"])
def test_evidence_of_another_suite_is_refused(archives: Archives, what: str) -> None:
    with pytest.raises(ResultsError, match=r"found .*0123"):
        gated(archives.write(NEW, some(NEW), suite={what: "0123"}))


def test_a_rehearsal_is_refused(archives: Archives) -> None:
    one = some(NEW)
    twin = replace(one, records=tuple(replace(r, tier="twin") for r in one.records))
    with pytest.raises(ResultsError, match="found a rehearsal"):
        gated(archives.write(NEW, twin, tier="twin"))


def test_results_of_another_subject_or_version_do_not_count(archives: Archives) -> None:
    file = archives.write(NEW, some(NEW))
    for given, identity in (
        ("yours", Identity("yours", "3")),
        ("mine@/here", Identity("mine", "4")),
    ):
        tier = gated(file, asked=hopper.Asked(given, "m:f", identity))
        assert tier.status is Status.NOT_RUN and f"no results of {given}" in tier.reason
    tier = gated(file, asked=replace(ASKED, given="mine==3"))
    assert "cases of the whole suite have no record" in tier.reason, "they are seen, and too few"


def test_without_gpu_and_archive_both_ways_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopper.gpus, "visible_capabilities", lambda: [(8, 0)])
    tier = gated()
    assert tier.status is Status.NOT_RUN and tier.reason == "no Hopper GPU is visible"
    for words in ("python -m conformance gate 1.0 2.0 --subject mine@/here", "bundle 1.0 2.0"):
        assert words in tier.command


def test_the_suite_runs_on_the_package_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "other/flashinfer").mkdir(parents=True)
    (tmp_path / "other/flashinfer/__init__.py").write_text("raise SystemExit('it ran')\n")
    child = {**os.environ, "PYTHONPATH": str(tmp_path / "other")}
    run = SuiteRun("smla", "m:f", Identity("smla", "1"), NEW, tmp_path / "wanted")
    with pytest.raises(GateError, match=r"found .*other/flashinfer/__init__.py in its place"):
        run_suite(run, child, tmp_path / "report")


def test_a_suite_that_fails_is_told_with_its_last_words(tmp_path: Path) -> None:
    run = SuiteRun("x", "no_such_module:f", Identity("x", "1"), NEW, tmp_path)
    child = {**os.environ, "PYTHONPATH": str(environment.ROOT)}
    with pytest.raises(GateError, match=r"found exit status 3.*no_such_module"):
        run_suite(run, child, tmp_path / "report", rehearse=True)


def test_a_rehearsal_goes_through_all_of_it_and_judges_nothing(tmp_path: Path) -> None:
    old, new = (Package(s.asked, s.version, tmp_path, s.digest) for s in (OLD, NEW))
    smla = "conformance.subjects.smla:SmlaSubject"
    asked = hopper.Asked("smla", smla, Identity("smla", "0.1.0"))
    tier = hopper.judge(asked, old, new, tmp_path / "report", rehearse=True)
    assert tier.status is Status.NOT_RUN and "rehearsal" in tier.reason and tier.command
    keys = {finding.key: finding.weight for finding in tier.findings}
    assert keys == dict.fromkeys(
        ("hopper/waits/replan", "hopper/waits/reuse", "hopper/waits/launch"), Weight.NOTE
    )
    assert tier.facts["shapes measured"] == 2 and not tier.figures
    for side in ("baseline", "candidate"):
        assert [*(tmp_path / "report/hopper" / side).glob("records-*.jsonl")], side
