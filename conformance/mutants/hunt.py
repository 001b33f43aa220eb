"""The hunt: plant each mutant in a copy of the sources and see its requirement notice it."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from conformance.core.catalogue import ALIVE
from conformance.core.record import Outcome, Record, RecordError, read_records
from conformance.core.run import Exit
from conformance.mutants.model import Mutant, MutantError

ROOMS = ("smla", "golden", "conformance")
_ROOT = Path(__file__).parents[2]
_MINUTES = 15


class Fate(StrEnum):
    """What became of a mutant."""

    KILLED = "killed"
    SURVIVED = "survived"
    INVALID = "invalid"


@dataclass(frozen=True)
class Finding:
    """A mutant's fate. by: the case that noticed it; message: what was seen."""

    mutant: Mutant
    fate: Fate
    by: str
    message: str


def hunt(mutants: Sequence[Mutant], workers: int, told: Callable[[Finding], None]) -> list[Finding]:
    """Return each mutant's fate; raise MutantError when the unchanged sources are not green.

    The unchanged copy takes the same path with every requirement named. told: called with each
    finding as it comes.
    """
    with ThreadPoolExecutor(workers) as pool:
        named: dict[str, set[str]] = {}
        for mutant in mutants:
            named.setdefault(mutant.lane, {ALIVE}).add(mutant.requirement)
        unchanged = [pool.submit(_run_copy, None, lane, sorted(ids)) for lane, ids in named.items()]
        futures = [pool.submit(_fate, mutant) for mutant in mutants]
        for run in unchanged:
            code, records, output = run.result()
            if code != Exit.CONFORMS or not records:
                raise MutantError(f"the unchanged sources are not green:\n{output[-3000:]}")
        findings = []
        for future in futures:
            findings.append(future.result())
            told(findings[-1])
        return findings


def _fate(mutant: Mutant) -> Finding:
    code, records, output = _run_copy(mutant, mutant.lane, [ALIVE, mutant.requirement])
    alive = [r for r in records if r.requirement == ALIVE]
    if not alive or any(r.outcome is not Outcome.PASS for r in alive):
        said = _messages(alive) or output[-2000:]
        return Finding(mutant, Fate.INVALID, "", f"does not pass {ALIVE}: {said}")
    checks = [r for r in records if r.requirement == mutant.requirement]
    for record in checks:
        if record.outcome is Outcome.FAIL:
            return Finding(mutant, Fate.KILLED, record.case, record.message)
    if code != Exit.CONFORMS:
        said = _messages(checks) or output[-2000:]
        return Finding(mutant, Fate.INVALID, "", f"no check of {mutant.requirement} failed: {said}")
    return Finding(mutant, Fate.SURVIVED, "", f"{len(checks)} cases of {mutant.requirement} pass")


def _messages(records: Iterable[Record]) -> str:
    return "; ".join(r.message for r in records if r.outcome is not Outcome.PASS)


def _run_copy(
    mutant: Mutant | None, lane: str, requirements: list[str]
) -> tuple[int, list[Record], str]:
    """Run requirements on a copy of the sources; return exit code, records and output."""
    with tempfile.TemporaryDirectory(prefix="smla-mutant-") as folder:
        root, report = Path(folder) / "sources", Path(folder) / "report"
        for room in ROOMS:
            ignored = shutil.ignore_patterns("__pycache__", ".*")
            shutil.copytree(_ROOT / room, root / room, ignore=ignored)
        if mutant is not None:
            mutant.apply(root)
        command = [sys.executable, "-m", "conformance", "run", "--tier", "twin", "-x", "-n", "0"]
        command += ["--kernels", lane, "--report", str(report)]
        command += [f"--requirement={id}" for id in requirements]
        # Only the copy may be imported: an editable install of the original would hide it.
        search = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(search)}
        try:
            done = subprocess.run(
                command, cwd=root, env=environment, capture_output=True, text=True,
                timeout=60 * _MINUTES, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Exit.SUITE_FAILED, [], f"no end after {_MINUTES} minutes"
        try:
            records = read_records(report) if report.is_dir() else []
        except RecordError as problem:
            return Exit.SUITE_FAILED, [], str(problem)
        return done.returncode, records, done.stdout + done.stderr
