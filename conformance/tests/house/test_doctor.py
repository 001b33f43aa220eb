"""The doctor names what is missing, whom it stops, and the remedy."""

import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from conformance import doctor, driver
from conformance.bundle import toolkit
from conformance.bundle.errors import ToolMissing


def finding(name: str) -> doctor.Finding:
    (found,) = [item for item in doctor.examine() if item.name == name]
    return found


def test_every_missing_thing_has_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(doctor, "_version", lambda distribution: None)
    monkeypatch.setattr(doctor.driver, "query", driver.Gpus)
    findings = doctor.examine()
    missing = {item.name for item in findings if item.state == "missing"}
    assert {"g++", "FlashInfer", "driver", "GPU", "triton"} <= missing
    for item in findings:
        assert item.detail and item.needed_for, f"says nothing: {item}"
        assert item.state == "ok" or item.remedy, f"no remedy: {item}"


def test_names_of_findings_are_unique() -> None:
    names = [item.name for item in doctor.examine()]
    assert len(set(names)) == len(names), f"twice: {names}"


def test_another_flashinfer_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda distribution: "0.6.17")
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: object())
    found = doctor._flashinfer()
    assert found.state == "missing" and "0.6.17" in found.detail, found


@pytest.mark.parametrize(
    ("capabilities", "state"), [((), "missing"), (((8, 0),), "missing"), (((8, 0), (9, 0)), "ok")]
)
def test_only_capability_9_0_is_a_hopper(
    capabilities: tuple[tuple[int, int], ...], state: str
) -> None:
    found = doctor._capability(driver.Gpus(capabilities, "580.1", "nvidia-smi"))
    assert found.state == state, found


def test_a_required_part_that_cannot_run_ends_with_2(monkeypatch: pytest.MonkeyPatch) -> None:
    gap = doctor.Finding("GPU", "missing", "none visible", ("hopper",), "use another machine")
    monkeypatch.setattr(doctor, "examine", lambda: [gap])
    runner = CliRunner()
    assert runner.invoke(doctor.doctor_command, []).exit_code == 0
    result = runner.invoke(doctor.doctor_command, ["--require", "hopper"])
    assert result.exit_code == 2, f"expected 2, got {result.exit_code}: {result.output}"
    assert "use another machine" in result.output, result.output


def test_what_is_fine_shows_no_remedy() -> None:
    fine = doctor.Finding("GPU", "ok", "1 of capability 9.0", ("hopper",), "buy one")
    text = io.StringIO()
    doctor.render([fine, replace(fine, name="driver")], Console(file=text, width=120))
    assert "buy one" not in text.getvalue()
    assert "hopper (the hopper tier: the real kernels): can run" in text.getvalue()


@pytest.mark.parametrize(
    ("text", "capabilities"),
    [
        ("9.0, 580.159.03\n", ((9, 0),)),
        ("8.6, 580.1\n9.0, 580.1\n\n", ((8, 6), (9, 0))),
        ("", None),
        ("[N/A], 580.1\n", None),
        ("No devices were found\n", None),
    ],
)
def test_nvidia_smi_answers_are_read(
    text: str, capabilities: tuple[tuple[int, int], ...] | None
) -> None:
    found = driver.parse_nvidia_smi(text)
    assert (found.capabilities if found else None) == capabilities


def test_a_script_named_nvcc_is_no_toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "bin" / "nvcc"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("PATH", str(script.parent))
    found = toolkit.cuda_home()
    assert found != tmp_path.resolve(), "a folder without cuda_runtime.h is no toolkit"
    (tmp_path / "include").mkdir()
    (tmp_path / "include/cuda_runtime.h").touch()
    assert toolkit.cuda_home() == tmp_path.resolve()


def test_no_toolkit_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolkit, "cuda_home", lambda: None)
    with pytest.raises(ToolMissing, match="CUDA_HOME"):
        toolkit.find_toolkit()


def test_no_ninja_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolkit, "cuda_home", lambda: Path("/nowhere"))
    monkeypatch.setattr(toolkit, "ninja", lambda: None)
    with pytest.raises(ToolMissing, match="pip install ninja"):
        toolkit.find_toolkit()


def test_a_native_package_that_does_not_load_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tvm_ffi.py").write_text("raise ImportError('libsomething.so: not found')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tvm_ffi", raising=False)
    monkeypatch.setattr(doctor, "_FLASHINFER_IMPORTS", ("tvm_ffi",))
    found = doctor._flashinfer_imports()
    assert found.state == "missing" and "libsomething.so" in found.detail and found.remedy, found
