"""The ledger of known deviations: what it says of a case, and whether it says it once.

Its text is read in `ledger_text`. Nothing here reads a file or knows a subject.
"""

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import combinations
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from conformance.core.record import Expected, Outcome, Record

OUTCOMES = (Outcome.FAIL, Outcome.CRASH, Outcome.HANG, Outcome.REFUSED)
KINDS = ("ours", "upstream", "by-design")
TIERS = ("twin", "hopper", "any")


class LedgerError(ValueError):
    """A ledger is malformed, fits no case, or speaks twice of one case. Ends a command with 3."""

    def __init__(self, where: str, *, found: object, allowed: str, remedy: str) -> None:
        super().__init__(f"ledger {where}: found {found}; allowed: {allowed}; to fix: {remedy}")


@dataclass(frozen=True)
class Situation:
    """A case, and where it runs. subject: the name it gives itself.

    version, flashinfer: empty where unknown.
    """

    case: str
    tier: str
    subject: str
    version: str
    flashinfer: str


@dataclass(frozen=True)
class Deviation:
    """An entry of a ledger. source, number: the file and the entry's place in it, from 1.

    harmless: a crash that is an exception of Python, after which a GPU's context is sound.
    """

    source: str
    number: int
    cases: tuple[str, ...]
    subject: str
    versions: str
    flashinfer: str
    tier: str
    outcome: str
    kind: str
    evidence: str
    why: str
    harmless: bool = False

    @property
    def where(self) -> str:
        """File and entry, for a message."""
        return f"{self.source}, deviation {self.number} ({self.cases[0]})"

    @property
    def expected(self) -> str:
        """What a record says of it; `record.Expected` reads it."""
        return str(Expected(self.outcome, self.kind, self.why))

    def endangers(self, tier: str) -> bool:
        """Whether its cases harm others that share their process.

        On the twin a crash is an exception of Python.
        """
        harmful = self.outcome == Outcome.CRASH and tier == "hopper" and not self.harmless
        return self.outcome == Outcome.HANG or harmful

    def names(self, case: str) -> bool:
        """Whether one of its patterns matches a case."""
        exact, pattern = _matcher(self.cases)
        return case in exact or pattern.fullmatch(case) is not None

    def concerns(self, there: Situation) -> bool:
        """Whether it speaks of a situation, whatever the case."""
        return (
            self.subject == there.subject
            and self.tier in ("any", there.tier)
            and _holds(self.versions, there.version)
            and _holds(self.flashinfer, there.flashinfer)
        )

    def speaks_of(self, there: Situation) -> bool:
        """Whether it speaks of a case in its situation."""
        return self.concerns(there) and self.names(there.case)

    def table(self) -> dict[str, Any]:
        """Return it as JSON values; `from_table` is the way back."""
        return asdict(self)

    @staticmethod
    def from_table(table: Mapping[str, Any]) -> "Deviation":
        """Return the entry of a `table`."""
        return Deviation(**{**table, "cases": tuple(table["cases"])})


def match(ledger: Iterable[Deviation], there: Situation) -> Deviation | None:
    """Return what a ledger says of a case in its situation, None for nothing."""
    return next((entry for entry in ledger if entry.speaks_of(there)), None)


def stale(
    ledger: Iterable[Deviation], records: Sequence[Record], subject: str, version: str
) -> list[Deviation]:
    """Return the entries for what ran of which no case was judged."""
    ran = {
        Situation(
            r.case if r.outcome not in (Outcome.SKIPPED, Outcome.UNOBSERVABLE) else "",
            r.tier,
            subject,
            version,
            r.flashinfer,
        )
        for r in records
    }
    return [
        entry
        for entry in ledger
        if any(entry.concerns(there) for there in ran)
        and not any(entry.speaks_of(there) for there in ran if there.case)
    ]


def lint(
    ledger: Sequence[Deviation], cases: Mapping[str, Sequence[str]], simulated: Sequence[str] = ()
) -> None:
    """Raise LedgerError for an entry without a case, or two entries that speak of one case.

    cases: by tier, the ids of the cases that a full run makes. simulated: FlashInfer versions that
    the twin has; empty: whichever.
    """
    for entry in ledger:
        nowhere = simulated and not any(_holds(entry.flashinfer, v) for v in simulated)
        if entry.tier == "twin" and nowhere:
            raise LedgerError(
                f"{entry.where}, flashinfer",
                found=f"{entry.flashinfer!r}, which is no version that the twin simulates",
                allowed=", ".join(simulated),
                remedy="correct it, or take the entry out",
            )
        known = {case for tier, ids in cases.items() if entry.tier in ("any", tier) for case in ids}
        for pattern in entry.cases:
            if pattern not in known and not fnmatch.filter(known, pattern):
                raise LedgerError(
                    entry.where,
                    found=f"the pattern {pattern!r}, which matches no case of tier {entry.tier}",
                    allowed="patterns that match a case of a full run",
                    remedy="see `python -m conformance list`, or remove the pattern",
                )
    spoken = [{t: {c for c in ids if entry.names(c)} for t, ids in cases.items()}
              for entry in ledger]  # fmt: skip
    for (one, of_one), (other, of_other) in combinations(zip(ledger, spoken, strict=True), 2):
        if not _meet(one, other):
            continue
        tiers = [t for t in cases if one.tier in ("any", t) and other.tier in ("any", t)]
        both = sorted(case for t in tiers for case in of_one[t] & of_other[t])
        if both:
            raise LedgerError(
                other.where,
                found=f"the case {both[0]}, of which {one.where} speaks too",
                allowed="one entry for a case in a situation",
                remedy="narrow one of them by pattern, tier or versions",
            )


@cache
def _matcher(patterns: tuple[str, ...]) -> tuple[frozenset[str], re.Pattern[str]]:
    """Return ids that patterns name in full, and one expression for the others."""
    exact = frozenset(p for p in patterns if not any(sign in p for sign in "*?["))
    others = [fnmatch.translate(p) for p in patterns if p not in exact]
    return exact, re.compile("|".join(others) or r"(?!)")


@cache
def _holds(specifier: str, version: str) -> bool:
    if not specifier.strip():
        return True
    try:
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def _meet(one: Deviation, other: Deviation) -> bool:
    return (
        one.subject == other.subject
        and (one.tier == other.tier or "any" in (one.tier, other.tier))
        and _overlap(one.versions, other.versions)
        and _overlap(one.flashinfer, other.flashinfer)
    )


def _overlap(one: str, other: str) -> bool:
    """Whether a version fits both: one named by either, or one just beside it."""
    tried = {"0", "99999"}
    for specifier in (*SpecifierSet(one), *SpecifierSet(other)):
        base = specifier.version.removesuffix(".*")
        tried |= {base, f"{base}.1", f"{base}.99999", f"{Version(base).base_version}.dev0"}
        tried |= {f"{Version(base).base_version}.post99999"}
    return any(_holds(one, version) and _holds(other, version) for version in tried)
