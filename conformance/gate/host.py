"""The command `gate-host`: on a GPU host, the suite for each subject and an archive to carry back.

A bundle's `gate` is this command. With a second bundle it also measures one beside the other.
"""

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import click
from rich.console import Console

from conformance import settings
from conformance.bundle import host, layout, manifest, start
from conformance.bundle.errors import BundleError
from conformance.bundle.manifest import Manifest
from conformance.clean import claim_report
from conformance.core import environment
from conformance.core.catalogue import REQUIREMENTS
from conformance.core.run import Exit, hopper_gpus
from conformance.gate import results
from conformance.gate.errors import GateError, ResultsError
from conformance.gate.measure import MeasureError, Place, measure
from conformance.gate.model import Side
from conformance.gate.results import Results, Run
from conformance.isolation.group import end_group
from conformance.report.sources import ReportError, read_sources
from conformance.several import worst
from conformance.subjects import ALLOWED, DEFAULT, factory_of

NO_JIT = "FLASHINFER_DISABLE_JIT"


@dataclass(frozen=True)
class Here:
    """What runs here. told: the bundle's manifest, None in a checkout. folder: it is unpacked in.

    name: of the bundle's file, for a report.
    """

    told: Manifest | None
    folder: Path
    name: str = ""

    @property
    def place(self) -> Place:
        """This FlashInfer, for the benchmark."""
        assert self.told is not None  # only a bundle is measured
        side = Side(self.name, self.told.flashinfer, self.told.wheel)
        # Each with a workspace of its own: modules of two builds of one version must not meet.
        caller = {k: v for k, v in _environment().items() if k != "FLASHINFER_WORKSPACE_BASE"}
        variables = host.environment(self.folder, self.told, _jit(), caller)
        return Place(side, variables, self.folder / "flashinfer")


def _jit() -> str | None:
    """Whether FlashInfer builds modules here, as the bundle was started: all of them, or none."""
    return None if NO_JIT in os.environ else "*"


def _environment() -> dict[str, str]:
    """The variables of a run. That smla does not know a version is no reason to refuse it here."""
    return {**os.environ, settings.TRIAL: "1"}


@click.command("gate-host")
@click.option("--subject", "subjects", multiple=True, default=(DEFAULT,), show_default=True,
              help=f"{ALLOWED}; several times for more.")  # fmt: skip
@click.option("--against", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="The baseline's bundle, to measure this one beside it.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), default=Path(), show_default=True,
              help="The archive, or a folder for it.")  # fmt: skip
@click.option("--only", multiple=True, metavar="PATTERN",
              help="Requirements such as 'PLAN-*'; no evidence for a verdict.")  # fmt: skip
@click.option("--report", type=click.Path(path_type=Path), help="Default: the setting's.")
@click.option("--rehearse", is_flag=True, help="On the CPU: the twin tier, nothing is timed.")
@click.pass_obj
def host_command(
    given: dict[str, object] | None,
    subjects: tuple[str, ...],
    against: Path | None,
    out: Path,
    only: tuple[str, ...],
    report: Path | None,
    rehearse: bool,
) -> None:
    """Run the suite on this host's GPU for each subject and pack what a gate needs to know of it.

    Exit codes: the worst of the runs', as in `run`; 3 where there is no archive.
    """
    chosen = settings.load({**(given or {}), "report": report})
    here = _here(rehearse)
    if not rehearse and not hopper_gpus():
        raise GateError(
            "gate-host: found no Hopper GPU; allowed: a host where one is visible; to fix: see "
            "`doctor`, or rehearse it on the CPU with --rehearse"
        )
    factories = {subject: factory_of(subject) for subject in subjects}
    other = _other(against, here) if against is not None else None
    requirements = _matching(only)
    console = Console(soft_wrap=True, highlight=False, emoji=False)
    root = chosen.report
    claim_report(root)
    tier = "twin" if rehearse else "hopper"
    exits, runs = [], []
    for number, subject in enumerate(factories, 1):
        folder = root / f"run-{number}"
        code = _run(subject, tier, folder, requirements)
        version = None if code is Exit.SUITE_FAILED else _version(folder)
        if version is None:
            console.print(f"{subject}: the suite failed; it is not in the archive", markup=False)
            exits.append(Exit.SUITE_FAILED)
        else:
            exits.append(code)
            runs.append(Run(subject, version, folder.name, int(code)))
    figures = []
    if other is not None:
        places = {"baseline": other.place, "candidate": here.place}
        named = {run.subject: factories[run.subject] for run in runs}
        figures = _measured(named, places, root, rehearse, console)
    if not runs:
        raise ResultsError(
            "gate-host: found no run that ended; allowed: one at least; to fix: see above why the "
            "suite failed"
        )
    told = environment.describe()
    archive = results.write(
        Results(
            flashinfer=here.told.flashinfer if here.told else str(told["flashinfer"] or ""),
            wheel=here.told.wheel if here.told else "",
            tier=tier,
            commit=told["commit"],
            sources=told["sources"],
            environment=told,
            command=("gate", *_shown(subjects, against, only, rehearse)),
            runs=tuple(runs),
            figures=tuple(figures),
            only=tuple(requirements),
            root=root,
        ),
        out,
    )
    console.print(f"to carry back: {archive} ({archive.stat().st_size / 1e3:.0f} KB)", markup=False)
    sys.exit(worst(exits))


def _here(rehearse: bool) -> Here:
    told = manifest.around(environment.ROOT)
    if told is None and not rehearse:
        raise GateError(
            "gate-host: found a checkout; allowed: a bundle, which knows the wheel that its "
            "FlashInfer is from; to fix: start `python BUNDLE.pyz gate` (`conformance bundle` "
            "makes it), or `conformance gate` where the wheels are"
        )
    return Here(told, environment.ROOT.parent, f"this bundle of {told.flashinfer}" if told else "")


def _other(against: Path, here: Here) -> Here:
    """Lay the baseline's bundle out; refuse one of another suite, or where this is none."""
    if here.told is None:
        raise GateError(
            "--against: found a checkout; allowed: a bundle beside a bundle; to fix: start "
            "`python BUNDLE.pyz gate --against OTHER.pyz`"
        )
    try:
        told = start.read_manifest(against)
        host.check_python(told)
        if told.suite != here.told.suite:
            raise GateError(
                f"--against {against.name}: found a bundle of suite {told.suite['commit']}, files "
                f"{told.suite['sources']}; allowed: {here.told.suite['commit']}, files "
                f"{here.told.suite['sources']}, as this one; to fix: build both from one checkout"
            )
        folder = layout.lay_out(against.resolve(), start.checked(against, None), told, _jit())
    except BundleError as problem:
        raise GateError(f"--against {against}: {problem}") from problem
    return Here(told, folder, against.name)


def _matching(patterns: Sequence[str]) -> list[str]:
    """The requirements that the patterns name; GateError for one that names none."""
    for pattern in patterns:
        if not any(fnmatchcase(id, pattern) for id in REQUIREMENTS):
            raise GateError(
                f"--only: found {pattern!r}, which is no requirement; allowed: patterns of "
                f"{', '.join(REQUIREMENTS)}; to fix: correct it"
            )
    return [id for id in REQUIREMENTS if any(fnmatchcase(id, p) for p in patterns)]


def _run(subject: str, tier: str, folder: Path, requirements: Sequence[str]) -> Exit:
    """Run the suite on one subject in a process of its own, which says what it does here."""
    command = [sys.executable, "-m", "conformance", "run", "--tier", tier, "--subject", subject]
    command += ["--report", str(folder), *(f"--requirement={id}" for id in requirements)]
    process = subprocess.Popen(
        command, env=_environment(), stdin=subprocess.DEVNULL, start_new_session=True
    )
    try:
        code = process.wait()
    finally:
        end_group(process)
    return Exit(code) if code in [*Exit] else Exit.SUITE_FAILED


def _version(folder: Path) -> str | None:
    """What the subject called its version, as the run's records tell; None where it has none."""
    try:
        sources = read_sources([folder])
    except ReportError:
        return None
    return next((r.subject_version for source in sources for r in source.records), None)


def _measured(
    factories: Mapping[str, str],
    places: Mapping[str, Place],
    root: Path,
    rehearse: bool,
    console: Console,
) -> list[str]:
    """Measure both bundles for each subject; names of the files with the figures, below `root`."""
    names = []
    for number, (subject, factory) in enumerate(factories.items(), 1):
        try:
            with tempfile.TemporaryDirectory(prefix="gate-measure-") as scratch:
                found = measure(factory, places, Path(scratch), rehearse=rehearse)
        except MeasureError as problem:
            console.print(f"{subject}: not measured: {problem}", markup=False)
            continue
        names.append(f"measured-{number}.json")
        (root / names[-1]).write_text(found.text())
    return names


def _shown(
    subjects: Sequence[str], against: Path | None, only: Sequence[str], rehearse: bool
) -> list[str]:
    """The command's arguments, without this host's folders."""
    words = [word for subject in subjects for word in ("--subject", subject)]
    words += ["--against", against.name] if against is not None else []
    words += [word for pattern in only for word in ("--only", shlex.quote(pattern))]
    return [*words, *(["--rehearse"] if rehearse else [])]
