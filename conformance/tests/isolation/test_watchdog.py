"""Both stages of the watchdog, in small processes of their own."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from conformance.core.watchdog import SECOND_STAGE

_PROGRAM = """
import ctypes, os, sys, time
from conformance.core.watchdog import Watchdog

def hung(where):
    print(where, flush=True)
    os._exit(70)

with open(sys.argv[1], "w") as file:
    watchdog = Watchdog(float(sys.argv[2]), file, hung)
    for _ in range(3):
        watchdog.arm()
        watchdog.disarm()
    watchdog.arm()
    {work}
    watchdog.disarm()
    time.sleep(float(sys.argv[2]) + 0.5)
"""


def _watched(folder: Path, limit: str, work: str) -> tuple[int, str, str]:
    command = [sys.executable, "-c", _PROGRAM.replace("{work}", work), str(folder / "f"), limit]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=30)
    return done.returncode, done.stdout, (folder / "f").read_text()


def test_a_hang_is_told_with_its_place(tmp_path: Path) -> None:
    code, said, trace = _watched(tmp_path, "0.5", "time.sleep(60)")
    assert code == 70 and trace == ""
    assert "no end after 0.5 s" in said and 'File "<string>", line 15' in said


def test_a_held_lock_ends_the_process_with_a_traceback(tmp_path: Path) -> None:
    started = time.monotonic()
    code, said, trace = _watched(tmp_path, "0.5", "ctypes.PyDLL(None).sleep(60)")
    assert code == 1 and said == ""
    assert SECOND_STAGE in trace and 'File "<string>", line 15' in trace
    assert time.monotonic() - started < 20


@pytest.mark.parametrize(("limit", "work"), [("0.5", "pass"), ("0", "time.sleep(0.1)")])
def test_what_ends_is_left_alone(tmp_path: Path, limit: str, work: str) -> None:
    assert _watched(tmp_path, limit, work) == (0, "", "")
