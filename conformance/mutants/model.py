"""Mutants as data: one edit of one file, and the requirement that must notice it."""

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

from conformance.core.catalogue import REQUIREMENTS


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

    def apply(self, root: Path) -> None:
        """Edit the copy of the sources below `root`; raise MutantError unless `old` is unique."""
        path = root / self.file
        if not path.is_file():
            raise MutantError(f"{self.name}: no file {self.file}")
        text = path.read_text()
        found = text.count(self.old)
        if found != 1:
            raise MutantError(f"{self.name}: its old text stands {found} times in {self.file}")
        path.write_text(text.replace(self.old, self.new))


def read_mutants(path: Path) -> list[Mutant]:
    """Return the mutants of a TOML file; raise MutantError for anything but a sound one."""
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
        if table["requirement"] not in REQUIREMENTS:
            raise MutantError(f"{path}: {table['name']}: no requirement {table['requirement']!r}")
        if table["old"] == table["new"]:
            raise MutantError(f"{path}: {table['name']} changes nothing")
    mutants = [Mutant(**table) for table in tables]
    if not mutants or len({mutant.name for mutant in mutants}) != len(mutants):
        raise MutantError(f"{path}: no mutant, or two of one name")
    return mutants
