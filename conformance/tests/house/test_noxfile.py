"""nox hands on the exit code of the command it runs, which it would not do by itself."""

import importlib
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("nox")
ROOT = Path(__file__).parents[3]

# Stands in for the suite: ends as its last argument says.
COMMAND = """\
import os, signal, sys
code = int(sys.argv[-1])
sys.stdout.write(f"ran {sys.argv[1:]}\\n")
sys.stdout.flush()
os.kill(os.getpid(), signal.SIGKILL) if code < 0 else sys.exit(code)
"""


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A copy of the noxfile beside a stand-in for the suite."""
    shutil.copy(ROOT / "noxfile.py", tmp_path)
    (tmp_path / "conformance").mkdir()
    for name in ("driver.py", "settings.py"):
        shutil.copy(ROOT / "conformance" / name, tmp_path / "conformance")
    (tmp_path / "fuzz").mkdir()
    for room in ("conformance", "fuzz"):
        (tmp_path / room / "__init__.py").touch()
        (tmp_path / room / "__main__.py").write_text(COMMAND)
    return tmp_path


def run_nox(house: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run nox in this environment, installing nothing."""
    env = {**os.environ, "SMLA_NOX_TARGET": "cpu", "SMLA_TORCH_INDEX": "", **settings}
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", "")])
    command = [sys.executable, "-m", "nox", "--no-venv", "--no-install", *arguments]
    return subprocess.run(
        command, cwd=house, env=env, capture_output=True, text=True, timeout=120, check=False
    )


CODES = [(0, 0), (1, 1), (2, 2), (3, 3), (4, 3), (-9, 3)]


@pytest.mark.parametrize(
    ("session", "ends", "expected"),
    [("conformance", *codes) for codes in CODES]
    + [("mutants", 2, 2), ("sanitize", 2, 2), ("bench", 2, 2), ("fuzz", 1, 1)],
)
def test_exit_code_is_the_command_s_own(
    house: Path, session: str, ends: int, expected: int
) -> None:
    done = run_nox(house, "-s", session, "--", str(ends))
    assert done.returncode == expected, (
        f"command ended with {ends}: expected nox to end with {expected}, got {done.returncode}\n"
        f"{done.stdout}{done.stderr}"
    )
    name = "run" if session in ("conformance", "fuzz") else session
    assert f"ran ['{name}', '{ends}']" in done.stdout + done.stderr


def test_arguments_pass_through(house: Path) -> None:
    done = run_nox(house, "-s", "conformance", "--", "--tier", "twin", "--require", "planner", "0")
    assert "ran ['run', '--tier', 'twin', '--require', 'planner', '0']" in done.stdout + done.stderr


def test_an_unknown_target_ends_with_3(house: Path) -> None:
    done = run_nox(house, "-s", "conformance", "--", "0", SMLA_NOX_TARGET="tpu")
    assert done.returncode == 3, f"expected 3, got {done.returncode}: {done.stderr}"
    assert "tpu" in done.stdout + done.stderr


def test_a_wrong_setting_ends_with_3(house: Path) -> None:
    (house / "pyproject.toml").write_text("[tool.smla]\nnox_targets = 'cpu'\n")
    done = run_nox(house, "-s", "conformance", "--", "0", SMLA_NOX_TARGET="")
    assert done.returncode == 3, f"expected 3, got {done.returncode}: {done.stderr}"
    assert "nox_targets" in done.stdout + done.stderr


# The suite itself from here on: a subject that conforms and one that does not.
FAULTY = """\
import torch
from conformance.subjects.smla import SmlaSubject


class Faulty(SmlaSubject):
    name = "faulty:Faulty"

    def construct(self, *args, **kwargs):
        instance = super().construct(*args, **kwargs)
        forward = instance.forward

        def doubled(*inputs):
            forward(*inputs)
            inputs[-1].mul_(2)

        instance.forward = doubled
        return instance
"""
CASE = "SMOKE/dtype=bf16,geo=wide,lens=full,loss=none/0"
ONE_CASE = ("--tier", "twin", "--kernels", "torch", "-n", "0", "--case", CASE)


@pytest.mark.parametrize(
    ("arguments", "expected", "says"),
    [
        pytest.param(ONE_CASE, 0, "1 pass", id="conforms"),
        pytest.param((*ONE_CASE, "--subject", "faulty:Faulty"), 1, "1 fail", id="does-not"),
        pytest.param(
            ("--tier", "hopper", "--require", "hopper"), 2, "not run: hopper tier", id="no-gpu"
        ),
        pytest.param(("--subject", "nobody"), 3, "nobody", id="unknown-subject"),
        pytest.param(("--requirement", "NUM-99"), 3, "NUM-99", id="unknown-requirement"),
        pytest.param(
            (*ONE_CASE, "--report", "{here}/file/report"), 3, "report", id="unwritable-report"
        ),
    ],
)
def test_the_suite_s_own_verdict_is_nox_s(
    tmp_path: Path, arguments: tuple[str, ...], expected: int, says: str
) -> None:
    (tmp_path / "faulty.py").write_text(FAULTY)
    (tmp_path / "file").touch()
    given = [argument.format(here=tmp_path) for argument in arguments]
    report = [] if "--report" in given else ["--report", str(tmp_path / "report")]
    done = run_nox(
        ROOT,
        *("-s", "conformance", "--", *given, *report),
        PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
        CUDA_VISIBLE_DEVICES="",
    )
    assert done.returncode == expected, (
        f"expected nox to end with {expected}, got {done.returncode}\n{done.stdout}{done.stderr}"
    )
    assert says in done.stdout + done.stderr, done.stdout + done.stderr


class Quiet:
    """A session that installs nothing and keeps what it was warned of."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


@pytest.fixture
def noxfile(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.delenv("SMLA_TORCH_INDEX", raising=False)
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("noxfile")


def test_a_cuda_build_of_torch_is_not_downloaded(
    noxfile: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noxfile, "answers", lambda url: False)
    monkeypatch.setattr(noxfile, "torch_build", lambda session: "2.13.0")
    session = Quiet()
    with pytest.raises(SystemExit) as stop:
        noxfile.torch_index(session)
    assert stop.value.code == 3
    assert "SMLA_TORCH_INDEX" in session.warnings[0], session.warnings


@pytest.mark.parametrize(
    ("setting", "reachable", "build", "expected"),
    [
        (None, True, "2.13.0", ["--extra-index-url", "https://download.pytorch.org/whl/cpu"]),
        (None, False, "2.13.0+cpu", []),
        ("", True, "2.13.0", []),
        ("https://a.example/cpu", False, "", ["--extra-index-url", "https://a.example/cpu"]),
    ],
)
def test_where_torch_comes_from(
    noxfile: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    setting: str | None,
    reachable: bool,
    build: str,
    expected: list[str],
) -> None:
    if setting is not None:
        monkeypatch.setenv("SMLA_TORCH_INDEX", setting)
    monkeypatch.setattr(noxfile, "answers", lambda url: reachable)
    monkeypatch.setattr(noxfile, "torch_build", lambda session: build)
    assert noxfile.torch_index(Quiet()) == expected


def test_a_host_that_does_not_answer_is_given_up_soon(noxfile: ModuleType) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        started = time.monotonic()
        assert not noxfile.answers(f"http://127.0.0.1:{silent.getsockname()[1]}/torch/")
    assert time.monotonic() - started < noxfile.PROBE_SECONDS + 2
