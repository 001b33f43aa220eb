"""Which function of the headers behind the planner is another in the candidate: a plan's cause."""

from __future__ import annotations

import re
from pathlib import Path

from conformance.twin import compiled

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_HEAD = re.compile(r"^(?:template\b.*>\s*)?(?:[\w:<>,&*\s]+?\s)?[*&]?(\w+)\s*(?:\(|\{|:\s)")
_NO_NAME = frozenset({"if", "for", "while", "switch", "namespace", "extern", "return"})


def changed(before: Path, after: Path) -> str:
    """The first change in the headers that the planner is compiled from, as `FILE: FUNCTION`.

    before, after: the packages' data folders. FILE is relative to them; comments and blanks are
    no change. Empty where nothing changed.
    """
    names = [path.relative_to(after) for path in compiled.sources(after)]
    for name in names:
        found = _first(before / name, after / name)
        if found is not None:
            return f"{name.as_posix()}: {found}" if found else name.as_posix()
    return ""


def _first(before: Path, after: Path) -> str | None:
    """The function that stands around the first line that differs; None where none does."""
    if not before.is_file():
        return ""
    old, new = _lines(before), _lines(after)
    at = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a[0] != b[0]), None)
    if at is None:
        if len(old) == len(new):
            return None
        at = min(len(old), len(new), len(new) - 1)
    return next((name for _, name in reversed(new[: at + 1]) if name), "")


def _lines(path: Path) -> list[tuple[str, str]]:
    """A file's lines without comments and blanks, each with the name that it begins to define.

    Definitions are told by lines that start in the first column, as both the planner's headers and
    clang-format have them.
    """
    text = _COMMENT.sub(lambda c: "\n" * c[0].count("\n"), path.read_text(errors="replace"))
    lines = []
    for line in text.splitlines():
        bare = "".join(line.split())
        if bare:
            lines.append((bare, _defined(line)))
    return lines


def _defined(line: str) -> str:
    if not line or line[0].isspace() or line[0] in "#}":
        return ""
    found = _HEAD.match(line)
    return found[1] if found and found[1] not in _NO_NAME else ""
