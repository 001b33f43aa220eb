"""The example subject runs under the suite, is found right, and is found wrong once it is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.core.record import Outcome, Record, read_records

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples/my_backend.py"
JUDGED = ("NUM-1", "NUM-9", "IDX-2", "IDX-3")
HIDDEN = ("PLAN-4", "READ-C")
"""Requirements that look at a plan, or at what a simulated kernel read."""


def run(folder: Path, text: str, report: Path, *requirements: str) -> tuple[int, list[Record]]:
    """Run the suite on a subject of this text; return exit code and records."""
    (folder / "a_backend.py").write_text(text)
    command = [sys.executable, "-m", "conformance", "run", "--tier", "twin", "-n", "0"]
    command += ["--subject", "a_backend:MyBackend", "--report", str(report)]
    command += [f"--requirement={id}" for id in requirements]
    search = [str(folder), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(search)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert report.is_dir(), done.stdout + done.stderr
    return done.returncode, read_records(report)


def test_the_example_conforms_where_it_can_be_seen(tmp_path: Path) -> None:
    code, records = run(tmp_path, EXAMPLE.read_text(), tmp_path / "r", *JUDGED, *HIDDEN)
    by_id = {id: {r.outcome for r in records if r.requirement == id} for id in (*JUDGED, *HIDDEN)}
    assert code == 2  # nothing is wrong, but what it does not show was not judged
    assert by_id["NUM-1"] == {Outcome.PASS}
    assert all(by_id[id] <= {Outcome.PASS, Outcome.UNOBSERVABLE} for id in JUDGED), by_id
    assert all(Outcome.PASS in by_id[id] for id in JUDGED), by_id
    assert by_id["PLAN-4"] == {Outcome.UNOBSERVABLE}
    assert by_id["READ-C"] <= {Outcome.UNOBSERVABLE, Outcome.PASS}


@pytest.mark.parametrize(
    ("old", "new", "noticed_by"),
    [
        ("if 0 <= t < context]", "if 0 <= t]", "IDX-2"),
        ("n - end + i + 1)", "n - end + i)", "NUM-1"),
        ("0 <= blocks[t // size] < len(cache)", "blocks[t // size] < len(cache)", "IDX-3"),
    ],
)
def test_a_broken_example_is_found(tmp_path: Path, old: str, new: str, noticed_by: str) -> None:
    text = EXAMPLE.read_text()
    assert text.count(old) == 1
    code, records = run(tmp_path, text.replace(old, new), tmp_path / "r", noticed_by)
    assert code == 1
    assert any(r.failed for r in records)


def test_readme_names_the_example() -> None:
    assert "examples/my_backend.py" in (ROOT / "README.md").read_text()
