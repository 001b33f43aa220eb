"""Mutants as data: one edit of one file, and the requirement that must notice it."""

import hashlib
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

from conformance.core.catalogue import ALIVE, REQUIREMENTS


class MutantError(ValueError):
    """A mutant file is malformed, or a mutant does not fit the sources."""


@dataclass(frozen=True)
class Mutant:
    """Replace `old`, which stands once in `file`, by `new`; `requirement` must fail then.

    why: what goes wrong for a user when this is shipped.
    """

    name: str
    file: str
    old: str
    new: str
    requirement: str
    why: str

    @property
    def lane(self) -> str:
        """How the twin runs kernels: a change of Triton sources only shows interpreted."""
        return "interpret" if self.file.startswith("smla/kernels/") else "torch"

    @property
    def digest(self) -> str:
        """Hash of all that decides what it does, so of everything but its reason."""
        text = "\0".join((self.name, self.file, self.old, self.new, self.requirement))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def apply(self, root: Path) -> None:
        """Edit the copy of the sources below `root`; raise MutantError unless `old` is unique."""
        path = root / self.file
        if not path.is_file():
            raise MutantError(f"{self.name}: no file {self.file}")
        text = path.read_text()
        found = text.count(self.old)
        if found != 1:
            raise MutantError(f"{self.name}: its old text stands {found} times in {self.file}")
        for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            stale.unlink()  # it might pass for the edited file's, where size and second are alike
        path.write_text(text.replace(self.old, self.new))


def read_mutants(paths: Iterable[Path]) -> list[Mutant]:
    """Return the mutants of TOML files, or of the *.toml in folders, in order.

    Raises MutantError for anything but sound ones, of which no two have one name.
    """
    mutants = [mutant for path in paths for file in _files(path) for mutant in _read(file)]
    twice = [name for name, count in Counter(m.name for m in mutants).items() if count > 1]
    if not mutants or twice:
        said = f"two mutants of one name: {', '.join(twice)}" if twice else "no mutant"
        raise MutantError(f"{', '.join(map(str, paths))}: {said}")
    return mutants


def _files(path: Path) -> list[Path]:
    return sorted(path.glob("*.toml")) if path.is_dir() else [path]


def _read(path: Path) -> list[Mutant]:
    try:
        tables = tomllib.loads(path.read_text()).get("mutant", [])
    except (OSError, tomllib.TOMLDecodeError) as problem:
        raise MutantError(f"{path}: {problem}") from problem
    names = {field.name for field in fields(Mutant)}
    for table in tables:
        if set(table) != names or not all(isinstance(value, str) for value in table.values()):
            raise MutantError(
                f"{path}: mutant {table.get('name')!r} needs the strings {sorted(names)}"
            )
        if table["requirement"] not in REQUIREMENTS or table["requirement"] == ALIVE:
            raise MutantError(
                f"{path}: {table['name']}: found requirement {table['requirement']!r}; allowed: "
                f"one of the catalogue but {ALIVE}, which every mutant passes"
            )
        if table["old"] == table["new"]:
            raise MutantError(f"{path}: {table['name']} changes nothing")
    return [Mutant(**table) for table in tables]
