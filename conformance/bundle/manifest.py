"""The manifest of a bundle: what is inside, how it was built, and every file's digest.

It holds versions and names, never a path of the machine that built it.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from conformance.bundle.archive import files_below, sha256
from conformance.bundle.errors import ManifestError

NAME = "manifest.json"
SCHEMA = "smla-bundle/1"


@dataclass(frozen=True)
class Manifest:
    """One bundle. `python_path` are its folders to import from, in order."""

    flashinfer: str
    python_tag: str
    platform: str
    architecture: str  # such as "9.0a"
    cuda: str  # such as "13.0"
    needs: list[str]  # shared libraries the GPU host must have
    python_path: list[str]
    modules: list[dict[str, Any]]
    wheels: list[dict[str, str]]  # name and sha256 of each wheel it was made from
    build: dict[str, str]  # versions of what built it
    files: dict[str, str] = field(default_factory=dict)  # relative name -> sha256
    schema: str = SCHEMA


def digests(folder: Path) -> dict[str, str]:
    """Relative name -> SHA-256 of every file below a folder but the manifest."""
    return {str(name): sha256(folder / name) for name in files_below(folder) if str(name) != NAME}


def write(manifest: Manifest, folder: Path) -> None:
    """Write the manifest into the folder it describes."""
    (folder / NAME).write_text(json.dumps(asdict(manifest), indent=1, sort_keys=True) + "\n")


def read(folder: Path) -> Manifest:
    """Read a folder's manifest; ManifestError for another schema or no manifest."""
    try:
        record = json.loads((folder / NAME).read_text())
        schema = record["schema"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ManifestError(
            f"{NAME}: not readable ({error!r}); allowed: a bundle of schema {SCHEMA!r}"
        ) from error
    if schema != SCHEMA:
        raise ManifestError(
            f"{NAME}: found schema {schema!r}; allowed: {SCHEMA!r}; build the bundle with the "
            "suite that unpacks it"
        )
    try:
        return Manifest(**record)
    except TypeError as error:
        raise ManifestError(f"{NAME}: not what {SCHEMA!r} holds ({error})") from error


def verify(folder: Path) -> Manifest:
    """Compare every file with the manifest; ManifestError names up to five that differ."""
    manifest = read(folder)
    found = digests(folder)
    wrong = [f"{name} (missing)" for name in manifest.files if name not in found]
    wrong += [f"{name} (not in the manifest)" for name in found if name not in manifest.files]
    wrong += [
        f"{name} (changed)"
        for name, digest in manifest.files.items()
        if found.get(name, digest) != digest
    ]
    if wrong:
        raise ManifestError(
            f"{len(wrong)} files differ from {NAME}: {', '.join(sorted(wrong)[:5])}; copy or "
            "build the bundle again, and unpack it into a new folder"
        )
    return manifest
