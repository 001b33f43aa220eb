"""Reading verdicts off a model: per subject and tier, per FlashInfer version, and per subject."""

from collections.abc import Iterable
from dataclasses import dataclass

from conformance.core.catalogue import ALIVE, REQUIREMENTS
from conformance.core.record import Outcome
from conformance.core.verdict import Exit
from conformance.report.gather import Cell, Column, Group, Model

WORDS = {
    Exit.CONFORMS: "conforms",
    Exit.DOES_NOT: "does not conform",
    Exit.INCOMPLETE: "incomplete",
}
COUNTED = (Outcome.PASS, Outcome.XFAIL)
"""Outcomes that count to a requirement's least: what went wrong as the ledger says was judged."""


@dataclass(frozen=True)
class Judgement:
    """A verdict with its reasons. title: of what it speaks."""

    title: str
    exit: Exit
    reasons: tuple[str, ...]

    @property
    def word(self) -> str:
        """The verdict in words."""
        return WORDS[self.exit]


def counted(cell: Cell | None) -> int:
    """Return how many cases of a cell count to a requirement's least."""
    if cell is None:
        return 0
    known = {seen.record.case for seen in cell.cases if seen.record.outcome is Outcome.XFAIL}
    other = {seen.record.case for seen in cell.cases if seen.record.outcome is not Outcome.XFAIL}
    return len(cell.passed | (known - other))


def short(cell: Cell | None, requirement: str, tier: str) -> bool:
    """Whether a tier's cases of a requirement are fewer than its least, and that is a gap.

    A requirement whose tool is absent, so that every case of it was skipped, is none: a run
    reports it as not run.
    """
    known = REQUIREMENTS.get(requirement)
    if known is None or counted(cell) >= known.minimum(tier):
        return False
    skipped = cell is not None and set(cell.counts) == {Outcome.SKIPPED}
    return not (known.tool and tier == "twin" and skipped)


def of_group(model: Model, group: Group) -> Judgement:
    """Return the verdict on a subject on a tier, all its FlashInfer versions together."""
    columns = model.of(group)
    cells = {id: model.together(id, columns) for id in REQUIREMENTS}
    reasons = []
    if group.tier == "twin" and group not in model.interpreted:
        reasons.append("no case ran its kernels interpreted")
    alive = cells[ALIVE]
    if alive is not None and not alive.passed:
        reasons.append(f"{ALIVE}: no case passed, so the rest says nothing")
    reasons += _below(cells, group.tier)
    return _judgement(model, f"{group.label} on {group.tier}", columns, reasons)


def of_column(model: Model, column: Column) -> Judgement:
    """Return the verdict on one FlashInfer version.

    It conforms by itself, or as one of several versions that share a tier's cases: then every
    requirement that has a case for each of them must have one here, and the tier must conform.
    """
    group = column.group
    title = f"FlashInfer {column.flashinfer or 'unknown'}"
    own = _below({id: model.cells.get((id, column)) for id in REQUIREMENTS}, group.tier)
    if not own:
        return _judgement(model, title, [column], [])
    columns = model.of(group)
    if len(columns) == 1 or group.tier != "twin":
        return _judgement(model, title, [column], own)
    reasons = [
        f"{known.id}: no case here"
        for known in REQUIREMENTS.values()
        if known.minimum(group.tier) >= len(columns) and (known.id, column) not in model.cells
    ]
    whole = of_group(model, group)
    if not reasons and whole.exit is not Exit.CONFORMS:
        reasons = [f"shares the tier's cases, and the tier is {whole.word}"]
    return _judgement(model, f"{title} (a share of the cases)", [column], reasons)


def of_subjects(model: Model) -> list[Judgement]:
    """Return the verdict on each subject over its tiers: without the twin none is complete."""
    judgements = []
    for label in dict.fromkeys(group.label for group in model.groups):
        groups = [group for group in model.groups if group.label == label]
        parts = [of_group(model, group) for group in groups]
        tiers = [group.tier for group in groups]
        reasons = [f"{group.tier}: {part.word}" for group, part in zip(groups, parts, strict=True)]
        exit = max((part.exit for part in parts), key=_gravity)
        if "twin" not in tiers:
            reasons.append("twin: not run")
            exit = max(exit, Exit.INCOMPLETE, key=_gravity)
        if "hopper" not in tiers:
            reasons.append("hopper: not run (needs a GPU of capability 9.0)")
        judgements.append(Judgement(label, exit, tuple(reasons)))
    return judgements


def _gravity(exit: Exit) -> int:
    return (Exit.CONFORMS, Exit.INCOMPLETE, Exit.DOES_NOT).index(exit)


def _below(cells: dict[str, Cell | None], tier: str) -> list[str]:
    """Return what stayed below its least on a tier."""
    below = [id for id, cell in cells.items() if short(cell, id, tier)]
    absent = [id for id in below if cells[id] is None]
    reasons = [
        f"{id}: {counted(cells[id])} of at least {REQUIREMENTS[id].minimum(tier)}"
        for id in below
        if id not in absent
    ]
    return [*reasons, *([f"no case of {', '.join(absent)}"] if absent else [])]


def _judgement(
    model: Model, title: str, columns: Iterable[Column], reasons: list[str]
) -> Judgement:
    columns = list(columns)
    bad = [
        f"{id}: {cell.bad} of {cell.total} failed"
        for id in model.rows
        if (cell := model.together(id, columns)) is not None and cell.bad
    ]
    if bad:
        return Judgement(title, Exit.DOES_NOT, tuple(bad))
    return Judgement(title, Exit.INCOMPLETE if reasons else Exit.CONFORMS, tuple(reasons))
