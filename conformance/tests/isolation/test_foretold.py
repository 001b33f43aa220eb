"""What the ledger knows to hang runs alone and last; what it knows decides a case's outcome."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance.core.catalogue import REQUIREMENTS
from conformance.core.ledger import Deviation
from conformance.core.record import Outcome, Record, load
from conformance.core.request import Request
from conformance.core.run import Exit, Verdict, run
from conformance.tests.isolation.faulty import VARIABLE, Faulty

CASES = REQUIREMENTS["SMOKE"].minimum("twin")
LIMIT_S = 3.0
ENTRY = Deviation(
    "planted.toml", 1, ("SMOKE/*/1",), Faulty.name, "", "", "twin", "fail", "upstream",
    "seen in the test beside this one, every time", "it was planted here",
)  # fmt: skip


def known(number: int, outcome: str, **other: Any) -> Deviation:
    return replace(ENTRY, number=number, cases=(f"SMOKE/*/{number}",), outcome=outcome, **other)


def planted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, faults: dict[int, str], *ledger: Deviation,
    **how: object,
) -> Verdict:  # fmt: skip
    monkeypatch.setenv(VARIABLE, json.dumps(faults))
    asked: dict[str, object] = {
        "subject": Faulty.name,
        "given": "planted==1",
        "tier": "twin",
        "report": folder / "report",
        "workers": "0",
        "limit_s": LIMIT_S,
        "judges": [Path(__file__).with_name("judge.py")],
        "ledger": ledger,
        **how,
    }
    return run(Request(**asked))  # type: ignore[arg-type]


def by_number(verdict: Verdict) -> dict[int, Record]:
    return {int(record.case.rpartition("/")[2]): record for record in verdict.records}


@pytest.mark.parametrize("workers", ["0", "2"])
def test_foretold_hangs_run_alone_and_last(
    workers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = {1: "hang", 3: "fail", 4: "segfault", 6: "hang"}
    ledger = [known(1, "hang"), known(3, "fail"), known(6, "hang")]
    verdict = planted(
        tmp_path, monkeypatch, faults, *ledger, workers=workers, requirements=("SMOKE",)
    )
    seen = by_number(verdict)
    wrong = {n: record.outcome for n, record in seen.items() if record.outcome is not Outcome.PASS}
    xfail = Outcome.XFAIL
    assert wrong == {1: xfail, 3: xfail, 4: Outcome.CRASH, 6: xfail}
    assert len(seen) == CASES
    own: dict[int, list[int]] = {}
    for path in (tmp_path / "report").glob("records-*.jsonl"):
        process = int(path.stem.split("-")[2])
        own.setdefault(process, []).extend(int(c.rpartition("/")[2]) for c in load(path).records)
    last = sorted(own)[-2:]
    assert [own[process] for process in last] == [[1], [6]], own
    assert verdict.exit is Exit.DOES_NOT, "of the crash that nobody foretold"
    assert all(record.repro.startswith("python -m conformance run --subject planted==1 ")
               for record in seen.values())  # fmt: skip
    assert {record.subject for record in seen.values()} == {"planted==1"}


def test_a_single_foretold_case_is_not_put_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = next(c for c in cases() if c.endswith("/1"))
    verdict = planted(tmp_path, monkeypatch, {1: "hang"}, known(1, "hang"), cases=(case,))
    assert [record.outcome for record in verdict.records] == [Outcome.XFAIL]
    assert verdict.exit is Exit.CONFORMS


def test_strict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = {1: "fail", 2: "fail", 4: "leave"}
    ledger = [
        known(1, "fail"),
        known(2, "crash"),
        known(3, "hang"),
        known(4, "crash"),
        known(5, "fail", subject="another"),
        known(6, "fail", versions="==2"),
        known(7, "fail", flashinfer="==9"),
    ]
    verdict = planted(tmp_path, monkeypatch, faults, *ledger, requirements=("SMOKE",))
    seen = {number: record.outcome for number, record in by_number(verdict).items()}
    expected = {number: Outcome.PASS for number in range(CASES)}
    expected |= {1: Outcome.XFAIL, 2: Outcome.FAIL, 3: Outcome.XPASS, 4: Outcome.XFAIL}
    assert seen == expected
    failed = sorted(int(record.case.rpartition("/")[2]) for record in verdict.failures)
    assert failed == [2, 3] and verdict.exit is Exit.DOES_NOT
    messages = {n: record.message for n, record in by_number(verdict).items()}
    assert "take its entry out of the ledger" in messages[3]


def test_the_first_failure_is_none_that_was_foretold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = planted(
        tmp_path, monkeypatch, {1: "fail", 3: "fail"}, known(1, "fail"),
        requirements=("SMOKE",), first_failure=True,
    )  # fmt: skip
    assert [int(r.case.rpartition("/")[2]) for r in verdict.failures] == [3]
    assert by_number(verdict)[1].outcome is Outcome.XFAIL


def cases() -> list[str]:
    from conformance.tests.isolation import judge

    made: list[str] = judge.test_a_case_meets_its_fault.judge.cases("twin")
    return made
