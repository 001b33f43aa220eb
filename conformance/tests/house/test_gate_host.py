"""On a GPU host a bundle's gate packs what a gate elsewhere needs to know, and says what it cannot.

Rehearsed here: the twin tier in place of the GPU.
"""

import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from conformance.bundle import archive, build, layout, manifest, start
from conformance.cli import main
from conformance.core import environment
from conformance.gate import host
from conformance.gate.errors import GateError, ResultsError
from conformance.gate.measure import Place
from conformance.gate.measured import Measured
from conformance.gate.model import Side
from conformance.gate.results import read, side_of
from conformance.tests.house.small_bundle import TAG, VERSION, stand_in
from conformance.tests.house.test_bundle_start import Host, rewritten


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A bundle of the whole suite and a FlashInfer in miniature, for this Python."""
    folder = tmp_path_factory.mktemp("bundle")
    with pytest.MonkeyPatch.context() as patch:
        cache = stand_in(folder, patch)
        yield build.build(VERSION, folder / "out", TAG, cache=cache)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMLA_CACHE_ROOT", str(tmp_path / "cache"))


def invoked(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["gate-host", *arguments])


def said(result: Result, *words: str) -> str:
    """The message of the GateError that ended the command."""
    assert isinstance(result.exception, GateError), (result.output, result.exception)
    text = str(result.exception)
    for word in (*words, "found ", "allowed: ", "to fix: "):
        assert word in text, f"{word!r} is not in {text!r}"
    return text


def test_a_rehearsal_from_a_bundle_is_read_here(made: Path, tmp_path: Path) -> None:
    there = Host(made, tmp_path)
    subjects = ("--subject", "smla", "--subject", "examples.my_backend:MyBackend")
    done = there.run("gate", "--rehearse", "--only", "SMOKE", *subjects, "--out", "carried.tar.xz")
    assert done.returncode == 2, done.stdout + done.stderr  # the second one has no FP8
    results = read(there.cwd / "carried.tar.xz", tmp_path / "read")
    told = start.read_manifest(made)
    assert (results.flashinfer, results.wheel) == (VERSION, told.wheel)
    assert (results.commit, results.sources) == (environment.commit(), told.suite["sources"])
    assert results.rehearsal and results.only == ("SMOKE",)
    assert [(run.subject, run.exit) for run in results.runs] == [
        ("smla", 0),
        ("examples.my_backend:MyBackend", 2),
    ]
    for run in results.runs:
        cases = [record for source in results.records(run) for record in source.records]
        assert cases and {record.requirement for record in cases} == {"SMOKE"}
        assert {record.subject_version for record in cases} == {run.version}
    text = " ".join(results.command)
    assert text.startswith("gate --subject smla") and "--rehearse" in text, text
    mine = Side("mine", VERSION, told.wheel)
    assert side_of(results, [replace(mine, digest="0" * 64), mine]) is mine


def test_a_subject_that_the_suite_fails_on_is_left_out_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "stranger.py").write_text("def factory():\n    raise RuntimeError('not today')\n")
    monkeypatch.setenv("PYTHONPATH", str(mine), prepend=":")
    monkeypatch.syspath_prepend(str(mine))
    result = invoked("--rehearse", "--only", "SMOKE", "--subject", "stranger:factory",
                     "--subject", "smla", "--report", str(tmp_path / "r"),
                     "--out", str(tmp_path / "a.tar.xz"))  # fmt: skip
    assert result.exit_code == 3, result.output
    assert "stranger:factory: the suite failed" in result.output
    results = read(tmp_path / "a.tar.xz", tmp_path / "read")
    assert [run.subject for run in results.runs] == ["smla"]
    assert results.wheel == "", "a checkout knows no wheel, so its rehearsal is of none"
    with pytest.raises(ResultsError, match=r"\(none\)"):
        side_of(results, [Side("x", VERSION, "0" * 64)])


def test_no_archive_is_made_of_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_run", lambda *_: host.Exit.SUITE_FAILED)
    out = tmp_path / "a.tar.xz"
    result = invoked("--rehearse", "--report", str(tmp_path / "r"), "--out", str(out))
    said(result, "no run that ended")
    assert not out.exists()


def test_a_checkout_is_no_evidence() -> None:
    said(invoked(), "a checkout", "BUNDLE.pyz gate")


def test_without_a_gpu_it_does_not_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, made: Path
) -> None:
    folder = tmp_path / "laid"
    bundled(made, folder, monkeypatch)
    monkeypatch.setattr(host, "hopper_gpus", lambda: [])
    said(invoked(), "no Hopper GPU", "--rehearse")


@pytest.mark.parametrize("pattern", ["NOT-1", "plan-*"])
def test_a_pattern_of_no_requirement_is_told(pattern: str) -> None:
    said(invoked("--rehearse", "--only", pattern), repr(pattern), "SMOKE")


def test_patterns_name_requirements_in_the_catalogue_s_order() -> None:
    assert host._matching(["PLAN-4", "LEN-*", "LEN-1"])[-1] == "PLAN-4"
    assert host._matching([]) == []


def bundled(made: Path, folder: Path, patch: pytest.MonkeyPatch) -> manifest.Manifest:
    """Let this suite be one that runs from a bundle laid out in `folder`."""
    told = start.read_manifest(made)
    (folder / manifest.SUITE).mkdir(parents=True)
    (folder / manifest.NAME).write_text(manifest.text_of(told))
    patch.setattr(host.environment, "ROOT", folder / manifest.SUITE)
    return told


def test_the_other_bundle_must_be_of_the_same_suite(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = bundled(made, tmp_path / "laid", monkeypatch)
    other = tmp_path / "other.pyz"
    shutil.copyfile(made, other)
    changed = replace(told, suite={**told.suite, "sources": "f" * 16})
    rewritten(other, {manifest.NAME: manifest.text_of(changed)})
    said(invoked("--rehearse", "--against", str(other)), "f" * 16, told.suite["sources"] or "")
    other.write_text("no bundle")
    said(invoked("--rehearse", "--against", str(other)), "no whole bundle")


def test_a_checkout_is_not_measured_against_a_bundle(made: Path) -> None:
    said(invoked("--rehearse", "--against", str(made)), "a checkout")


def test_both_bundles_are_measured_each_with_its_own_modules(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = bundled(made, tmp_path / "laid", monkeypatch)
    monkeypatch.setenv("FLASHINFER_DISABLE_JIT", "1")
    monkeypatch.setenv("FLASHINFER_WORKSPACE_BASE", "/the/candidate's")
    asked: list[tuple[str, dict[str, Place]]] = []

    def measured(subject: str, places: dict[str, Place], scratch: Path, **_: object) -> Measured:
        asked.append((subject, places))
        sides = places["baseline"].side, places["candidate"].side
        return Measured("smla", "0.1.0", *sides, "", (), (), ())

    ran = tmp_path / "r/run-1"

    def pretended(subject: str, tier: str, folder: Path, requirements: object) -> host.Exit:
        shutil.copytree(whole, folder)
        return host.Exit.CONFORMS

    whole = tmp_path / "whole"
    assert host._run("smla", "twin", whole, ["SMOKE"]) is host.Exit.CONFORMS
    monkeypatch.setattr(host.environment, "digest", lambda *_: told.suite["sources"])
    monkeypatch.setattr(host, "measure", measured)
    monkeypatch.setattr(host, "_run", pretended)
    result = invoked("--rehearse", "--against", str(made), "--report", str(tmp_path / "r"),
                     "--out", str(tmp_path / "a.tar.xz"))  # fmt: skip
    assert result.exit_code == 0, (result.output, result.exception)
    assert ran.is_dir()
    ((subject, places),) = asked
    assert subject == "conformance.subjects.smla:SmlaSubject"
    other = layout.lay_out(made, archive.sha256(made), told)
    for side, folder in (("candidate", tmp_path / "laid"), ("baseline", other)):
        place = places[side]
        path = place.environment["PYTHONPATH"].split(":")
        assert path[:3] == [str(folder / name) for name in ("suite", "flashinfer", "shadow")]
        assert place.folder == folder / "flashinfer" and place.side.digest == told.wheel
        assert place.environment["FLASHINFER_DISABLE_JIT"] == "1"
    spaces = {place.environment["FLASHINFER_WORKSPACE_BASE"] for place in places.values()}
    assert len(spaces) == 2 and "/the/candidate's" not in spaces, spaces
    results = read(tmp_path / "a.tar.xz", tmp_path / "read", told.suite)
    assert results.figures == ("measured-1.json",)
    found = Measured.of_json(results.figure("measured-1.json"), "here")
    assert found.candidate.digest == told.wheel
    assert sys.executable not in " ".join(results.command)
