"""The examples run as they stand, and README shows the very text that runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples/decode_loop.py"
LINE = re.compile(r"step (\d+): plans (\d+), reuses (\d+), relative error (\S+)")

# BF16 rounds thrice (weights, partial results, output), each time by 2**-8 at the most. One wrong
# token among a row's 128 costs tens of percent.
LARGEST_ERROR = 0.012


def run(source: Path) -> str:
    """Run an example on whatever this machine has; return what it printed."""
    search = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, str(source)],
        env={**os.environ, "PYTHONPATH": search},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{source.name} ended with {done.returncode}:\n{done.stderr}"
    return done.stdout


def test_readme_shows_how_a_kernel_meets_the_golden_set() -> None:
    pytest.importorskip("safetensors", reason="golden's files need safetensors")
    example = ROOT / "examples/golden_cases.py"
    assert f"```python\n{example.read_text()}```" in (ROOT / "README.md").read_text()
    lines = run(example).splitlines()
    told = [
        re.fullmatch(r"\S+-heads8-\w+: (0\.\d+) of what rounding allows", line) for line in lines
    ]
    assert len(told) == 6 and all(told), lines


def problem(output: str) -> str | None:
    """What is wrong with the loop's output, None when nothing is."""
    steps = [LINE.fullmatch(line) for line in output.splitlines()]
    if not steps or None in steps:
        return f"expected lines like {LINE.pattern!r}, got:\n{output}"
    found = [(int(m[1]), int(m[2]), int(m[3]), float(m[4])) for m in steps if m]
    if [number for number, *_ in found] != list(range(6)):
        return f"expected steps 0 to 5, got {[number for number, *_ in found]}"
    # Rows grow by one token a step; a slack of two covers three steps with one plan.
    plans = [(plans, reuses) for _, plans, reuses, _ in found]
    expected = [(1, 0), (1, 1), (1, 2), (2, 2), (2, 3), (2, 4)]
    if plans != expected:
        return f"expected plans and reuses {expected}, got {plans}"
    errors = [error for *_, error in found]
    if not all(0 < error < LARGEST_ERROR for error in errors):  # NaN compares false
        return f"expected errors above 0 and below {LARGEST_ERROR}, got {errors}"
    return None


def test_the_decode_loop_is_right() -> None:
    wrong = problem(run(EXAMPLE))
    assert wrong is None, wrong


@pytest.mark.parametrize(
    ("old", "new", "noticed"),
    [
        ("best.numel()] = best", "best.numel()] = length - 1 - best", "errors"),
        ("plan_slack=2", "plan_slack=0", "plans and reuses"),
    ],
)
def test_a_broken_loop_is_noticed(tmp_path: Path, old: str, new: str, noticed: str) -> None:
    text = EXAMPLE.read_text()
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {EXAMPLE.name}"
    broken = tmp_path / EXAMPLE.name
    broken.write_text(text.replace(old, new))
    wrong = problem(run(broken))
    assert wrong is not None and noticed in wrong, f"expected a word on {noticed}, got {wrong!r}"


@pytest.mark.parametrize("output", ["", "step 0: plans 1, reuses 0, relative error nan\n" * 6])
def test_output_that_says_nothing_is_noticed(output: str) -> None:
    assert problem(output) is not None


def test_readme_shows_the_decode_loop_as_it_runs() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.S | re.M)
    assert EXAMPLE.read_text() in blocks, (
        f"README.md shows {len(blocks)} Python blocks, none of them equal to {EXAMPLE.name}; "
        "copy the file's text between ```python and ``` lines"
    )
