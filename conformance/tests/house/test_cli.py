"""The command line: every way out is an exit code of the suite, and settings reach the run."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from conformance import cli, doctor
from conformance.core.run import Exit, Identity, Request

ROOT = Path(cli.__file__).parents[1]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("SMLA_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def requests(home: Path, monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """Runs asked for, of which none is made."""
    asked: list[Request] = []

    def run(request: Request) -> SimpleNamespace:
        asked.append(request)
        return SimpleNamespace(exit=Exit.CONFORMS)

    monkeypatch.setattr(cli, "run", run)
    monkeypatch.setattr(cli, "show", lambda *_: None)
    monkeypatch.setattr(cli, "last_line", lambda _, name: f"{name} was run")
    monkeypatch.setattr(cli, "identify", lambda factory, _: Identity(factory, ""))
    return asked


def ends_with(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["conformance", *arguments])
    # The group hands some options on to the processes it starts, through the environment.
    monkeypatch.setattr(os, "environ", os.environ.copy())
    with pytest.raises(SystemExit) as stop:
        cli.entry()
    assert isinstance(stop.value.code, int)
    return stop.value.code


def test_the_command_line_itself_loads_no_torch() -> None:
    asked = "import sys, conformance.cli; print({'torch', 'triton', 'smla'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr


def test_settings_reach_the_run_and_are_told(
    home: Path,
    requests: list[Request],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (home / "pyproject.toml").write_text("[tool.smla]\nworkers = 3\nkernels = 'torch'\n")
    monkeypatch.setenv("SMLA_KERNELS", "interpret")
    monkeypatch.setenv("SMLA_REPORT", "here")
    monkeypatch.setenv("SMLA_WATCHDOG_TWIN", "7")
    options = ["--report", "there", "--junit", "results.xml"]
    assert ends_with(monkeypatch, "run", "--tier", "twin", *options) == 0
    (request,) = requests
    asked = (request.workers, request.kernels, request.tier, request.report.name)
    assert asked == ("3", "interpret", "twin", "there")
    assert (request.limit("twin"), request.limit("hopper")) == (7.0, 120.0)
    assert request.junit == Path("results.xml")
    shown = capsys.readouterr().out
    for line in ("workers = 3 ([tool.smla]", "kernels = interpret (SMLA_K", "tier = twin (--tier)"):
        assert f"setting: {line}" in shown, shown
    assert "log_level" not in shown, "defaults are not told"


def test_nothing_set_is_the_default_run(
    requests: list[Request], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends_with(monkeypatch, "run") == 0
    (request,) = requests
    assert (request.tier, request.workers, request.kernels) == ("auto", "auto", "auto")
    assert request.report.name == "conformance-report" and "setting" not in capsys.readouterr().out


def test_one_watchdog_for_all_tiers(
    requests: list[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ends_with(monkeypatch, "run", "--watchdog", "0") == 0
    assert ends_with(monkeypatch, "run", "--watchdog", "9.5") == 0
    assert [request.limit("twin") for request in requests] == [0.0, 9.5]
    assert ends_with(monkeypatch, "run", "--watchdog", "-1") == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--subject", "nobody"],
        ["run", "--subject", "no_such_package.module:factory"],
        ["run", "--subject", "conformance.subjects.smla:Nothing"],
        ["run", "--subject", "conformance.subjects:DEFAULT"],
        ["run", "--requirement", "NUM-99"],
        ["run", "--case", "NUM-1"],
        ["run", "--case", "NUM-99/dtype=bf16/1"],
        ["run", "--tier", "moon"],
        ["run", "--workers", "many"],
        ["run", "--subject", "smla", "--subject", "nobody"],
        ["run", "--subject", "smla", "--subject", "smla"],
        ["run", "--ledger", "no-such-file.toml"],
        ["run", "--no-ledger", "--ledger", "mine.toml"],
        ["ledger", "check"],
        ["ledger", "check", "no-such-file.toml"],
        ["run", "--no-such-option"],
        ["list", "--requirement", "NUM-99"],
        ["list", "--tier", "moon"],
        ["explain", "NUM-99"],
        ["explain", "NUM-1/colour=red/1"],
        ["sanitize", "--tool", "luckcheck"],
        ["sanitize", "--case", "NUM-99/dtype=bf16/1"],
        ["no-such-command"],
        ["--log-level", "loud", "doctor"],
    ],
    ids=" ".join,
)
def test_what_is_asked_wrongly_ends_with_3(
    arguments: list[str],
    requests: list[Request],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ends_with(monkeypatch, *arguments) == 3
    assert requests == [], "nothing is run"
    assert capsys.readouterr().err, "an error says so"


@pytest.mark.parametrize("command", [["run"], ["doctor"], ["clean", "--yes"], ["sanitize"]])
def test_a_wrong_setting_ends_with_3(
    command: list[str],
    requests: list[Request],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SMLA_TEIR", "twin")
    assert ends_with(monkeypatch, *command) == 3
    assert "SMLA_TEIR" in capsys.readouterr().err


def test_a_command_s_own_exit_code_is_the_process_s(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gap = doctor.Finding("GPU", "missing", "none visible", ("hopper",), "use another machine")
    monkeypatch.setattr(doctor, "examine", lambda: [gap])
    assert ends_with(monkeypatch, "doctor", "--require", "hopper") == 2
    assert ends_with(monkeypatch, "doctor") == 0
    assert ends_with(monkeypatch, "--help") == 0


def test_the_doctor_shows_the_settings(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "examine", list)
    monkeypatch.setenv("SMLA_WORKERS", "5")
    assert ends_with(monkeypatch, "--cache-root", "c", "doctor") == 0
    shown = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "workers 5 SMLA_WORKERS" in lines and "tier auto default" in lines, shown
    assert any(line.startswith("cache_root") and "--cache-root" in line for line in lines), shown


def test_options_of_the_group_reach_the_processes_started(
    requests: list[Request], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends_with(monkeypatch, "--cache-root", "mine", "--log-level", "debug", "run")
    assert os.environ["SMLA_CACHE_ROOT"] == str(home / "mine")
    assert os.environ["SMLA_LOG_LEVEL"] == "debug"


def test_an_error_of_the_suite_itself_ends_with_3(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(request: Request) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(cli, "run", run)
    monkeypatch.setattr(cli, "identify", lambda factory, _: Identity(factory, ""))
    assert ends_with(monkeypatch, "run") == 3


def test_a_report_folder_that_cannot_be_written_ends_with_3(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "file").touch()
    assert ends_with(monkeypatch, "run", "--tier", "twin", "--report", "file/report") == 3
    assert "file/report" in capsys.readouterr().err


def test_a_terminated_run_leaves_no_process_behind(tmp_path: Path) -> None:
    report = tmp_path / "unfinished"
    command = [sys.executable, "-m", "conformance", "run", "--tier", "twin", "-n", "0"]
    command += ["--requirement", "NUM-1", "--report", str(report)]
    search = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    run = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": search}, stdout=subprocess.DEVNULL
    )
    for _ in range(1200):  # until its tests run
        if list(report.glob("records-*.jsonl")) or run.poll() is not None:
            break
        time.sleep(0.1)
    run.terminate()
    assert run.wait(60) == Exit.SUITE_FAILED
    commands = [command_of(path) for path in Path("/proc").glob("[0-9]*/cmdline")]
    assert not [line for line in commands if str(report).encode() in line], "its tests go on"


def command_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it ended meanwhile
        return b""
