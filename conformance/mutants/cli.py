"""The command `mutants`."""

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from conformance.core.environment import describe
from conformance.core.run import Exit
from conformance.mutants.exceptions import UNPROVABLE
from conformance.mutants.hunt import Fate, Finding, hunt, provable, without_kill
from conformance.mutants.matrix import (
    Row,
    matrix,
    merged,
    proven,
    read_matrix,
    write_matrix,
)
from conformance.mutants.model import Mutant, MutantError, read_mutants
from conformance.mutants.show import matrix_lines

OWN = Path(__file__).parent
"""The folder of the suite's own mutants, one file per room."""

_FILE = click.Path(path_type=Path)


@click.command("mutants")
@click.option(
    "--mutants", "paths", multiple=True, type=_FILE,
    help="A TOML file of them, or a folder of such; several times for more. Default: our own.",
)  # fmt: skip
@click.option("--name", "names", multiple=True, help="Only this mutant; several times for more.")
@click.option("-n", "--workers", type=int, default=os.cpu_count() or 1, help="Hunts at a time.")
@click.option(
    "--matrix", "wide", is_flag=True, help="Try every requirement on each mutant: minutes for each."
)
@click.option(
    "--cases-per-id", type=click.IntRange(0), default=3, show_default=True,
    help="With --matrix: cases of each requirement but the named one; 0: all.",
)  # fmt: skip
@click.option(
    "--prior", is_flag=True,
    help="With --matrix: leave out requirements behind the named one, never the first to notice.",
)  # fmt: skip
@click.option(
    "--matrix-file", type=_FILE, help="JSON file of rows: those found are added to it, or replaced."
)
@click.option(
    "--merge", "others", multiple=True, type=_FILE,
    help="Run nothing; take the rows of this file into --matrix-file.",
)  # fmt: skip
def mutants_command(
    paths: tuple[Path, ...],
    names: tuple[str, ...],
    workers: int,
    wide: bool,
    cases_per_id: int,
    prior: bool,
    matrix_file: Path | None,
    others: tuple[Path, ...],
) -> None:
    """Plant deliberate faults and see the suite find each one.

    Without a selection, a requirement that no mutant proves is a failure: by default one that no
    mutant names and is killed by, with --matrix one that is no mutant's first killer in the
    catalogue's order.

    Exit codes: 0 every mutant was killed, 1 one survived or a requirement is unproven, 2 a tool
    that some need is missing, 3 a mutant is invalid or cannot be planted.
    """
    console = Console(soft_wrap=True, highlight=False)
    try:
        known = read_mutants(paths or [OWN])
        if unknown := set(names) - {mutant.name for mutant in known}:
            raise MutantError(f"no mutant named {', '.join(sorted(unknown))}")
        chosen = [mutant for mutant in known if not names or mutant.name in names]
        whole = not names and not paths
        if (others and matrix_file is None) or (matrix_file and not wide and not others):
            raise MutantError("--matrix-file goes with --matrix or --merge, --merge with it")
        if wide or others:
            make = partial(matrix, workers=workers, cases_per_id=cases_per_id, prior=prior)
            runs = [] if others else chosen
            code = _wide(console, known, runs, make, matrix_file, others, whole)
        else:
            code = _fast(console, chosen, workers, whole)
    except MutantError as problem:
        console.print(f"error: {problem}", markup=False)
        code = Exit.SUITE_FAILED
    sys.exit(code)


def _fast(console: Console, chosen: list[Mutant], workers: int, whole: bool) -> Exit:
    """Hunt each mutant with the requirement it names."""
    findings = hunt(chosen, workers, lambda found: _tell(console, found))
    console.print(_table(findings))
    killed = sum(found.fate is Fate.KILLED for found in findings)
    console.print(f"{killed} of {len(findings)} mutants killed")
    fates = {found.fate for found in findings}
    unproven = without_kill(f for f in findings) if whole and Fate.NOT_RUN not in fates else []
    _unproven(console, unproven, "no mutant names it and is killed by it")
    if Fate.INVALID in fates:
        return Exit.SUITE_FAILED
    if Fate.SURVIVED in fates or unproven:
        return Exit.DOES_NOT
    return Exit.INCOMPLETE if Fate.NOT_RUN in fates else Exit.CONFORMS


def _wide(
    console: Console,
    known: list[Mutant],
    chosen: list[Mutant],
    make: Callable[..., list[Row]],
    file: Path | None,
    others: Sequence[Path],
    whole: bool,
) -> Exit:
    """Make rows for `chosen`, or take them from files, and judge what all of them prove."""
    rows = read_matrix(file) if file and file.exists() else []
    for other in others:
        rows = merged(rows, read_matrix(other), known)
    invalid = False

    def told(mutant: Mutant, row: Row | str) -> None:
        nonlocal rows, invalid
        if isinstance(row, str):
            invalid = True
            _say(console, f"invalid {mutant.name}", row)
            return
        rows = merged(rows, [row], known)
        if file:  # at once: what a run of hours has found is not lost with it
            write_matrix(file, rows)
        first = row.first_killer(provable()) or "none"
        _say(console, f"{_fate(row)} {mutant.name}: first noticed by {first}, {row.seconds:.0f} s")

    made = make(chosen, environment=describe(), told=told)
    if file:
        write_matrix(file, merged(rows, [], known))
    shown = rows if file or others else made
    for line in matrix_lines(shown, provable()):
        click.echo(line)
    survivors = [row.mutant for row in shown if row.requirement not in row.killed]
    if survivors:
        console.print(f"survived: {', '.join(survivors)}", markup=False)
    missing = [mutant.name for mutant in known if mutant.name not in {r.mutant for r in shown}]
    if missing and whole:
        console.print(f"without a row: {', '.join(missing)}", markup=False)
    by = proven(shown, provable())
    unproven = [id for id in provable() if not by[id] and id not in UNPROVABLE] if whole else []
    _unproven(console, unproven, "it is no mutant's first killer")
    if invalid:
        return Exit.SUITE_FAILED
    if survivors or unproven:
        return Exit.DOES_NOT
    return Exit.INCOMPLETE if missing and whole else Exit.CONFORMS


def _fate(row: Row) -> Fate:
    return Fate.KILLED if row.requirement in row.killed else Fate.SURVIVED


def _tell(console: Console, found: Finding) -> None:
    said = [] if found.fate is Fate.KILLED else [found.message]
    _say(console, f"{found.fate} {found.mutant.name}", *said)


def _say(console: Console, *lines: str) -> None:
    """Print lines at once, into a pipe too."""
    for line in lines:
        console.print(line, markup=False)
    console.file.flush()


def _unproven(console: Console, ids: Sequence[str], why: str) -> None:
    for id in ids:
        console.print(f"unproven: {id}, {why}", markup=False)


def _table(findings: list[Finding]) -> Table:
    table = Table("mutant", "requirement", "fate", "noticed by")
    for found in findings:
        table.add_row(found.mutant.name, found.mutant.requirement, found.fate, found.by)
    return table
