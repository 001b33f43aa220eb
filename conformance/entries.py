"""How a cache entry looks on disk: its name, its record, and whether it is whole.

The standard library alone: a bundle lays out its entry on a host that has nothing else.
"""

import hashlib
import json
from pathlib import Path

ENTRY = "entry.json"
SCHEMA = "smla-cache-entry/1"
LOCKS = "locks"
BUILDING = ".building-"


def digest_of(kind: str, inputs: object) -> str:
    """The name of the entry of these inputs, which are JSON values."""
    text = json.dumps(inputs, sort_keys=True)
    return hashlib.sha256(f"{SCHEMA} {kind} {text}".encode()).hexdigest()[:32]


def lock_of(root: Path, kind: str, digest: str) -> Path:
    """The file that is locked while an entry is built."""
    return root / LOCKS / f"{kind}-{digest}.lock"


def seal(folder: Path, inputs: object) -> None:
    """Write an entry's record into the folder that holds all its files."""
    record = {"schema": SCHEMA, "inputs": inputs, "files": digests(folder)}
    (folder / ENTRY).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")


def is_whole(folder: Path) -> bool:
    """Whether an entry is there with exactly the bytes it was built with."""
    try:
        record = json.loads((folder / ENTRY).read_text())
        return bool(record["schema"] == SCHEMA and record["files"] == digests(folder))
    except (OSError, ValueError, TypeError, KeyError):
        return False


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of an entry but its record, by name."""
    return {
        path.relative_to(folder).as_posix(): _sha256(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / ENTRY
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
