"""The commands, each in a process of its own: exit codes, findings kept and played again."""

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from fuzz.history import History
from fuzz.serving import drawn

ONE_STAGING_BLOCK = "conformance.subjects.upstream:OneStagingBlock"


def fuzz(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Give a command in a process of its own; runs beside each other have folders of their own."""
    command = [sys.executable, "-m", "fuzz", *map(str, arguments)]
    with tempfile.TemporaryDirectory() as report:
        if arguments[0] == "run" and "--report" not in arguments:
            command += ["--report", report]
        return _done(command, variables)


def _done(command: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **variables}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


def test_a_run_without_a_finding() -> None:
    done = fuzz("run", "--seed", "5", "--histories", "3", "--turns", "4")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 histories" in done.stdout and "0 distinct findings" in done.stdout
    assert "pairs of values reached" in done.stdout


def test_a_finding_is_kept_and_played_again(tmp_path: Path) -> None:
    done = fuzz("run", "--subject", ONE_STAGING_BLOCK, "--histories", "8", "--keep", tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    kept = sorted(tmp_path.glob("*.json"))
    assert kept
    history = History.loads(kept[0].read_text())
    line = next(row for row in done.stdout.splitlines() if f"{kept[0]}" in row and "replay" in row)
    again = fuzz(*line.partition("-m fuzz ")[2].split())
    assert again.returncode == 1 and f"{kept[0]}: turn" in again.stdout, again.stdout
    sound = fuzz("replay", *kept)
    assert sound.returncode == 0 and "all right" in sound.stdout, sound.stdout + sound.stderr
    assert f"--seed {history.seed} --histories 1" in (done.stdout), (
        "each finding says how to repeat it"
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["replay", "nowhere.json"], "no readable file"),
        (["replay"], "Missing argument"),
        (["run", "--seed", "-1"], "-1 is not in the range"),
        (["run", "--flashinfer", "9"], "allowed: auto, 0.6.18"),
        (["run", "--histories", "1", "--subject", "vllm@"], "vllm@"),
        (["hunt", "--profile", "long"], "'long' is not one of"),
        (["hunt", "--database", "db"], "takes no --database"),
        (["walk"], "No such command"),
    ],
)
def test_what_is_asked_wrongly(arguments: list[str], says: str) -> None:
    done = fuzz(*arguments)
    assert done.returncode == 3, done.stdout + done.stderr
    assert says in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [["run", "--histories", "1"], ["hunt"], ["replay"]])
def test_without_a_hopper_gpu_nothing_is_played(command: list[str], tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(drawn(0).dumps())
    more = [str(path)] if command == ["replay"] else []
    done = fuzz(*command, "--tier", "hopper", *more, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "no GPU of compute capability 9.0" in done.stdout


def test_a_damaged_history_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}")
    done = fuzz("replay", path)
    assert done.returncode == 3 and "schema" in done.stderr and "Traceback" not in done.stderr
    assert str(path) in done.stderr


def test_a_history_without_a_step_is_no_pass(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(replace(drawn(0), turns=()).dumps())
    assert fuzz("replay", path).returncode == 2


def test_findings_go_into_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = fuzz("run", "--histories", "1", "--keep", tmp_path / "file")
    assert done.returncode == 3 and "is a file" in done.stderr, done.stderr
