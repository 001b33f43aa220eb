"""The twin tier: what it runs, when it does not, and a candidate whose Python code went wrong."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

from conformance.core.catalogue import REQUIREMENTS
from conformance.core.record import Outcome, Record
from conformance.gate import twin
from conformance.gate.model import Status
from conformance.gate.package import Package
from conformance.listing import case_ids
from conformance.twin.compiled import flashinfer_include
from conformance.twin.errors import CompilerMissing
from conformance.twin.semantics import BY_FINGERPRINT, fingerprint

SUBJECT = "conformance.subjects.through_wrapper:ThroughWrapper"
NEEDED = ("tvm_ffi", "triton", "flashinfer")
KERNEL = "include/flashinfer/attention/mla_hopper.cuh"


@pytest.fixture(scope="module")
def installed() -> Package:
    try:
        root = flashinfer_include().parents[2]
    except CompilerMissing as reason:
        pytest.skip(str(reason))
    if fingerprint(root / "flashinfer" / "data") not in BY_FINGERPRINT:
        pytest.skip("the installed flashinfer's module sources are not on record")
    return Package("installed", "1", root, "1")


def copy(installed: Package, target: Path, *, of_data: tuple[str, ...] = ()) -> Package:
    """A copy whose Python files may be edited, and those of its data folder that are named."""
    ignored = shutil.ignore_patterns("data", "__pycache__")
    shutil.copytree(installed.folder / "flashinfer", target / "flashinfer", ignore=ignored)
    data = target / "flashinfer" / "data"
    if not of_data:
        data.symlink_to(installed.data)
    for folder in of_data:
        shutil.copytree(installed.data / folder, data / folder)
    return Package("copy", "2", target, "2")


def test_the_smoke_subset_is_fixed_and_has_every_family() -> None:
    chosen = twin.smoke()
    assert chosen == twin.smoke()
    assert set(chosen) <= set(case_ids(("twin",)))
    families = {case.partition("/")[0].partition("-")[0] for case in chosen}
    assert families == set(twin.FAMILIES)
    requirements = {case.partition("/")[0] for case in chosen}
    wanted = {id for id in REQUIREMENTS if id.partition("-")[0] in twin.FAMILIES}
    assert wanted - requirements == twin.LONG
    assert len(chosen) == len(requirements) == len(set(chosen))


@pytest.mark.parametrize("side", ["baseline", "candidate"])
def test_unknown_sources_are_not_simulated(installed: Package, tmp_path: Path, side: str) -> None:
    other = copy(installed, tmp_path / "other", of_data=("include", "csrc"))
    kernel = other.data / KERNEL
    kernel.write_text(kernel.read_text() + "\nint one_more;\n")
    pair = (other, installed) if side == "baseline" else (installed, other)
    result = twin.judge(*pair, SUBJECT, tmp_path / "report")
    assert result.status is Status.NOT_RUN
    assert "semantics unknown" in result.reason
    assert side in result.reason
    assert fingerprint(other.data) in result.reason
    assert not (tmp_path / "report").exists()  # no code of either ran


def test_a_suite_that_cannot_run_is_no_verdict(installed: Package, tmp_path: Path) -> None:
    result = twin.judge(installed, installed, "no.such.module:Subject", tmp_path / "report")
    assert result.status is Status.NOT_RUN
    assert "ended with 3" in result.reason
    assert "no.such.module" in result.reason


def test_a_wrapper_that_went_wrong_is_an_objection_by_requirement(
    installed: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NEEDED:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"no package {name}, which FlashInfer's Python code or the subject needs")
    cases = case_ids(("twin",), ("SMOKE",))[:2]
    monkeypatch.setattr(twin, "smoke", lambda: cases)
    planted = copy(installed, tmp_path / "planted")
    initial = planted.folder / "flashinfer" / "mla" / "__init__.py"
    initial.write_text(initial.read_text() + PLANTED)
    result = twin.judge(installed, planted, SUBJECT, tmp_path / "report")
    assert result.status is Status.FAIL, result.reason
    (finding,) = result.findings
    assert finding.key == "twin/SMOKE"
    assert finding.objects
    assert finding.before == "2 right of 2"
    assert finding.after == "2 wrong of 2"
    again = twin.judge(
        installed, planted, SUBJECT, tmp_path / "again", before=[wrong(case) for case in cases]
    )
    assert again.status is Status.NOT_RUN
    assert "no case is right on the baseline" in again.reason


PLANTED = """
_run = BatchMLAPagedAttentionWrapper.run
def _doubled(self, q_nope, *args, **kwargs):
    return _run(self, q_nope * 2, *args, **kwargs)
BatchMLAPagedAttentionWrapper.run = _doubled
"""


def wrong(case: str) -> Record:
    return Record(
        case=case,
        requirement="SMOKE",
        tier="twin",
        subject=SUBJECT,
        outcome=Outcome.XFAIL,
        error=None,
        ratio=None,
        interpreted=False,
        message="",
        repro="",
    )
