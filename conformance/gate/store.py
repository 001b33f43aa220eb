"""Gate results as a JSON file: written whole or not at all, read back with its schema checked."""

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance.gate.errors import GateError
from conformance.gate.model import (
    SCHEMA,
    Change,
    Figure,
    Finding,
    GateResult,
    Side,
    Status,
    TierResult,
    Weight,
)

JSON, MARKDOWN, PAGE = "gate.json", "gate.md", "gate.html"
"""What a gate leaves in its report folder."""


class StoreError(GateError):
    """A file of gate results cannot be read or written."""


def write_text(path: Path, text: str) -> None:
    """Write a file whole, or leave what was there; StoreError where it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
                file.write(text)
            os.chmod(name, 0o644)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as problem:
        raise StoreError(
            f"{path}: found {problem.strerror}; allowed: a file that can be written; to fix: name "
            "another report folder"
        ) from problem


def clear(report: Path) -> None:
    """Take an earlier verdict out of a report folder; StoreError where that is not writable."""
    try:
        report.mkdir(parents=True, exist_ok=True)
        for name in (JSON, MARKDOWN, PAGE):
            (report / name).unlink(missing_ok=True)
        with tempfile.TemporaryFile(dir=report):
            pass
    except OSError as problem:
        raise StoreError(
            f"report folder {report}: found {problem.strerror}; allowed: a folder that can be "
            "written; to fix: name another with --report"
        ) from problem


def dumps(results: Sequence[GateResult]) -> str:
    """The JSON text of results, one per subject."""
    value = {"schema": SCHEMA, "results": [result.as_json() for result in results]}
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def read(path: Path) -> list[GateResult]:
    """Read results back; StoreError for another schema or a damaged file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        schema = value["schema"]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise StoreError(
            f"{path}: found no gate results ({problem!r}); allowed: a whole {JSON} of schema "
            f"{SCHEMA}; to fix: run the gate again"
        ) from problem
    if schema != SCHEMA:
        raise StoreError(
            f"{path}: found schema {schema!r}; allowed: {SCHEMA}; to fix: run the gate again with "
            "this suite"
        )
    try:
        return [_result(found) for found in value["results"]]
    except (KeyError, TypeError, ValueError) as problem:
        raise StoreError(
            f"{path}: found a result that is not whole ({problem!r}); allowed: what schema "
            f"{SCHEMA} holds; to fix: run the gate again"
        ) from problem


def _result(value: Mapping[str, Any]) -> GateResult:
    tiers = tuple(_tier(found) for found in value["tiers"])
    sides = {name: Side(**value[name]) for name in ("baseline", "candidate")}
    return GateResult(**{**value, **sides, "tiers": tiers})


def _tier(value: Mapping[str, Any]) -> TierResult:
    findings = tuple(
        Finding(**{**f, "change": Change(f["change"]), "weight": Weight(f["weight"])})
        for f in value["findings"]
    )
    figures = tuple(Figure(**found) for found in value["figures"])
    status = Status(value["status"])
    return TierResult(**{**value, "status": status, "findings": findings, "figures": figures})
