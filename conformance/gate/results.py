"""Results to carry back from a GPU host: one archive of records and figures, and what they are of.

`results.json` in it names the suite, the FlashInfer wheel, the subjects, the machine and the
command, and holds the SHA-256 of every other file.
"""

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from conformance.bundle.archive import files_below, pack_tar, sha256, unpack_tar
from conformance.bundle.errors import UnsafeArchive
from conformance.core import environment
from conformance.gate.errors import ResultsError
from conformance.gate.model import Side
from conformance.report.sources import ReportError, Source, read_sources

NAME = "results.json"
SCHEMA = "smla-results/1"
SUFFIX = ".tar.xz"
MAX_BYTES = 1 << 30  # unpacked; the records of a whole run are about 30 MB
_AGAIN = "to fix: copy it again, or make it again on the GPU host"


@dataclass(frozen=True)
class Run:
    """One subject's run. subject: as the command line named it; version: its own.

    folder: of its records, relative to the archive's root. exit: the run's exit code, 0 to 3.
    """

    subject: str
    version: str
    folder: str
    exit: int


@dataclass(frozen=True)
class Results:
    """What an archive holds.

    flashinfer, wheel: the version, and the SHA-256 of the wheel that the modules were built from.
    tier: hopper, or twin for a rehearsal, which is evidence of nothing. commit, sources: the
    suite's, as in `core/environment.py`. environment: of the machine, the GPU in it. command:
    what made the archive. only: the requirements that the runs were restricted to, none for the
    whole suite. figures: JSON files with what was measured, relative to the archive's root.
    files: every file's SHA-256 by name. root: where it is unpacked; not written.
    """

    flashinfer: str
    wheel: str
    tier: str
    commit: str | None
    sources: str
    environment: Mapping[str, Any]
    command: tuple[str, ...]
    runs: tuple[Run, ...]
    figures: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    schema: str = SCHEMA
    root: Path = Path()

    @property
    def rehearsal(self) -> bool:
        """Whether it was made without the GPU, so that it proves nothing about one."""
        return self.tier != "hopper"

    def folder(self, run: Run) -> Path:
        """Where a run's records are, for `conformance.report.sources.read_sources`."""
        return self.root / run.folder

    def records(self, run: Run) -> list[Source]:
        """A run's record files, whole and of one suite; raise ReportError otherwise."""
        return read_sources([self.folder(run)])

    def figure(self, name: str) -> Any:
        """The JSON value of a file of figures."""
        return json.loads((self.root / name).read_text())


def file_name(results: Results) -> str:
    """The archive's usual name."""
    return f"smla-results-{results.flashinfer}-{results.tier}-{results.wheel[:12]}{SUFFIX}"


def write(results: Results, out: Path) -> Path:
    """Pack the runs' record files and the figures below `results.root`; return the archive's path.

    out: the archive, or a folder for it. The same files give the same bytes. Raises ResultsError
    where a run has no whole records, or where `out` cannot be written.
    """
    archive = out / file_name(results) if out.is_dir() else out
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".results-", dir=archive.parent) as scratch:
            stage = Path(scratch, "stage")
            for name in _carried(results):
                (stage / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(results.root / name, stage / name)
            files = {str(name): sha256(stage / name) for name in files_below(stage)}
            whole = replace(results, files=files, root=stage)
            _check_records(archive, whole)
            record = {key: value for key, value in asdict(whole).items() if key != "root"}
            (stage / NAME).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
            pack_tar(stage, archive)
    except OSError as problem:
        raise ResultsError(
            f"results {archive}: found {problem.strerror or problem}; allowed: a place that can be "
            "written; to fix: name another one"
        ) from problem
    return archive


def read(archive: Path, scratch: Path, suite: Mapping[str, Any] | None = None) -> Results:
    """Unpack an archive into a new or empty folder and return what it holds, all of it checked.

    suite: commit and sources that it must be of; this suite's own when left out. Raises
    ResultsError for an archive that is not whole, was changed, or is of another suite; nothing is
    left in `scratch` then.
    """
    if scratch.exists() and any(scratch.iterdir()):
        raise ResultsError(
            f"{scratch}: found files in it; allowed: a new or empty folder; to fix: name another"
        )
    try:
        unpack_tar(archive, scratch, most=MAX_BYTES)
        results = _load(archive, scratch)
        _check_files(archive, results)
        _check_suite(archive, results, suite or environment.describe())
        _check_records(archive, results)
    except (UnsafeArchive, OSError) as problem:
        shutil.rmtree(scratch, ignore_errors=True)
        raise ResultsError(
            f"results {archive}: found {problem}; allowed: a whole archive that `gate` wrote on a "
            f"GPU host; {_AGAIN}"
        ) from problem
    except ResultsError:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return results


def side_of(results: Results, sides: Sequence[Side]) -> Side:
    """The one of the gate's packages that the results are of; raise ResultsError for neither.

    Told by the wheel's digest: two builds of one version are two packages.
    """
    for side in sides:
        if side.digest == results.wheel:
            return side
    allowed = " or ".join(f"{side.version} ({side.digest[:12]})" for side in sides)
    raise ResultsError(
        f"results of FlashInfer {results.flashinfer}: found a wheel of SHA-256 "
        f"{results.wheel[:12] or '(none)'}; allowed: {allowed}; to fix: build the bundle from the "
        "wheel that is compared here, and run its gate again"
    )


def _carried(results: Results) -> list[str]:
    """Names of the files to pack."""
    names = [*results.figures]
    for run in results.runs:
        files = sorted((results.root / run.folder).glob("records-*.jsonl"))
        names += [file.relative_to(results.root).as_posix() for file in files]
    return names


def _load(archive: Path, root: Path) -> Results:
    try:
        record = json.loads((root / NAME).read_text())
        schema = record["schema"]
    except (OSError, ValueError, TypeError, KeyError) as problem:
        raise ResultsError(
            f"results {archive}: found no readable {NAME} ({problem!r}); allowed: an archive that "
            f"`gate` wrote on a GPU host; {_AGAIN}"
        ) from problem
    if schema != SCHEMA:
        raise ResultsError(
            f"results {archive}: found schema {schema!r}; allowed: {SCHEMA!r}; to fix: read it "
            "with the suite that wrote it, or make it again with a bundle of this one"
        )
    try:
        runs = tuple(Run(**run) for run in record.pop("runs"))
        lists: dict[str, Any] = {
            key: tuple(record.pop(key)) for key in ("command", "figures", "only")
        }
        results = Results(**record, **lists, runs=runs, root=root)
    except (TypeError, KeyError) as problem:
        raise ResultsError(
            f"results {archive}: found not what {SCHEMA!r} holds ({problem}); allowed: an archive "
            f"that `gate` wrote on a GPU host; {_AGAIN}"
        ) from problem
    named = {*results.figures, *(f"{run.folder}/" for run in results.runs)}
    if stray := [name for name in named if name.startswith("/") or ".." in name.split("/")]:
        raise ResultsError(
            f"results {archive}: found {stray[0]!r}, which leads outside; allowed: names in the "
            "archive; to fix: do not use this file"
        )
    return results


def _check_files(archive: Path, results: Results) -> None:
    found = {str(name): sha256(results.root / name) for name in files_below(results.root)}
    found.pop(NAME)
    wrong = [f"{name} (missing)" for name in results.files if name not in found]
    wrong += [f"{name} (not told)" for name in found if name not in results.files]
    wrong += [f"{n} (changed)" for n, digest in found.items() if results.files.get(n) != digest]
    wrong += [f"{name} (no such figures)" for name in results.figures if name not in found]
    if wrong:
        raise ResultsError(
            f"results {archive}: found {len(wrong)} files that differ from {NAME}: "
            f"{', '.join(sorted(wrong)[:5])}; allowed: the files as they were written; {_AGAIN}"
        )


def _check_suite(archive: Path, results: Results, suite: Mapping[str, Any]) -> None:
    for what, name in (("commit", "commit"), ("sources", "digest of the suite's files")):
        ours, theirs = suite.get(what), getattr(results, what)
        if ours and theirs and ours != theirs:
            raise ResultsError(
                f"results {archive}: found {name} {theirs}; allowed: {ours}, this suite's; to fix: "
                "run the gate from the checkout that the bundle was made from, or make the bundle "
                "and the results again"
            )
    if not results.sources:
        raise ResultsError(
            f"results {archive}: found no digest of the suite's files; allowed: "
            f"{suite.get('sources')}, this suite's; {_AGAIN}"
        )


def _check_records(archive: Path, results: Results) -> None:
    """Refuse records that are not whole, or not of what `results.json` tells."""
    for run in results.runs:
        try:
            sources = results.records(run)
        except ReportError as problem:
            raise ResultsError(f"results {archive}, {run.subject}: {problem}") from problem
        for source in sources:
            told: dict[str, tuple[object, object]] = {"sources": (source.sources, results.sources)}
            told["commit"] = (source.commit, results.commit)
            for record in source.records:
                told["tier"] = (record.tier, results.tier)
                told["subject"] = (record.subject, run.subject)
                told["its version"] = (record.subject_version, run.version)
                if not results.rehearsal:
                    told["FlashInfer"] = (record.flashinfer, results.flashinfer)
                for what, (found, allowed) in told.items():
                    if found != allowed:
                        raise ResultsError(
                            f"results {archive}, {source.path.name}: found {what} {found!r}; "
                            f"allowed: {allowed!r}, as {NAME} tells; {_AGAIN}"
                        )
