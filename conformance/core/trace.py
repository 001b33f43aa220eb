"""Schedules recorded on a GPU, and their files."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from conformance.core.environment import describe

SCHEMA = "smla-schedule-trace/1"


class TraceError(ValueError):
    """A trace file cannot be read or is of another schema."""


@dataclass(frozen=True)
class Trace:
    """A schedule as the device held it after the clamp, and what it was made from.

    planned, valid: planned length and valid count of each row. arrays: by name, the used part of
    each array of the int workspace.
    """

    name: str
    num_heads: int
    num_sms: int
    head_dim: int
    planned: Sequence[int]
    valid: Sequence[int]
    plan_info: Sequence[int]
    arrays: Mapping[str, Sequence[int]]

    def write(self, path: Path) -> None:
        """Write the trace with the environment it was seen in."""
        path.parent.mkdir(parents=True, exist_ok=True)
        value = {"schema": SCHEMA, "environment": describe(), "trace": asdict(self)}
        path.write_text(json.dumps(value, separators=(",", ":")) + "\n")


def read_traces(folder: Path) -> list[Trace]:
    """Return the traces of a folder by file name; raise TraceError for a file that is none."""
    return [_read(path) for path in sorted(folder.glob("*.json"))]


def _read(path: Path) -> Trace:
    try:
        value: Any = json.loads(path.read_text())
    except json.JSONDecodeError as problem:
        raise TraceError(f"{path.name}: not JSON ({problem})") from problem
    if value.get("schema") != SCHEMA:
        raise TraceError(f"{path.name}: schema {value.get('schema')!r}, expected {SCHEMA!r}")
    try:
        return Trace(**value["trace"])
    except (KeyError, TypeError) as problem:
        raise TraceError(f"{path.name}: fields are missing or unknown ({problem})") from problem
