"""The command `ledger`."""

from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from conformance.core.ledger import Deviation
from conformance.core.record import read_records
from conformance.core.request import SuiteError
from conformance.ledger.files import ledger_of


@click.group("ledger", invoke_without_command=True)
@click.pass_context
def ledger_command(context: click.Context) -> None:
    """Check the known deviations of subjects and show them.

    A case that goes wrong exactly as its entry says is counted apart (xfail) and fails no run. One
    that passes there, and an entry of which no case runs, fail it.

    Exit codes: 0 the ledger is sound, 3 it is not.
    """
    if context.invoked_subcommand is None:
        _show(ledger_of())


@ledger_command.command("check")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
def check_command(files: tuple[Path, ...]) -> None:
    """Check ledgers of your own, by themselves and beside the suite's; show both."""
    _show(ledger_of(files))


@ledger_command.command("draft")
@click.argument("report", type=click.Path(exists=True, file_okay=False, path_type=Path))
def draft_command(report: Path) -> None:
    """Write a first ledger for what went wrong in a run, to standard output.

    Which kind a deviation is, its evidence and its cause are left for a person to fill in.
    """
    from conformance.ledger.draft import draft

    records = read_records(report)
    subjects = {(record.subject.partition("@")[0], record.subject_version) for record in records}
    if len(subjects) != 1:
        raise SuiteError(
            f"{report}: found records of {len(subjects)} subjects; allowed: one subject of one "
            "version; to fix: name the folder of one run"
        )
    name, version = subjects.pop()
    name = name.partition("==")[0]
    click.echo(draft(records, f"{name}=={version}" if version else name), nl=False)


def _show(entries: Sequence[Deviation]) -> None:
    console = Console(soft_wrap=True, highlight=False)
    if entries:
        console.print(_table(entries))
    count = f"{len(entries)} known deviation{'s' * (len(entries) != 1)}"
    console.print(f"{count}; the ledger is sound", markup=False)


def _table(entries: Sequence[Deviation]) -> Table:
    table = Table()
    for name in ("subject", "flashinfer", "tier", "cases", "outcome", "kind", "why"):
        table.add_column(name, overflow="fold")
    for entry in entries:
        subject, patterns = f"{entry.subject}{entry.versions}", "\n".join(entry.cases)
        row = subject, entry.flashinfer or "any", entry.tier, patterns, entry.outcome, entry.kind
        table.add_row(*row, entry.why)
    return table
