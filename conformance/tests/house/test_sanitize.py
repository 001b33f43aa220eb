"""The sanitizer lane, rehearsed with a stand-in: what it runs, reads, and ends with."""

import os
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from conformance.core.case import parse
from conformance.listing import case_ids
from conformance.sanitize import lane, tool
from conformance.sanitize.cli import sanitize_command

# Writes what it was asked, then what the test put down for it: control first, the cases second.
FAKE = """\
#!/bin/sh
printf '%s\\n' "$@" "cache=$PYTORCH_NO_CUDA_MEMORY_CACHING" >>"{log}"
case "$*" in
  *control.py*) cat "{folder}/control"; exit 0;;
  *) cat "{folder}/cases"; exit "$(cat {folder}/code)";;
esac
"""


def report_of(kind: str, function: str) -> str:
    return (
        f"========= {kind}\n"
        f"=========     at {function}+0x2f0 in kernel.py:12\n"
        "=========     by thread (0,0,0) in block (0,0,0)\n"
        "=========     Access to 0x7f2a00400000 is out of bounds\n"
        "=========     Saved host backtrace up to driver entry point at kernel launch time\n"
        "=========         Host Frame: cuLaunchKernel [0x1] in libcuda.so.1\n"
        "========= \n"
    )


READ = "Invalid __global__ read of size 4 bytes"
UNWRITTEN = "Uninitialized __global__ memory read of size 4 bytes"
TORCH = "void at::native::vectorized_elementwise_kernel<4, at::native::F>(int, F)"


def session(*reports: str, summary: int | None = None) -> str:
    total = len(reports) if summary is None else summary
    body = "".join(reports)
    return (
        f"========= COMPUTE-SANITIZER\nhello\n{body}========= ERROR SUMMARY: {total} error"
        f"{'' if total == 1 else 's'}\n"
    )


PLANTED = session(report_of(READ, "planted_fault"))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a Hopper GPU and a sanitizer, as far as the lane can tell."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "compute-sanitizer"
    program.write_text(FAKE.format(log=tmp_path / "asked", folder=tmp_path))
    program.chmod(0o755)
    (tmp_path / "code").write_text("0")
    (tmp_path / "control").write_text(PLANTED)
    (tmp_path / "cases").write_text(session())
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(lane.gpus, "visible_capabilities", lambda: [(8, 0), (9, 0)])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sanitize(*arguments: str) -> Result:
    return CliRunner().invoke(sanitize_command, ["--tool", "memcheck", *arguments])


def test_a_clean_run_ends_with_0(machine: Path) -> None:
    result = CliRunner().invoke(sanitize_command, [])
    assert result.exit_code == 0, result.output
    assert "clean: memcheck: 0 errors in 10 cases" in result.output
    assert "clean: initcheck: 0 errors in 10 cases" in result.output
    logs = sorted(path.name for path in (machine / "conformance-report/sanitize").glob("*.txt"))
    assert logs == [
        *("initcheck-control.txt", "initcheck.txt", "memcheck-control.txt", "memcheck.txt")
    ]


def test_the_allocator_is_off_and_the_cases_run_on_hopper(machine: Path) -> None:
    sanitize("--subject", "mine:Subject")
    asked = (machine / "asked").read_text().splitlines()
    assert asked.count("cache=1") == 2, "control and cases alike"
    assert "--tool memcheck --target-processes all" in " ".join(asked)
    assert "-m conformance run --tier hopper --subject mine:Subject" in " ".join(asked)
    assert "--watchdog 3600" in " ".join(asked), "a slow case is not a hang"
    assert sum(word.startswith("--case=") for word in asked) == 10


def test_errors_end_with_1_and_are_shown(machine: Path) -> None:
    errors = [report_of(READ, "_pack_kernel"), report_of(READ, "_pack_kernel")]
    (machine / "cases").write_text(session(*errors))
    (machine / "code").write_text("1")
    result = sanitize()
    assert result.exit_code == 1, result.output
    assert "errors: memcheck: 2 errors (2 in _pack_kernel)" in result.output
    assert READ in result.output and "memcheck.txt" in result.output


def test_errors_of_several_processes_add_up(machine: Path) -> None:
    one = session(report_of(READ, "a"))
    (machine / "cases").write_text(session() + one + one)
    assert "2 errors (2 in a)" in sanitize().output


def test_what_torch_does_by_itself_is_not_counted(machine: Path) -> None:
    torch_alone = report_of(UNWRITTEN, TORCH)
    (machine / "control").write_text(session(torch_alone, report_of(UNWRITTEN, "planted_fault")))
    (machine / "cases").write_text(session(torch_alone, torch_alone))
    result = sanitize()
    assert result.exit_code == 0 and "2 of torch alone" in result.output, result.output
    (machine / "cases").write_text(session(torch_alone, report_of(UNWRITTEN, "_clamp_kernel")))
    result = sanitize()
    assert result.exit_code == 1 and "1 errors" in result.output, result.output


def test_errors_that_are_not_described_count(machine: Path) -> None:
    (machine / "cases").write_text(session(summary=7))
    assert sanitize().exit_code == 1


def test_a_tool_that_misses_the_planted_fault_fails(machine: Path) -> None:
    (machine / "control").write_text(session())
    result = sanitize()
    assert result.exit_code == 3 and "planted on purpose" in result.output, result.output


def test_a_tool_that_cannot_run_here_is_not_run(machine: Path) -> None:
    (machine / "control").write_text(
        "========= COMPUTE-SANITIZER\n========= Error: Device not supported.\n"
    )
    result = sanitize()
    assert result.exit_code == 2, result.output
    assert "not run: memcheck" in result.output and "Device not supported" in result.output


@pytest.mark.parametrize(("output", "code"), [("nothing\n", "139"), (session(), "1")])
def test_cases_that_fail_by_themselves_end_with_3(machine: Path, output: str, code: str) -> None:
    (machine / "cases").write_text(output)
    (machine / "code").write_text(code)
    result = sanitize()
    assert result.exit_code == 3 and code in result.output, result.output


def test_an_absent_tool_is_told(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine / "bin/compute-sanitizer").unlink()
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(machine / "bin"))
    result = sanitize()
    assert result.exit_code == 2, result.output
    for part in ("not run: memcheck", "compute-sanitizer", "CUDA_HOME", "to run it: python -m"):
        assert part in result.output, result.output
    assert not (machine / "conformance-report").exists(), "nothing is made for nothing"


def test_no_hopper_is_told(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane.gpus, "visible_capabilities", lambda: [(8, 0)])
    result = sanitize()
    assert result.exit_code == 2 and "capability 9.0" in result.output, result.output


def test_cuda_home_is_searched(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CUDA_HOME", str(machine))
    assert tool.find() == machine / "bin/compute-sanitizer"


def test_drawn_cases_are_real_small_and_of_every_kind() -> None:
    cases = lane.drawn_cases()
    assert cases == lane.drawn_cases() and len(set(cases)) == 10
    assert set(cases) <= set(case_ids(["hopper"]))
    kinds = {(parse(id)["dtype"], parse(id)["kpe"]) for id in cases}
    assert kinds == {(dtype, kpe) for dtype in ("bf16", "fp8") for kpe in ("0", "64")}
    assert {parse(id)["geo"] for id in cases} <= set(lane.GEOMETRIES)


@pytest.mark.parametrize(
    ("text", "total", "where"),
    [
        ("", None, {}),
        ("no tool\n", None, {}),
        (session(), 0, {}),
        (PLANTED, 1, {"planted_fault": 1}),
        (session(report_of(READ, TORCH)), 1, {"void at::native::vectorized_elementwise_kernel": 1}),
        (
            "========= Program hit cudaErrorLaunchFailure (error 719) on CUDA API call.\n"
            "=========     Saved host backtrace up to driver entry point at error\n"
            "========= ERROR SUMMARY: 1 error\n",
            1,
            {"Program hit cudaErrorLaunchFailure (error 719) on CUDA API call.": 1},
        ),
    ],
)
def test_what_the_tool_says_is_read(text: str, total: int | None, where: dict[str, int]) -> None:
    reading = tool.read(text)
    assert (reading.total, reading.where) == (total, Counter(where))
