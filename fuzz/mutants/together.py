"""Mutants planted together in one copy: where no single step shows any, one run says so of all."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.mutants.model import Mutant

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Together(Mutant):
    """Several mutants, whose edits leave each other's places as they are."""

    members: tuple[Mutant, ...] = ()

    def apply(self, root: Path) -> None:
        """Plant all of them; raise MutantError for one that does not fit."""
        for member in self.members:
            member.apply(root)


def groups(mutants: Iterable[Mutant]) -> list[Together]:
    """Return mutants in as few groups as their edits allow, taking each as it comes."""
    open_: list[tuple[list[Mutant], dict[str, str]]] = []
    for mutant in mutants:
        for members, texts in open_:
            if _plant(mutant, texts):
                members.append(mutant)
                break
        else:
            texts = {}
            _plant(mutant, texts)
            open_.append(([mutant], texts))
    return [_group(members) for members, _ in open_]


def _plant(mutant: Mutant, texts: dict[str, str]) -> bool:
    """Plant a mutant in texts of files; return False where its place is gone."""
    text = texts.get(mutant.file) or (_ROOT / mutant.file).read_text()
    if text.count(mutant.old) != 1:
        return False
    texts[mutant.file] = text.replace(mutant.old, mutant.new)
    return True


def _group(members: Sequence[Mutant]) -> Together:
    names = ", ".join(member.name for member in members)
    first = members[0]
    return Together(names, first.file, first.old, first.new, first.requirement, first.why,
                    tuple(members))  # fmt: skip
