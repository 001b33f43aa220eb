"""A test that crashes, hangs, leaves or breaks CUDA costs itself, wherever it stands.

Each run meets several faults: processes that import torch are dear. FULL in the environment
variable SMLA_TEST_ISOLATION runs each fault alone, in each place.
"""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest

from conformance.core.catalogue import REQUIREMENTS
from conformance.core.record import Outcome
from conformance.core.request import Request, SuiteError
from conformance.core.run import Exit, Verdict, run
from conformance.tests.isolation.faulty import VARIABLE

CASES = REQUIREMENTS["SMOKE"].minimum("twin")
FIRST, MIDDLE, LATER, LAST = 0, CASES // 2 - 1, CASES // 2 + 1, CASES - 1
LIMIT_S = 3.0
BOUND_S = 120.0
"""Far above what a run takes, far below what a hanging case would."""

OUTCOMES = {"hang": Outcome.HANG, "hold": Outcome.HANG, "fail": Outcome.FAIL}
"""Of faults; those not named are crashes."""

SAID = {
    "segfault": ["in _segfault"],
    "hang": ["in _hang"],
    "hold": ["in _hold"],
    "leave": ["left with exit status 0", "without a word"],
    "cuda": ["the CUDA context is dead: CUDA error: an illegal memory access"],
    "quiet_cuda": ["the CUDA context is dead: CUDA error: an illegal memory access"],
    "fail": ["as asked"],
}
"""What a record says of a fault, one of these."""

MIXED = [
    ("0", {FIRST: "segfault", MIDDLE: "cuda", LAST: "leave"}),
    ("1", {FIRST: "leave", MIDDLE: "quiet_cuda", LATER: "fail", LAST: "hang"}),
    ("4", {FIRST: "hang", MIDDLE: "leave", LAST: "segfault"}),
]
ALONE = [
    (workers, {place: fault})
    for workers in ("0", "1", "4")
    for place in (FIRST, MIDDLE, LAST)
    for fault in ("segfault", "hang", "leave", "cuda", "quiet_cuda", "hold")
]
RUNS = ALONE if os.environ.get("SMLA_TEST_ISOLATION") == "FULL" else MIXED


def _named(value: object) -> str:
    if isinstance(value, Mapping):
        return "-".join(f"{fault}@{place}" for place, fault in value.items())
    return f"n{value}"


@pytest.mark.parametrize(("workers", "faults"), RUNS, ids=_named)
def test_a_fault_costs_one_test(
    workers: str, faults: dict[int, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    junit = tmp_path / "junit" / "of.xml"
    verdict, seconds = _run(tmp_path, monkeypatch, faults, workers=workers, junit=junit)
    got = {_number(record.case): record.outcome for record in verdict.records}
    expected = {number: Outcome.PASS for number in range(CASES)}
    expected |= {number: OUTCOMES.get(fault, Outcome.CRASH) for number, fault in faults.items()}
    assert got == expected, [r for r in verdict.records if r.failed]
    assert len(verdict.records) == CASES
    assert verdict.exit is Exit.DOES_NOT
    assert seconds < BOUND_S
    suite = ElementTree.parse(tmp_path / "junit" / "of-twin.xml").getroot()[0]
    assert suite.get("tests") == str(CASES)
    broken = {_number(c.get("name", "")) for c in suite if len(c)}
    assert broken == set(faults)
    for record in verdict.failures:
        fault = faults[_number(record.case)]
        assert any(word in record.message for word in SAID[fault]), record.message
        assert record.repro.endswith(f"--case '{record.case}'")


def test_the_first_failure_ends_the_run_when_it_is_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = {MIDDLE: "segfault", LATER: "fail"}
    verdict, _ = _run(tmp_path, monkeypatch, faults, workers="0", first_failure=True)
    failed = [_number(record.case) for record in verdict.failures]
    assert failed == [MIDDLE] and len(verdict.records) == MIDDLE + 1
    assert verdict.exit is Exit.DOES_NOT


def test_a_subject_that_kills_its_process_at_import_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = tmp_path / "judge.py"
    judge.write_text("import os\nos._exit(1)\n")
    with pytest.raises(SuiteError, match="die before their first case"):
        _run(tmp_path, monkeypatch, {}, workers="0", judges=[judge])


def _run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, faults: Mapping[int, str], **how: object
) -> tuple[Verdict, float]:
    monkeypatch.setenv(VARIABLE, json.dumps(faults))
    asked: dict[str, object] = {
        "subject": "conformance.tests.isolation.faulty:Faulty",
        "tier": "twin",
        "requirements": ("SMOKE",),
        "report": folder / "report",
        "limit_s": LIMIT_S,
        "judges": [Path(__file__).with_name("judge.py")],
        **how,
    }
    started = time.monotonic()
    verdict = run(Request(**asked))  # type: ignore[arg-type]
    return verdict, time.monotonic() - started


def _number(case: str) -> int:
    return int(case.rpartition("/")[2])
