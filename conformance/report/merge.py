"""Merging report folders: the record files of several runs in one new folder, or nothing."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from conformance import ownership
from conformance.report.sources import ReportError, Source, read_sources


def merge(folders: Sequence[Path], target: Path) -> list[Path]:
    """Copy the record files of `folders` into `target`; return the files' places there.

    A file is named by its tier and content, so that names do not clash and the same file is there
    once. Raises ReportError, and leaves nothing behind, where the files are not whole and of one
    suite, where `target` holds anything, or where it cannot be written.
    """
    sources = read_sources(folders)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ReportError(
            f"merge into {target}: found something there; allowed: a new or an empty folder; to "
            "fix: name another one"
        )
    half: Path | None = None
    try:
        target.absolute().parent.mkdir(parents=True, exist_ok=True)
        half = Path(tempfile.mkdtemp(prefix=".merge-", dir=target.absolute().parent))
        half.chmod(0o755)
        ownership.REPORT.claim(half)
        names = [_copy(source, half) for source in sources]
        read_sources([half])
        os.replace(half, target)
    except OSError as problem:
        raise ReportError(
            f"merge into {target}: found {problem.strerror or problem}; allowed: a place that can "
            "be written; to fix: name another one"
        ) from problem
    finally:
        if half is not None:
            shutil.rmtree(half, ignore_errors=True)
    return sorted({target / name for name in names})


def _copy(source: Source, folder: Path) -> str:
    content = source.path.read_bytes()
    tier = source.records[0].tier if source.records else "none"
    name = f"records-{tier}-{hashlib.sha256(content).hexdigest()[:16]}.jsonl"
    (folder / name).write_bytes(content)
    return name
