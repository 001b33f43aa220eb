"""What the suite finds by itself in the class that vLLM ships, on simulated FlashInfers.

Needs a vLLM: an installed one, or the path of a wheel, folder or cut archive in SMLA_TEST_VLLM.
Each row runs cases of a requirement as the command line does, and says what must come of them.
"""

import functools
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from conformance.core.record import Outcome, Record, read_records

ROOT = Path(__file__).parents[3]
PLACE = os.environ.get("SMLA_TEST_VLLM", "")
SUBJECT = f"vllm@{PLACE}" if PLACE else "vllm"
pytestmark = pytest.mark.skipif(
    not PLACE and find_spec("vllm") is None,
    reason="nothing was judged: no vLLM is installed, and SMLA_TEST_VLLM names none",
)
OLD, SOUND, NEW = "0.6.18", "0.7.2.post1", "0.7.4"


@dataclass(frozen=True)
class Row:
    """One case on one simulated FlashInfer: its outcome, and what its message says."""

    case: str
    flashinfer: str
    outcome: Outcome
    says: str = ""


PASS, FAIL, CRASH, BLIND = Outcome.PASS, Outcome.FAIL, Outcome.CRASH, Outcome.UNOBSERVABLE
GRID = r"plan-info at \d+ of \d+ rows\n  got      \[[12], (132|66),"
TOUCHED = "end of what the kernel touched, per row"
TABLE = (
    # The gate looks for a keyword that is there; the plan needs an attribute that is not.
    Row("ADMIT-5/how=sound,dtype=bf16,kpe=64/5", OLD, FAIL, "first step.*\n.*_planned_backend"),
    Row("ADMIT-5/how=sound,dtype=bf16,kpe=64/5", SOUND, PASS),
    # plan() reads the least and the largest index back.
    Row("PLAN-8/how=plan,dtype=bf16,geo=flat,heads=16/0", SOUND, PASS),
    Row("PLAN-8/how=plan,dtype=bf16,geo=flat,heads=16/0", NEW, FAIL, "waits for the device\n.* 2"),
    Row("PLAN-8/how=plan-large,dtype=bf16,geo=flat,heads=16/0", SOUND, FAIL, "waits.*\n.* 3"),
    # More rows of queries than planned.
    Row("GRAPH-3/heads=16,geo=tiny,rows=many,dtype=bf16/0", SOUND, PASS),
    Row("GRAPH-3/heads=16,geo=tiny,rows=many,dtype=bf16/0", NEW, CRASH, "planned query shape"),
    Row("PLAN-11/how=eager,geo=tiny,lens=mixed,heads=16/0", SOUND, PASS),
    Row("PLAN-11/how=eager,geo=tiny,lens=mixed,heads=16/0", NEW, CRASH, "planned query shape"),
    # The launch grid follows how full the batch is.
    Row("PLAN-6/heads=128,geo=tiny,how=/0", SOUND, FAIL, GRID),
    Row("PLAN-6/heads=16,geo=tiny,how=/0", SOUND, PASS),
    Row("GRAPH-3/heads=128,geo=tiny,rows=many,dtype=bf16/0", SOUND, FAIL, "live differs from"),
    # kv_end alone is clamped: loads go on to the end of the tile.
    Row("READ-C/geo=flat,lens=short,loss=far,heads=16,dtype=bf16/0", SOUND, FAIL, TOUCHED),
    # The rope part of an FP8 cache is read with a scale of 1.
    Row("NUM-4/kpe=64,dtype=fp8,geo=wide,lens=full,heads=16/3", SOUND, FAIL, "differs from golden"),
    Row("NUM-4/kpe=64,dtype=bf16,geo=wide,lens=full,heads=16/3", SOUND, PASS),
    # What is right, and what is not shown.
    Row("NUM-1/dtype=bf16,geo=glm,lens=long,loss=draft,width=full/0", SOUND, PASS),
    Row("NUM-2/dtype=fp8,geo=wide,lens=full,loss=draft,width=small/0", SOUND, PASS),
    Row("MHA-1/how=at,geo=wide/0", SOUND, PASS),
    Row("MHA-1/how=one-above,geo=wide/0", SOUND, PASS),
    Row("PLAN-1/how=bounds,geo=flat,dtype=bf16/0", SOUND, PASS),
    Row("PLAN-9/how=4,geo=flat,dtype=bf16,heads=16/0", SOUND, BLIND, "capability clock"),
)


@functools.cache
def records(flashinfer: str, report: Path) -> dict[str, Record]:
    """Run the rows of a version as one command; return its records by case."""
    cases = [f"--case={row.case}" for row in TABLE if row.flashinfer == flashinfer]
    command = [sys.executable, "-m", "conformance", "run", "--tier", "twin", "-n", "0"]
    command += ["--subject", SUBJECT, "--flashinfer", flashinfer, "--report", str(report), *cases]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SMLA_")}
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode in (0, 1, 2), done.stdout[-3000:] + done.stderr[-3000:]
    return {record.case: record for record in read_records(report, "*")}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reports")


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.case.partition('/')[0]}-{row.outcome}"
                         f"-{row.flashinfer}")  # fmt: skip
def test_what_comes_of_a_case(row: Row, reports: Path) -> None:
    record = records(row.flashinfer, reports / row.flashinfer)[row.case]
    assert record.outcome is row.outcome, f"{row.case}: {record.outcome}: {record.message}"
    assert re.search(row.says, record.message), record.message


def test_a_repro_line_names_the_same_sources(reports: Path) -> None:
    found = records(SOUND, reports / SOUND)["PLAN-6/heads=128,geo=tiny,how=/0"]
    assert (
        f"--subject {SUBJECT if not PLACE else f'vllm@{Path(PLACE).resolve()}'} " in found.message
    )
