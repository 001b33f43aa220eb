"""The model of a report: requirements by tier, subject and version, counted from records."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from conformance.core.catalogue import REQUIREMENTS
from conformance.core.record import SCHEMA, Outcome, Record
from conformance.report.sources import Source, read_sources

TIERS = ("twin", "hopper")
BAD = (Outcome.FAIL, Outcome.CRASH, Outcome.HANG, Outcome.XPASS)
"""Outcomes that speak against a subject; a pass that the ledger denies is one."""
_WORST_FIRST = (
    *(Outcome.CRASH, Outcome.HANG, Outcome.FAIL, Outcome.XPASS, Outcome.REFUSED),
    *(Outcome.UNOBSERVABLE, Outcome.SKIPPED, Outcome.XFAIL, Outcome.PASS),
)


@dataclass(frozen=True)
class Group:
    """A subject on a tier; subject_version empty where it has none."""

    subject: str
    subject_version: str
    tier: str

    @property
    def label(self) -> str:
        """The subject with its version; of package.module:factory no more than module:factory."""
        module, colon, factory = self.subject.rpartition(":")
        name = f"{module.rpartition('.')[2]}{colon}{factory}"
        return f"{name} {self.subject_version}".strip()


@dataclass(frozen=True)
class Column:
    """A group on one FlashInfer version: simulated on the twin, installed on a GPU."""

    group: Group
    flashinfer: str


@dataclass(frozen=True)
class Seen:
    """A case that did not plainly pass. environment: index into the model's; times: records."""

    record: Record
    environment: int
    times: int


@dataclass(frozen=True)
class Cell:
    """A requirement in a column. counts: cases per outcome; error, ratio: the worst measured.

    passed: ids of the cases that passed. cases: the others, the worst outcome first.
    """

    counts: Mapping[Outcome, int]
    error: float | None
    ratio: float | None
    passed: frozenset[str]
    cases: tuple[Seen, ...]

    @property
    def total(self) -> int:
        """How many cases there are."""
        return sum(self.counts.values())

    @property
    def bad(self) -> int:
        """How many cases speak against the subject."""
        return sum(self.counts.get(outcome, 0) for outcome in BAD)


@dataclass(frozen=True)
class Model:
    """All that a report shows. environments: each with how many of the files have it.

    cells: by requirement id and column; absent where no case ran. rows: ids in the catalogue's
    order, ids that it does not know last. interpreted: groups of which a case ran its kernels
    interpreted.
    """

    schema: str
    commit: str | None
    sources: str | None
    environments: tuple[tuple[Mapping[str, Any], int], ...]
    columns: tuple[Column, ...]
    rows: tuple[str, ...]
    cells: Mapping[tuple[str, Column], Cell]
    interpreted: frozenset[Group]

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups in the order of their columns."""
        return tuple(dict.fromkeys(column.group for column in self.columns))

    def of(self, group: Group) -> tuple[Column, ...]:
        """Return a group's columns."""
        return tuple(column for column in self.columns if column.group == group)

    def together(self, requirement: str, columns: Iterable[Column]) -> Cell | None:
        """Return one cell for several columns; None where no case ran in any.

        A case that passed in one of them and not in another has not passed.
        """
        found = [cell for c in columns if (cell := self.cells.get((requirement, c))) is not None]
        if not found:
            return None
        counts: Counter[Outcome] = Counter()
        for cell in found:
            counts.update(cell.counts)
        cases = tuple(seen for cell in found for seen in cell.cases)
        passed = frozenset[str]().union(*(cell.passed for cell in found))
        return Cell(
            counts,
            max((cell.error for cell in found if cell.error is not None), default=None),
            max((cell.ratio for cell in found if cell.ratio is not None), default=None),
            passed - {seen.record.case for seen in cases},
            cases,
        )


def gather(folders: Sequence[Path]) -> Model:
    """Return the model of all records below `folders`; raise ReportError for what is not whole.

    A case counts once per column, however many files hold it, with the worst that became of it.
    """
    return model_of(read_sources(folders))


def model_of(sources: Sequence[Source]) -> Model:
    """Return the model of record files of one suite, at least one."""
    environments: list[Mapping[str, Any]] = []
    files: Counter[int] = Counter()
    found: dict[tuple[str, Column], dict[str, list[tuple[Record, int]]]] = {}
    for source in sources:
        if source.environment not in environments:
            environments.append(source.environment)
        place = environments.index(source.environment)
        files[place] += 1
        for record in source.records:
            group = Group(record.subject, record.subject_version, record.tier)
            cell = found.setdefault((record.requirement, Column(group, record.flashinfer)), {})
            cell.setdefault(record.case, []).append((record, place))
    return Model(
        SCHEMA,
        next((source.commit for source in sources if source.commit), None),
        next((source.sources for source in sources if source.sources), None),
        tuple((environment, files[place]) for place, environment in enumerate(environments)),
        tuple(sorted({column for _, column in found}, key=_place)),
        tuple(sorted({id for id, _ in found}, key=_rank)),
        {key: _cell(cases) for key, cases in found.items()},
        frozenset(
            Group(record.subject, record.subject_version, record.tier)
            for source in sources
            for record in source.records
            if record.interpreted
        ),
    )


def _cell(cases: Mapping[str, list[tuple[Record, int]]]) -> Cell:
    seen = []
    for records in cases.values():
        record, place = min(records, key=lambda found: _WORST_FIRST.index(found[0].outcome))
        seen.append(Seen(record, place, len(records)))
    every = [record for records in cases.values() for record, _ in records]
    seen.sort(key=lambda one: _WORST_FIRST.index(one.record.outcome))
    return Cell(
        Counter(one.record.outcome for one in seen),
        max((record.error for record in every if record.error is not None), default=None),
        max((record.ratio for record in every if record.ratio is not None), default=None),
        frozenset(one.record.case for one in seen if one.record.outcome is Outcome.PASS),
        tuple(one for one in seen if one.record.outcome is not Outcome.PASS),
    )


def _place(column: Column) -> tuple[Any, ...]:
    group = column.group
    tier = TIERS.index(group.tier) if group.tier in TIERS else len(TIERS)
    return (group.subject, ordered(group.subject_version), tier, ordered(column.flashinfer))


def ordered(version: str) -> tuple[Any, ...]:
    """Return a key that puts versions in their order, and what is none before all."""
    try:
        return (1, Version(version), version)
    except InvalidVersion:
        return (0, version)


def _rank(id: str) -> tuple[int, str]:
    known = list(REQUIREMENTS)
    return (known.index(id), "") if id in known else (len(known), id)
