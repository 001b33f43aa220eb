"""A kernel that reads what is not there costs the case that it did it in, and no other."""

import os
from pathlib import Path

import pytest

from conformance.core.request import Request
from conformance.core.run import Exit, run
from conformance.tests.isolation.planted import VARIABLE, Planted

VICTIM = 7


def test_a_wild_slot_in_the_middle_fails_one_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, f"{VICTIM}:{tmp_path / 'planted'}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    verdict = run(
        Request(
            subject=Planted.name,
            tier="twin",
            requirements=["PLAN-2"],
            report=tmp_path / "report",
            workers="0",
        )
    )
    failed = [record.case for record in verdict.failures]
    assert len(failed) == 1, failed
    assert verdict.records[VICTIM - 1].case == failed[0]
    assert verdict.exit is Exit.DOES_NOT
    assert len(verdict.records) > VICTIM
    assert os.path.exists(tmp_path / "planted")
