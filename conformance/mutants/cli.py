"""The command `mutants`."""

import os
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from conformance.core.run import Exit
from conformance.mutants.hunt import Fate, Finding, hunt
from conformance.mutants.model import MutantError, read_mutants

OWN = Path(__file__).parent / "mutants.toml"


@click.command("mutants")
@click.option(
    "--mutants", "path", type=click.Path(path_type=Path), default=OWN, help="A TOML file of them."
)
@click.option("--name", "names", multiple=True, help="Only this mutant; several times for more.")
@click.option("-n", "--workers", type=int, default=os.cpu_count() or 1, help="Hunts at a time.")
def mutants_command(path: Path, names: tuple[str, ...], workers: int) -> None:
    """Plant deliberate faults and see the suite find each one.

    Exit codes: 0 every mutant was killed, 1 one survived, 3 one is invalid or cannot be planted.
    """
    console = Console(soft_wrap=True, highlight=False)
    try:
        mutants = read_mutants(path)
        if unknown := set(names) - {mutant.name for mutant in mutants}:
            raise MutantError(f"{path}: no mutant named {', '.join(sorted(unknown))}")
        mutants = [mutant for mutant in mutants if not names or mutant.name in names]
        findings = hunt(mutants, workers, lambda found: _tell(console, found))
    except MutantError as problem:
        console.print(f"error: {problem}", markup=False)
        sys.exit(Exit.SUITE_FAILED)
    console.print(_table(findings))
    killed = sum(found.fate is Fate.KILLED for found in findings)
    console.print(f"{killed} of {len(findings)} mutants killed")
    if any(found.fate is Fate.INVALID for found in findings):
        sys.exit(Exit.SUITE_FAILED)
    sys.exit(Exit.CONFORMS if killed == len(findings) else Exit.DOES_NOT)


def _tell(console: Console, found: Finding) -> None:
    console.print(f"{found.fate} {found.mutant.name}", markup=False)
    if found.fate is not Fate.KILLED:
        console.print(found.message, markup=False)


def _table(findings: list[Finding]) -> Table:
    table = Table("mutant", "requirement", "fate", "noticed by")
    for found in findings:
        table.add_row(found.mutant.name, found.mutant.requirement, found.fate, found.by)
    return table
