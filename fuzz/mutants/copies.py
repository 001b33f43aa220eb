"""A copy of the sources with a mutant planted in it or none, and commands that run in it."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from conformance.mutants.copies import ROOMS
from conformance.mutants.model import Mutant

_ROOT = Path(__file__).parents[2]


@contextmanager
def copied(mutant: Mutant | None) -> Iterator[Path]:
    """A context with the copy's root; raise MutantError for a mutant that does not fit."""
    with tempfile.TemporaryDirectory(prefix="smla-mutant-") as folder:
        root = Path(folder) / "sources"
        for room in ROOMS:
            ignored = shutil.ignore_patterns("__pycache__", ".*")
            shutil.copytree(_ROOT / room, root / room, ignore=ignored)
        if mutant is not None:
            mutant.apply(root)
        yield root


def module(root: Path, *arguments: str, minutes: float) -> subprocess.CompletedProcess[str]:
    """Run `python -m ARGUMENTS` in a copy; raise subprocess.TimeoutExpired when it does not end."""
    # Only the copy may be imported: an editable install of the original would hide it.
    search = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(search)}
    command: Sequence[str] = [sys.executable, "-m", *arguments]
    return subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True,
        timeout=60 * minutes, check=False,
    )  # fmt: skip
