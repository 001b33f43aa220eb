"""Reading the ledgers that a run is judged by."""

from collections.abc import Collection, Sequence
from pathlib import Path

from conformance.core.ledger import Deviation, LedgerError, lint
from conformance.core.ledger_text import parse
from conformance.twin.semantics import BY_VERSION

HERE = Path(__file__).parent
_ROOT = HERE.parents[1]


def ledger_of(
    own: Sequence[Path] = (), *, committed: bool = True, subjects: Collection[str] | None = None
) -> list[Deviation]:
    """Return the committed ledger's entries and those of a caller's own files.

    subjects: names whose entries are wanted, None for all. Raise LedgerError unless every file can
    be read, is well-formed, and the wanted entries fit the cases and each other.
    """
    files = [*(sorted(HERE.glob("*.toml")) if committed else ()), *own]
    entries = [entry for path in files for entry in parse(_text(path), _shown(path))]
    entries = [entry for entry in entries if subjects is None or entry.subject in subjects]
    if entries:
        from conformance.listing import TIERS, case_ids  # torch stands behind it

        lint(entries, {tier: case_ids([tier]) for tier in TIERS}, tuple(BY_VERSION))
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
