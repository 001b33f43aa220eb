"""Record files of any number of folders, whole and of one suite, or an error that says why not."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.core.record import READABLE, Record, RecordError, load
from conformance.core.request import SuiteError


class ReportError(SuiteError):
    """Records cannot be reported or merged: absent, incomplete, or of another schema or suite."""


@dataclass(frozen=True)
class Source:
    """One record file. environment: its header's; records: one per case, as they were written."""

    path: Path
    environment: Mapping[str, Any]
    records: tuple[Record, ...]

    @property
    def commit(self) -> str | None:
        """The suite's commit, None where there was no checkout."""
        return self.environment.get("commit")

    @property
    def sources(self) -> str | None:
        """The digest of the suite's own files, None in records that have none."""
        return self.environment.get("sources")


def read_sources(folders: Sequence[Path]) -> list[Source]:
    """Return every record file below `folders`; raise ReportError unless all are of one suite.

    One suite: one schema, one commit, one digest of the suite's files. Where a commit is not known
    the digest decides. Nothing of an incomplete file is used.
    """
    paths = [path for folder in _distinct(folders) for path in _files(folder)]
    problems = []
    sources = []
    for path in paths:
        try:
            sources.append(_read(path))
        except ReportError as problem:
            problems.append(str(problem))
    if problems:
        raise ReportError("\n".join(problems))
    of_one_suite(sources)
    return sources


def _distinct(folders: Sequence[Path]) -> list[Path]:
    return list({folder.resolve(): folder for folder in folders}.values())


def _files(folder: Path) -> list[Path]:
    remedy = "to fix: name the folder that `python -m conformance run --report FOLDER` wrote"
    if not folder.is_dir():
        found = "a file" if folder.exists() else "nothing there"
        raise ReportError(f"report folder {folder}: found {found}; allowed: a folder; {remedy}")
    paths = sorted(folder.glob("records-*.jsonl"))
    if not paths:
        raise ReportError(
            f"report folder {folder}: found no record file; allowed: records-*.jsonl; {remedy}"
        )
    return paths


def _read(path: Path) -> Source:
    remedy = f"to fix: run again into {path.parent}, or leave the folder out"
    try:
        with path.open() as file:
            found = json.loads(file.readline()).get("schema")
        if found not in READABLE:
            raise ReportError(
                f"{path}: found schema {found!r}; allowed: {', '.join(READABLE)}; to fix: report "
                "with the suite that wrote it, or run again with this one"
            )
        file_ = load(path)
    except (OSError, RecordError, ValueError, TypeError, KeyError, AttributeError) as problem:
        said = str(problem).partition("\n")[0]
        raise ReportError(
            f"{path}: found no record file ({said}); allowed: whole JSON lines; {remedy}"
        ) from problem
    if not file_.whole:
        raise ReportError(
            f"{path}: found no footer, so the process that wrote it did not finish; allowed: "
            f"complete files; {remedy}"
        )
    if file_.open:
        raise ReportError(
            f"{path}: found {next(iter(file_.open))} started and without a record; allowed: "
            f"complete files; {remedy}"
        )
    return Source(path, file_.header.get("environment") or {}, tuple(file_.records.values()))


def of_one_suite(sources: Sequence[Source]) -> None:
    """Raise ReportError where two files are, or may be, of two states of the suite."""
    remedy = "to fix: run both with one checkout without changes, or report them apart"
    allowed = "allowed: records of one suite"
    for what in ("commit", "sources"):
        known: dict[str, Path] = {}
        for source in sources:
            if (value := getattr(source, what)) is not None:
                known.setdefault(value, source.path)
        if len(known) > 1:
            (one, first), (other, second) = list(known.items())[:2]
            name = "commit" if what == "commit" else "digest of the suite's files"
            raise ReportError(
                f"found {name} {one} in {first} and {other} in {second}; {allowed}; {remedy}"
            )
    start = sources[0]
    for source in sources[1:]:
        same = any(
            getattr(start, what) is not None and getattr(source, what) is not None
            for what in ("commit", "sources")
        )
        if not same and source.path.parent != start.path.parent:
            raise ReportError(
                f"found no commit in {start.path} or {source.path}, which may be of two suites; "
                f"{allowed}; {remedy}"
            )
