"""The gate's command asked wrongly: exit code 3, a clear text, and no report that could be read."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.gate import store
from conformance.tests.house.test_gate_package import damaged, wheel_of

ROOT = Path(__file__).parents[3]


def gate(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command with a cache of its own, a report of an earlier run, and no network."""
    environment = {
        **os.environ,
        "SMLA_CACHE_ROOT": str(folder / "cache"),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
    }
    command = [sys.executable, "-m", "conformance", "gate", *arguments]
    command += ["--report", str(folder / "report")]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("made", "arguments", "told"),
    [
        ("", ("9.8.7", "9.8.8"), r"9\.8\.7: not fetched"),
        ("", ("nonsense", "9.8.8"), "no version and no file"),
        ("wheel", ("WHEEL", "DAMAGED"), "damaged"),
        ("wheel", ("WHEEL", "ROOT"), "--trust"),
        ("wheel", ("WHEEL", "WHEEL", "--subject", "nobody"), "no subject of this name"),
        ("wheel", ("WHEEL", "WHEEL", "--policy", "MISSING"), "no readable TOML"),
        ("wheel", ("WHEEL", "WHEEL", "--results", "MISSING"), "MISSING"),
        ("wheel", ("WHEEL", "WHEEL", "--results", "WHEEL"), "results "),
        ("wheel", ("WHEEL", "WHEEL", "--tier", "gpu"), "'gpu' is not one of"),
        ("", ("9.8.7",), "Missing argument"),
    ],
)
def test_a_wrong_question_ends_with_3_and_leaves_no_verdict(
    tmp_path: Path, made: str, arguments: tuple[str, ...], told: str
) -> None:
    named = {"MISSING": str(tmp_path / "MISSING"), "ROOT": str(tmp_path)}
    if made:
        (tmp_path / "broken").mkdir()
        named |= {"WHEEL": str(wheel_of(tmp_path)), "DAMAGED": str(damaged(tmp_path / "broken"))}
    done = gate(tmp_path, *(named.get(word, word) for word in arguments))
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 3, said
    assert re.search(told, said), said
    assert "Traceback" not in said, said
    for name in (store.JSON, store.MARKDOWN, store.PAGE):
        assert not (tmp_path / "report" / name).exists(), f"{name} was left behind"
