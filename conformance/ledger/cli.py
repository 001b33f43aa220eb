"""The command `ledger`, and reading the ledgers that a run is judged by."""

from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from conformance.core.ledger import Deviation, LedgerError, lint
from conformance.core.ledger_text import parse
from conformance.listing import TIERS, case_ids
from conformance.tiers import VERSIONS

HERE = Path(__file__).parent
_ROOT = HERE.parents[1]


def ledger_of(own: Sequence[Path] = (), *, committed: bool = True) -> list[Deviation]:
    """Return the committed ledger's entries and those of a caller's own files.

    Raise LedgerError unless every file can be read, is sound, and all fit together.
    """
    files = [*(sorted(HERE.glob("*.toml")) if committed else ()), *own]
    entries = [entry for path in files for entry in parse(_text(path), _shown(path))]
    if entries:
        lint(entries, {tier: case_ids([tier]) for tier in TIERS}, VERSIONS)
    return entries


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as problem:
        raise LedgerError(
            str(path), found=f"no readable file ({problem})", allowed="a TOML file of deviations",
            remedy="correct the path, or what is in the file",
        ) from problem  # fmt: skip


def _shown(path: Path) -> str:
    return str(path.relative_to(_ROOT)) if path.is_relative_to(_ROOT) else str(path)


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
