"""What runs saw, added up from their records: of one folder, or of several hosts'."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from conformance.core.record import Outcome, Record, load
from conformance.core.request import SuiteError
from conformance.report.sources import Source, of_one_suite
from fuzz.findings import JOINT, plain
from fuzz.lane.asked import Asked
from fuzz.reach import DIMENSIONS, Pair, possible
from fuzz.serving import Profile

_SHOWN = 8


@dataclass
class Tally:
    """What was seen. distinct: findings by what they say, numbers left out, with their seeds.

    busy_s: seconds that histories took, of all workers. reached, values: frames that had a pair of
    values, or a value. begun: seeds whose process ended before their record was written. twice:
    seeds that are in several folders. missing: seeds that were asked for without a limit of time,
    and have no record. mistakes: what the fuzzer itself did wrong.
    """

    histories: int = 0
    frames: int = 0
    rows: int = 0
    requests: int = 0
    plans: int = 0
    busy_s: float = 0.0
    ratio: float = 0.0
    unobservable: Counter[str] = field(default_factory=Counter)
    unplanted: Counter[str] = field(default_factory=Counter)
    reached: Counter[Pair] = field(default_factory=Counter)
    values: Counter[tuple[str, str]] = field(default_factory=Counter)
    distinct: dict[str, list[int]] = field(default_factory=dict)
    found: list[Record] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)
    twice: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)

    def add(self, record: Record) -> None:
        """Count the record of a history."""
        if record.outcome in (Outcome.UNOBSERVABLE, Outcome.SKIPPED):
            self.unobservable[record.message] += 1
            return
        if record.message.startswith("HistoryError"):
            self.mistakes.append(f"{record.case}: {record.message}")
            return
        seen = record.history or {}
        self.histories += 1
        self.frames += seen.get("steps", 0)
        self.rows += seen.get("rows", 0)
        self.requests += seen.get("requests", 0)
        self.plans += seen.get("plans", 0)
        self.busy_s += record.seconds or 0.0
        self.ratio = max(self.ratio, record.ratio or 0.0)
        self._reach(record, seen.get("reached", {}))
        self.unplanted.update(seen.get("unplanted", {}))
        if record.failed:
            self.found.append(record)
            text = seen.get("kind") or f"{record.outcome}: {plain(record.message)}"
            self.distinct.setdefault(text, []).append(seed_of(record))

    def _reach(self, record: Record, counts: Mapping[str, int]) -> None:
        for joined, count in counts.items():
            values = joined.split(JOINT)
            frame = list(zip(DIMENSIONS, values, strict=False))
            known = len(values) == len(DIMENSIONS)
            if not known or any(value not in DIMENSIONS[name] for name, value in frame):
                raise SuiteError(
                    f"{record.case}: found values {joined!r}; allowed: one of each of "
                    f"{', '.join(DIMENSIONS)}; to fix: read it with the fuzzer that wrote it"
                )
            for pair in itertools.combinations(frame, 2):
                self.reached[pair] += count
            for value in frame:
                self.values[value] += count

    def line(self, wall_s: float | None = None) -> str:
        """Return it in a line. wall_s: how long the run took; None: a rate for one worker."""
        seconds = self.busy_s if wall_s is None else wall_s
        rate = self.frames / seconds if seconds else 0.0
        each = max(self.frames, 1)
        anew = 100 * self.plans / each
        return (
            f"{self.histories} histories, {self.frames} steps ({rate:.1f} a second"
            f"{' and worker' if wall_s is None else ''}), "
            f"{self.requests / each:.1f} requests and {self.rows / each:.1f} rows a step, "
            f"{anew:.0f} % replanned, worst error {self.ratio:.2f} of its bound, "
            f"{len(self.distinct)} distinct findings"
        )

    def table(self) -> list[str]:
        """Return how many steps had each value, a line for each dimension; and the pairs."""
        wide = max(map(len, DIMENSIONS))
        lines = []
        for name, values in DIMENSIONS.items():
            counts = ", ".join(f"{value} {self.values[name, value]}" for value in values)
            lines.append(f"  {name:{wide}}  {counts}")
        wanted, reached = possible(), set(self.reached)
        lines.append(f"{len(reached & wanted)} of {len(wanted)} pairs of values reached")
        return lines

    def notes(self) -> list[str]:
        """Return what else is to be told, a line each."""
        lines = [f"not played: {n} histories ({why})" for why, n in self.unobservable.items()]
        lines += [f"not planted: {n} times {why}" for why, n in self.unplanted.items()]
        if self.begun:
            lines.append(f"begun and lost with their process: seeds {_some(self.begun)}")
        if self.missing:
            lines.append(f"asked for, and not played: seeds {_some(self.missing)}")
        if self.twice:
            lines.append(f"in more than one folder, counted once: seeds {_some(self.twice)}")
        lines += [f"the fuzzer's own mistake: {text}" for text in self.mistakes]
        lines += [f"{len(of)} x {kind}: seeds {_some(of)}" for kind, of in self.distinct.items()]
        return lines

    @property
    def code(self) -> int:
        """The exit code: 1 where something was found, 3 where the fuzzer did wrong, 2 where nothing
        was played or not all that was asked for; else 0."""
        if self.distinct:
            return 1
        if self.mistakes:
            return 3
        return 0 if self.frames and not (self.begun or self.missing) else 2


def _some(seeds: Sequence[int]) -> str:
    """Return the first of some seeds, and how many there are beside them."""
    more = len(seeds) - _SHOWN
    return ", ".join(map(str, seeds[:_SHOWN])) + (f" and {more} more" if more > 0 else "")


def seed_of(record: Record) -> int:
    """Return the seed of a history's record."""
    return int(record.case.rpartition("/")[2])


def gather(folders: Sequence[Path]) -> Tally:
    """Return what the runs of some report folders saw; raise SuiteError where they differ in kind.

    A file without its footer counts as far as it goes: its process may still run, or was killed.
    """
    found: dict[tuple[str, str, str, int], tuple[Record, Path]] = {}
    begun: dict[tuple[str, str, str, int], None] = {}
    twice: dict[int, None] = {}
    sources: list[Source] = []
    for path in _files(folders):
        file = load(path)
        environment = file.header.get("environment") or {}
        records = tuple(file.records.values())
        sources.append(Source(path, environment, records))
        for record in records:
            key = (record.subject, record.tier, record.flashinfer, seed_of(record))
            other = found.get(key)
            if other is not None and other[1] != path.parent:
                twice[key[-1]] = None
                if other[0].failed:
                    continue  # of two the worse one
            found[key] = record, path.parent
        for record in file.open.values():
            begun[record.subject, record.tier, record.flashinfer, seed_of(record)] = None
    if len({source.path.parent for source in sources}) > 1:
        of_one_suite(sources)
    _of_one_kind(sources)
    open_ = sorted({key[-1] for key in begun if key not in found})
    told = {key[-1] for key in found} | set(open_)
    missing = sorted(_asked(sources) - told)
    tally = Tally(begun=open_, twice=sorted(twice), missing=missing)
    for _, (record, _) in sorted(found.items(), key=lambda item: item[0]):
        tally.add(record)
    return tally


def _asked(sources: Sequence[Source]) -> set[int]:
    """Return the seeds that runs without a limit of time were asked for."""
    texts = {str(source.environment["asked"]) for source in sources}
    asked = [Asked.loads(text) for text in texts]
    return {seed for one in asked if not one.timed for seed in one.seeds}


def _files(folders: Sequence[Path]) -> list[Path]:
    paths = []
    for folder in dict.fromkeys(folder.resolve() for folder in folders):
        own = sorted(path for path in folder.glob("records-*.jsonl") if path.stat().st_size)
        if not own:
            found = "no record file" if folder.is_dir() else "no folder"
            raise SuiteError(
                f"report folder {folder}: found {found}; allowed: one that `python -m fuzz run "
                "--report FOLDER` wrote; to fix: correct the path"
            )
        paths += own
    return paths


def _of_one_kind(sources: Sequence[Source]) -> None:
    """Raise SuiteError unless all seeds mean the same histories, and all records are of these."""
    asked: dict[Profile | None, Path] = {}
    for source in sources:
        text = source.environment.get("asked")
        asked.setdefault(Asked.loads(text).profile if text else None, source.path)
    if None in asked:
        raise SuiteError(
            f"{asked[None]}: found records of no fuzz run; allowed: those of `python -m fuzz "
            "run`; to fix: see `python -m conformance report` for others"
        )
    if len(asked) > 1:
        (one, first), (other, second) = list(asked.items())[:2]
        raise SuiteError(
            f"found histories drawn by {one} in {first} and by {other} in {second}; allowed: those "
            "of one profile, for a seed to mean one history; to fix: add them up apart"
        )
