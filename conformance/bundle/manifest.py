"""The manifest of a bundle: what is inside, how it was built, and every file's digest.

It holds versions and names, never a path of the machine that built it. The standard library alone.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from conformance.bundle.archive import files_below, sha256
from conformance.bundle.errors import ManifestError
from conformance.entries import ENTRY

NAME = "manifest.json"
SCHEMA = "smla-bundle/2"
SUITE = "suite"
"""The folder of a bundle that holds the rooms, as a checkout does."""
PREBUILT = "flashinfer/flashinfer/data/aot/"
"""Where FlashInfer looks for modules that it need not build."""


@dataclass(frozen=True)
class Carried:
    """A package that comes along. folder: to import it from; least: the version that will do.

    always: even where the host has one, since the modules were compiled against this very one.
    """

    name: str
    version: str
    folder: str
    least: str
    always: bool = False


@dataclass(frozen=True)
class Manifest:
    """One bundle.

    suite: commit and sources, as in `core/environment.py`. flashinfer, wheel: the version, and the
    SHA-256 of the wheel it was taken from. python_path: folders to import from, in order, before
    those of `packages`. programs: files to be executable, in folders that end the search path.
    needs: shared libraries that the GPU host must have. wheels: name and SHA-256 of each wheel that
    went in. build: versions of what built it. files: every file's SHA-256 by relative name.
    """

    suite: dict[str, str | None]
    flashinfer: str
    wheel: str
    python_tag: str
    platform: str
    architecture: str  # such as "9.0a"
    cuda: str  # such as "13.0"
    needs: list[str]
    python_path: list[str]
    packages: list[Carried]
    programs: list[str]
    modules: list[dict[str, Any]]
    wheels: list[dict[str, str]]
    build: dict[str, str]
    files: dict[str, str] = field(default_factory=dict)
    schema: str = SCHEMA


def digests(folder: Path) -> dict[str, str]:
    """Relative name -> SHA-256 of every file below a folder but those that tell of it."""
    told = (NAME, ENTRY)
    return {str(n): sha256(folder / n) for n in files_below(folder) if str(n) not in told}


def text_of(manifest: Manifest) -> str:
    """The manifest as its file holds it."""
    return json.dumps(asdict(manifest), indent=1, sort_keys=True) + "\n"


def parse(text: str | bytes) -> Manifest:
    """Read a manifest's text; ManifestError for another schema or no manifest."""
    try:
        record = json.loads(text)
        schema = record["schema"]
    except (ValueError, TypeError, KeyError) as error:
        raise ManifestError(
            f"{NAME}: found no manifest ({error!r}); allowed: one of schema {SCHEMA!r}; to fix: "
            "copy or build the bundle again"
        ) from error
    if schema != SCHEMA:
        raise ManifestError(
            f"{NAME}: found schema {schema!r}; allowed: {SCHEMA!r}; to fix: build the bundle with "
            "this suite"
        )
    try:
        packages = [Carried(**carried) for carried in record.pop("packages")]
        return Manifest(**record, packages=packages)
    except (TypeError, KeyError) as error:
        raise ManifestError(
            f"{NAME}: found not what {SCHEMA!r} holds ({error}); allowed: what `conformance "
            "bundle` writes; to fix: build the bundle again"
        ) from error


def around(root: Path) -> Manifest | None:
    """The manifest of the bundle whose rooms are below `root`; None where that is a checkout."""
    path = root.parent / NAME
    if root.name != SUITE or not path.is_file():
        return None
    try:
        return parse(path.read_text())
    except (ManifestError, OSError):
        return None


def verify(
    folder: Path, manifest: Manifest, keep: Callable[[str], bool] = lambda name: True
) -> None:
    """Compare every file with the manifest; ManifestError names up to five that differ.

    keep: which of the manifest's files are to be there.
    """
    wrong = differing(manifest.files, digests(folder), keep)
    if wrong:
        raise ManifestError(
            f"found {len(wrong)} files that differ from {NAME}: {', '.join(wrong[:5])}; allowed: "
            "the files that it tells; to fix: copy or build the bundle again"
        )


def differing(
    told: Mapping[str, str], found: Mapping[str, str], keep: Callable[[str], bool]
) -> list[str]:
    """Files that differ, each with how; sorted."""
    wanted = {name: digest for name, digest in told.items() if keep(name)}
    wrong = [f"{name} (missing)" for name in wanted if name not in found]
    wrong += [f"{name} (not in the manifest)" for name in found if name not in wanted]
    wrong += [f"{n} (changed)" for n, digest in wanted.items() if found.get(n, digest) != digest]
    return sorted(wrong)
