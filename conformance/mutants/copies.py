"""A copy of the sources, with one mutant planted in it or none, and cases run in it."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from conformance.core.record import Outcome, Record, RecordError, read_records
from conformance.core.run import Exit
from conformance.mutants.model import Mutant

ROOMS = ("smla", "golden", "conformance", "fuzz")
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Ran:
    """What a run in a copy showed. code: its exit code; output: what it printed."""

    code: int
    records: Sequence[Record] = field(default_factory=list)
    output: str = ""

    def of(self, requirement: str) -> list[Record]:
        """The records of one requirement."""
        return [record for record in self.records if record.requirement == requirement]

    def alive(self, requirement: str) -> bool:
        """Whether the requirement has records, and each passed."""
        records = self.of(requirement)
        return bool(records) and all(record.outcome is Outcome.PASS for record in records)


def run_copy(mutant: Mutant | None, lane: str, selection: Iterable[str], *, minutes: float) -> Ran:
    """Run a selection of the twin tier on a copy of the sources.

    selection: options of `run`. Raises MutantError for a mutant that does not fit.
    """
    with tempfile.TemporaryDirectory(prefix="smla-mutant-") as folder:
        root, report = Path(folder) / "sources", Path(folder) / "report"
        for room in ROOMS:
            # Bytecode goes along: times are copied, so it stands for all files but an edited one.
            ignored = shutil.ignore_patterns(".*", "*.pyc.*")
            shutil.copytree(_ROOT / room, root / room, ignore=ignored)
        if mutant is not None:
            mutant.apply(root)
        command = [sys.executable, "-m", "conformance", "run", "--tier", "twin", "-n", "0"]
        command += ["--kernels", lane, "--report", str(report), *selection]
        # Only the copy may be imported: an editable install of the original would hide it.
        search = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(search)}
        try:
            done = subprocess.run(
                command, cwd=root, env=environment, capture_output=True, text=True,
                timeout=60 * minutes, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Ran(Exit.SUITE_FAILED, output=f"no end after {minutes:g} minutes")
        try:
            records = read_records(report) if report.is_dir() else []
        except RecordError as problem:
            return Ran(Exit.SUITE_FAILED, output=str(problem))
        return Ran(done.returncode, records, done.stdout + done.stderr)
