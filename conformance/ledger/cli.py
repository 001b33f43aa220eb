"""The command `ledger`."""

from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from conformance.core.ledger import Deviation
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
