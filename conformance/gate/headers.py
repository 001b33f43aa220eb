"""Which function of the headers behind the planner is another in the candidate: a plan's cause."""

from __future__ import annotations

import re
from pathlib import Path

from conformance.twin import compiled

_ENTRY = "MLAPlan"
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_HEAD = re.compile(r"^(?:template\b.*>\s*)?(?:[\w:<>,&*\s]+?\s)?[*&]?(\w+)\s*(?:\(|\{|:\s)")
_NO_NAME = frozenset({"if", "for", "while", "switch", "namespace", "extern", "return"})


def changed(before: Path, after: Path) -> str:
    """The change in the planner's headers that its plans come from, as `FILE: FUNCTION`.

    before, after: the packages' data folders, of which the first one's planner compiles. FILE is
    relative to them; comments and blanks are no change. MLAPlan itself is named first, then what
    its text names, then anything. Empty where nothing changed.
    """
    old: dict[tuple[str, str], str] = {}
    new: dict[tuple[str, str], str] = {}
    for path in compiled.sources(before):
        name = path.relative_to(before).as_posix()
        old |= {(name, function): text for function, text in _functions(path).items()}
        new |= {(name, function): text for function, text in _functions(after / name).items()}
    body = "".join(text for (_, function), text in new.items() if function == _ENTRY)
    words = frozenset(re.findall(r"\w+", body))
    found = [at for at in {**old, **new} if old.get(at) != new.get(at)]
    found.sort(key=lambda at: (at[1] != _ENTRY, at[1] not in words, not at[1], at))
    return ": ".join(filter(None, found[0])) if found else ""


def _functions(path: Path) -> dict[str, str]:
    """Each definition's text without comments and blanks, by name; empty name: what is before.

    Definitions are told by lines that start in the first column, as clang-format has them in these
    headers; of several with one name the texts follow each other.
    """
    if not path.is_file():
        return {}
    text = _COMMENT.sub(" ", path.read_text(errors="replace"))
    found: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        name = _defined(line) or name
        bare = " ".join(line.split())
        if bare:
            found[name] = f"{found.get(name, '')}{bare}\n"
    return found


def _defined(line: str) -> str:
    if not line or line[0].isspace() or line[0] in "#}":
        return ""
    found = _HEAD.match(line)
    return found[1] if found and found[1] not in _NO_NAME else ""
