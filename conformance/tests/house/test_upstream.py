"""The suite finds what upstream-style code got wrong, and passes the same code without the fault.

Each finding runs a judge in this process, on the twin, for a subject with one fault and for the one
without. The same judges run on a GPU as `python -m conformance run --tier hopper --requirement ID
--subject conformance.subjects.upstream:NAME`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import signature
from typing import Any

import pytest
import torch

from conformance.core.case import parse
from conformance.core.lab import CheckFailed, Lab
from conformance.core.subject import Subject
from conformance.core.worker import load_subject
from conformance.tests.requirements import (
    test_alive,
    test_capacity,
    test_graph,
    test_plan,
    test_queue,
    test_read,
    test_scale,
)
from conformance.tiers import VERSIONS, tier
from conformance.twin.errors import TwinDomainError

SUBJECTS = "conformance.subjects.upstream"
SMOKE = test_alive.test_the_plain_case_runs
GRID = test_graph.test_no_plan_changes_what_a_captured_graph_launches
PADDED = test_graph.test_a_padded_capture_serves_every_number_of_live_rows
ADDRESSES = test_graph.test_no_address_that_a_graph_reads_changes_unnoticed
ROWS = test_capacity.test_any_number_of_rows_is_served
WAITS = test_queue.test_a_step_waits_for_nothing
FLIGHT = test_queue.test_plans_in_flight_keep_their_own_schedules
TILING = test_plan.test_after_the_clamp_work_items_tile_the_valid_range
GROWTH = test_plan.test_lengths_may_grow_again_under_one_plan
LIVE = test_plan.test_nothing_belongs_to_a_row_that_is_not_live
TOUCHES = test_read.test_nothing_behind_the_valid_prefix_is_touched
SCALE = test_scale.test_a_scale_is_applied_exactly


@dataclass(frozen=True)
class Finding:
    """What one judge says of one faulty subject.

    says: a pattern of what it says. only: what the cases' ids match. error: the class of a crash,
    where there is one instead of a failed check (on the twin an illegal access has its own).
    misses: what the ids of further
    cases match, which the fault must pass. versions: FlashInfer versions to simulate.
    """

    fault: str
    judge: Any
    says: str
    only: str = ""
    error: type[Exception] = CheckFailed
    misses: str = ""
    count: int = 2
    versions: tuple[str, ...] = ("0.6.18", "0.7.4")

    @property
    def requirement(self) -> str:
        """The requirement judged."""
        return str(self.judge.judge.requirement)

    def cases(self, pattern: str) -> list[str]:
        """Return the first ids that match a pattern."""
        found = [id for id in self.judge.judge.cases("twin") if re.search(pattern, id)]
        assert found, f"no case of {self.requirement} matches {pattern!r}"
        return found[: self.count]


WAITED = r"the device after build and forward\n  got +'waited for'"
WRONG = r"differs from golden"
TABLE = (
    Finding("PaddedPlan", GRID, r"plan-info at \d+ of \d+ rows", "heads=(65|100|128)", count=4,
            misses="heads=16"),
    Finding("PaddedPlan", PADDED, rf"replay \d, captured at \d+ of \d+ rows, \d+ live {WRONG}",
            "heads=(65|100|128)", misses="heads=16"),
    Finding("OneStagingBlock", FLIGHT, r"work items reach query row \d+ of \d", "how=4",
            versions=VERSIONS),
    Finding("NoCapacityCheck", ROWS, r"1\d{4} work items; the int workspace holds 16384",
            "heads=1,.*geo=tiny", TwinDomainError, count=1),
    Finding("NoCapacityCheck", ADDRESSES, r"a capture of 16\d{3} rows\n  got +''",
            "how=capture-large"),
    Finding("ReadsBack", WAITS, WAITED, "how=(plan|idle)", count=3, misses="how=reuse"),
    Finding("PageableOffsets", WAITS, WAITED, "how=plan-large",
            misses="how=(plan|idle|reuse-large),"),
    Finding("ClampsKvEnd", TOUCHES, "end of what the kernel touched, per row", count=6),
    Finding("RefusesPaddedRows", PADDED, r"q has \d+ rows, the plan has \d+", "rows=many",
            ValueError),
    Finding("RefusesPaddedRows", LIVE, r"q has \d+ rows, the plan has \d+", error=ValueError,
            count=4),
    Finding("ScaleInBf16", SCALE, r"error at k_scale", "how=(near-two|low|high|any)", count=4,
            misses="how=outside", versions=("0.7.0", "0.7.4")),
    Finding("ScaleInBf16", SCALE, r"error at k_scale", "how=high", versions=("0.6.18",)),
    Finding("StalePlan", TILING, r"end of the work items of row \d+", count=4),
    Finding("StalePlan", GROWTH, rf"output {WRONG}"),
    Finding("BakedTable", ADDRESSES, rf"the replay after the block table moved {WRONG}",
            "how=table", misses="how=(addresses|capture-large)"),
)  # fmt: skip
FAULTS = sorted({finding.fault for finding in TABLE})


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as the suite runs its judges
    yield
    torch.set_num_threads(before)


def subject(name: str) -> Subject:
    """Return an upstream-style subject, as a command line names it."""
    return load_subject(f"{SUBJECTS}:{name}")


def judged(function: Any, case: str, name: str, version: str) -> Exception | None:
    """Run a judge on the twin; return what it raised."""
    lab = Lab(parse(case), subject(name), tier("twin", version), "torch")
    arguments: list[Any] = [lab]
    if "canary" in signature(function).parameters:
        arguments.append(None)  # on the twin the access log is asked instead
    try:
        function(*arguments)
    except Exception as problem:
        return problem
    return None


ROWS_OF_TABLE = [
    pytest.param(finding, version, id=f"{finding.fault}-{finding.requirement}-{version}")
    for finding in TABLE
    for version in finding.versions
]


@pytest.mark.parametrize(("finding", "version"), ROWS_OF_TABLE)
def test_the_fault_is_found_and_for_its_reason(finding: Finding, version: str) -> None:
    cases = finding.cases(finding.only)
    found = {case: judged(finding.judge, case, finding.fault, version) for case in cases}
    for case, problem in found.items():
        assert problem is None or (
            isinstance(problem, finding.error) and re.search(finding.says, str(problem))
        ), f"{case}: {finding.fault} failed otherwise: {type(problem).__name__}: {problem}"
    assert any(found.values()), f"{finding.fault} passed {cases}"


@pytest.mark.parametrize(("finding", "version"), ROWS_OF_TABLE)
def test_the_same_code_without_the_fault_passes(finding: Finding, version: str) -> None:
    for case in finding.cases(finding.only):
        problem = judged(finding.judge, case, "Sound", version)
        assert problem is None, f"{case}: {type(problem).__name__}: {problem}"


@pytest.mark.parametrize("finding", [f for f in TABLE if f.misses], ids=lambda f: f.fault)
def test_the_fault_passes_where_it_does_nothing(finding: Finding) -> None:
    for case in finding.cases(finding.misses):
        problem = judged(finding.judge, case, finding.fault, "0.7.2.post1")
        assert problem is None, f"{case}: {type(problem).__name__}: {problem}"


@pytest.mark.parametrize("name", ["Sound", *FAULTS])
@pytest.mark.parametrize("case", SMOKE.judge.cases("twin")[:2])
def test_every_subject_is_alive(name: str, case: str) -> None:
    problem = judged(SMOKE, case, name, "0.7.2.post1")
    assert problem is None, f"{case}: {type(problem).__name__}: {problem}"


@pytest.mark.parametrize("name", ["Sound", *FAULTS])
def test_a_subject_is_named_as_a_command_line_names_it(name: str) -> None:
    assert subject(name).name == f"{SUBJECTS}:{name}", "the repro line of a failure names another"
