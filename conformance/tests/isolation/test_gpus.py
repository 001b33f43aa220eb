"""A GPU of its own for each worker, chosen among those that the caller allows."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from conformance.core.gpus import VARIABLE, names, worker_options
from conformance.core.request import SuiteError

H, A = (9, 0), (8, 0)
UUID = "GPU-5a0f3b2c-1111-2222-3333-444455556666"


@pytest.mark.parametrize(
    ("variable", "capabilities", "expected"),
    [
        (None, [], []),
        (None, [H], ["0"]),
        (None, [A, H, H], ["1", "2"]),
        ("", [], []),
        ("3", [H], ["3"]),
        ("2, 0", [H, H], ["2", "0"]),
        ("5,1", [A, H], ["1"]),
        (f"{UUID},1", [H, H], [UUID, "1"]),
        ("MIG-77,4", [H], ["MIG-77"]),
        ("0,-1,1", [H], ["0"]),  # CUDA shows nothing behind an invalid entry
    ],
)
def test_names_are_of_visible_hopper_gpus(
    variable: str | None, capabilities: list[tuple[int, int]], expected: list[str]
) -> None:
    assert names(variable, capabilities) == expected


@pytest.mark.parametrize(
    ("gpus", "workers", "expected"),
    [
        (["0"], "auto", ["0"]),
        (["2", UUID], "auto", ["2", UUID]),
        (["2", UUID], "1", ["2"]),
        (["2"], "8", ["2"]),
    ],
)
def test_a_worker_per_gpu(gpus: list[str], workers: str, expected: list[str]) -> None:
    options = worker_options(gpus, workers)
    specs = [options[i + 1] for i, option in enumerate(options) if option == "--tx"]
    assert specs == [f"popen//env:{VARIABLE}={gpu}" for gpu in expected]
    assert options[:2] == ["--dist", "load"]


def test_no_workers_and_wrong_numbers() -> None:
    assert worker_options(["0", "1"], "0") == ["-n", "0"]
    with pytest.raises(SuiteError, match="many"):
        worker_options(["0"], "many")


_TESTS = f"""
import os, pytest
from pathlib import Path

@pytest.mark.parametrize("number", range(12))
def test_one(number):
    seen = Path(os.environ["SEEN"]) / str(number)
    worker = os.environ["PYTEST_XDIST_WORKER"]
    seen.write_text(worker + " " + os.environ["{VARIABLE}"])
    if number in (2, 9):
        os._exit(1)
"""


def test_a_replaced_worker_keeps_its_gpu(tmp_path: Path) -> None:
    """Also shows what the suite relies on in xdist: one report per death, of the right test."""
    test = tmp_path / "test_bound.py"
    test.write_text(_TESTS)
    seen = tmp_path / "seen"
    seen.mkdir()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment |= {VARIABLE: f"7,{UUID}", "SEEN": str(seen)}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    command = [sys.executable, "-m", "pytest", "-p", "xdist.plugin", "-q", str(test)]
    command += [*worker_options(["7", UUID], "2")]
    command += ["-c", os.devnull, "--rootdir", str(tmp_path), "-p", "no:cacheprovider"]
    command += ["--max-worker-restart", "5"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    bound: dict[str, str] = {}
    for number in range(12):
        worker, gpu = (seen / str(number)).read_text().split()
        assert bound.setdefault(worker, gpu) == gpu
    assert bound["gw0"] == "7" and bound["gw1"] == UUID
    assert "2 failed, 10 passed" in done.stdout, done.stdout
    replaced = sorted(set(bound) - {"gw0", "gw1"})
    dead = [bound[(seen / number).read_text().split()[0]] for number in ("2", "9")]
    # Which of the dead is replaced first, and whether the second still gets a test, is a race.
    assert Counter(bound[worker] for worker in replaced) <= Counter(dead), json.dumps(bound)
    for number in (2, 9):
        assert f"crashed while running 'test_bound.py::test_one[{number}]'" in done.stdout
