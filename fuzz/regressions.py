"""The corpus: minimal histories that were findings once, each by name, with what it showed."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from conformance.core.catalogue import REQUIREMENTS
from conformance.tiers import VERSIONS
from fuzz.history import History, HistoryError

SCHEMA = "smla-corpus/1"
CORPUS = Path(__file__).with_name("corpus")
_NAMES = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")


class CorpusError(ValueError):
    """A corpus file that says less, more or something else than an entry does."""

    def __init__(self, where: str, *, found: object, allowed: str, remedy: str) -> None:
        super().__init__(f"{where}: found {found}; allowed: {allowed}; to fix: {remedy}")


@dataclass(frozen=True)
class Regression:
    """A history that was a finding. name: of its file, and of its case in the suite.

    shows: a sentence. subject: who showed it, as `--subject` takes it. versions: FlashInfer
    versions on which the twin shows it. kind: of the finding, as `fuzz.findings.kind` says it.
    requirement: the id that the finding speaks for. fault: planted in the finding's frame, or "".
    hazard: a name in conformance/hazards.toml, or "".
    """

    name: str
    shows: str
    subject: str
    versions: tuple[str, ...]
    kind: str
    requirement: str
    fault: str
    hazard: str
    history: History

    def dumps(self) -> str:
        """Return its JSON text; the same entry has the same bytes."""
        table = {field: getattr(self, field) for field in _TEXTS}
        table |= {"schema": SCHEMA, "versions": list(self.versions)}
        table["history"] = json.loads(self.history.dumps())
        return json.dumps(table, indent=1, sort_keys=True) + "\n"


_TEXTS = ("shows", "subject", "kind", "requirement", "fault", "hazard")


def read(path: Path) -> Regression:
    """Return the entry of a file; raise CorpusError, or HistoryError for its history."""
    try:
        table = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as problem:
        raise CorpusError(
            str(path), found=f"no JSON ({problem})", allowed="a readable JSON object",
            remedy="take the text that Regression.dumps makes",
        ) from problem  # fmt: skip
    name, keys = path.stem, {"schema", "versions", "history", *_TEXTS}
    if not name or set(name) - _NAMES:
        raise CorpusError(
            str(path), found=f"the name {name!r}", allowed="small letters, digits and hyphens",
            remedy="rename the file: the name is part of a case's id",
        )  # fmt: skip
    if not isinstance(table, dict) or set(table) != keys:
        found = sorted(table) if isinstance(table, dict) else type(table).__name__
        raise CorpusError(
            str(path), found=found, allowed=f"an object of {', '.join(sorted(keys))}",
            remedy="add what is missing, take out what is not known",
        )  # fmt: skip
    _expect(path, "schema", table["schema"], table["schema"] == SCHEMA, repr(SCHEMA))
    for key in _TEXTS:
        _expect(path, key, table[key], isinstance(table[key], str), "a string")
    shows, subject, versions = table["shows"], table["subject"], table["versions"]
    _expect(path, "shows", shows, len(shows) > 30 and shows.endswith("."), "a sentence")
    _expect(path, "subject", subject, ":" in subject, "package.module:factory")
    sound = isinstance(versions, list) and versions == [v for v in VERSIONS if v in versions]
    allowed = f"some of {', '.join(VERSIONS)}, in this order"
    _expect(path, "versions", versions, sound and bool(versions), allowed)
    known = table["requirement"] in REQUIREMENTS
    _expect(path, "requirement", table["requirement"], known, "an id of the catalogue")
    history = _history(path, table["history"])
    planted = {turn.fault.kind for turn in history.turns if turn.fault} | {""}
    fault = table["fault"]
    _expect(path, "fault", fault, fault in planted, f"what is planted: {sorted(planted)}")
    texts = {key: table[key] for key in _TEXTS}
    return Regression(name=name, versions=tuple(versions), history=history, **texts)


def _expect(path: Path, key: str, found: object, holds: bool, allowed: str) -> None:
    if not holds:
        raise CorpusError(
            f"{path}: {key}", found=repr(found), allowed=allowed, remedy="correct the entry"
        )


def _history(path: Path, table: Any) -> History:
    try:
        return History.loads(json.dumps(table))
    except HistoryError as problem:
        raise HistoryError.of(path, problem) from problem


@cache
def regressions(folder: Path = CORPUS) -> dict[str, Regression]:
    """Return every entry of a folder by name, in the order of names."""
    return {path.stem: read(path) for path in sorted(folder.glob("*.json"))}
