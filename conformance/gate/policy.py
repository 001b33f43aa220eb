"""A policy: which speed a fleet asks for, and which objections it lets pass, with reasons.

A TOML file, docs/gate-policy.toml for one. `[limits]` holds for each kind of figure the largest
ratio of candidate to baseline. Each `[[tolerate]]` has a key, a pattern on the keys of findings
that names their tier (`wrapper/waits/*`), and a reason; it may have a subject, a pattern, and the
last day that it holds (until). Unknown words are refused: a typing error must not let a fault pass.
"""

import datetime
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any

from conformance.gate.errors import PolicyError
from conformance.gate.model import TIERS, Change, Figure, Finding, Status, TierResult, Weight, ran

LIMITS: Mapping[str, float] = MappingProxyType({"plan": 1.25, "kernel": 1.10, "launch": 1.25})
"""The largest ratios by kind of figure where a policy says nothing."""

TIMED = "hopper"
"""The tier whose times may object; those of others are to be read."""

_TABLES = ("limits", "tolerate")
_KEYS = ("key", "reason", "subject", "until")
_SHORT = "correct it; docs/gate-policy.toml shows each word that there is"


@dataclass(frozen=True)
class Toleration:
    """An objection that may pass. where: its place in the file, for who reads of it.

    key, subject: patterns with `*`, `?` and `[...]`. until: the last day, None for no end.
    """

    key: str
    reason: str
    subject: str = "*"
    until: datetime.date | None = None
    where: str = ""

    def speaks_of(self, finding: Finding, subject: str) -> bool:
        """Whether it is written for such a finding of such a subject, in force or not."""
        return fnmatchcase(finding.key, self.key) and fnmatchcase(subject, self.subject)

    def expired(self, today: datetime.date) -> bool:
        """Whether its last day is over."""
        return self.until is not None and today > self.until


@dataclass(frozen=True)
class Policy:
    """What a policy file says. limits: a ratio for each kind of figure."""

    limits: Mapping[str, float] = field(default_factory=lambda: LIMITS)
    tolerated: tuple[Toleration, ...] = ()


@dataclass(frozen=True)
class Applied:
    """One subject's tiers as a policy leaves them.

    met: the entries that some objection matched, in force or not. open: those that might have been
    matched, had their tier run, or that are for other subjects.
    """

    tiers: tuple[TierResult, ...]
    met: frozenset[Toleration] = frozenset()
    open: frozenset[Toleration] = frozenset()


def read(path: Path) -> Policy:
    """Return the policy of a file; raise PolicyError for one that says what no policy may."""
    try:
        given = tomllib.loads(path.read_text())
    except (OSError, ValueError) as problem:
        raise _error(str(path), f"no readable TOML ({problem})", "a TOML file") from problem
    for name in given:
        if name not in _TABLES:
            raise _error(str(path), repr(name), " and ".join(_TABLES))
    limits = given.get("limits", {})
    if not isinstance(limits, dict):
        raise _error(f"{path}: limits", repr(limits), "a table [limits]")
    entries = given.get("tolerate", [])
    if not isinstance(entries, list):
        raise _error(f"{path}: tolerate", "no list of tables", "tables [[tolerate]]")
    asked = {kind: _limit(f"{path}: limits", kind, ratio) for kind, ratio in limits.items()}
    tolerated = tuple(
        _toleration(f"{path}: tolerate {number}", entry) for number, entry in enumerate(entries, 1)
    )
    keys = [(entry.key, entry.subject) for entry in tolerated]
    for number, key in enumerate(keys):
        if key in keys[:number]:
            raise _error(tolerated[number].where, f"{key[0]!r} again", "each key once")
    return Policy(MappingProxyType({**LIMITS, **asked}), tolerated)


def apply(
    tiers: Iterable[TierResult], policy: Policy, subject: str, today: datetime.date
) -> Applied:
    """Add objections for figures beyond their limit, mark what is tolerated, settle each status.

    A tier that did not run stays as it is. Only objections are tolerated: nothing else needs it.
    """
    tiers = tuple(tiers)
    results: list[TierResult] = []
    met: set[Toleration] = set()
    for tier in tiers:
        if tier.status is Status.NOT_RUN:
            results.append(tier)
            continue
        judged: list[Finding] = []
        for finding in (*tier.findings, *_beyond(tier, policy.limits)):
            speak = [t for t in policy.tolerated if t.speaks_of(finding, subject)]
            if finding.weight is not Weight.OBJECTION:
                speak = []
            met.update(speak)
            reasons = [t.reason for t in speak if not t.expired(today)]
            judged.append(replace(finding, tolerated=reasons[0] if reasons else finding.tolerated))
        settled = ran(tier.tier, tuple(judged), tier.figures, tier.facts)
        stays = tier.status is Status.FAIL and not any(f.weight is Weight.OBJECTION for f in judged)
        status = Status.FAIL if stays else settled.status  # a tier may fail as a whole
        results.append(replace(tier, findings=settled.findings, status=status))
    ran_here = {result.tier for result in tiers if result.status is not Status.NOT_RUN}
    open_ = {
        t
        for t in policy.tolerated
        if t.key.partition("/")[0] not in ran_here or not fnmatchcase(subject, t.subject)
    }
    return Applied(tuple(results), frozenset(met), frozenset(open_))


def told(policy: Policy, today: datetime.date, applied: Iterable[Applied]) -> tuple[str, ...]:
    """Say which entries of a policy no longer do anything, given what all subjects showed."""
    applied = tuple(applied)
    lines = []
    for entry in policy.tolerated:
        met = any(entry in one.met for one in applied)
        if entry.expired(today):
            does = "; it would have let an objection pass" if met else ""
            lines.append(
                f"{entry.where}: {entry.key} held until {entry.until} and does not count any "
                f"more{does}; to fix: take it out, or set another day and say why"
            )
        elif not met and not any(entry in one.open for one in applied):
            lines.append(
                f"{entry.where}: {entry.key} matches no objection; to fix: take it out, or correct "
                "its key"
            )
    return tuple(lines)


def _beyond(tier: TierResult, limits: Mapping[str, float]) -> Iterable[Finding]:
    """An objection for each of a GPU's figures beyond its limit, else a review."""
    for figure in tier.figures:
        limit = limits.get(figure.kind)
        if limit is None or figure.ratio <= limit:
            continue
        sure = figure.low > limit  # one odd round decides nothing
        yield Finding(
            key=f"{tier.tier}/figure/{figure.kind}/{_slug(figure.name)}",
            change=Change.CHANGED,
            # A pretended device's times, on whatever machine this is, stop no upgrade.
            weight=Weight.OBJECTION if sure and tier.tier == TIMED else Weight.REVIEW,
            what=_slower(figure, limit, sure),
            before=f"{figure.baseline_us:.1f} us",
            after=f"{figure.candidate_us:.1f} us",
        )


def _slower(figure: Figure, limit: float, sure: bool) -> str:
    text = (
        f"{figure.name} takes {figure.ratio:.2f} times as long as before on {figure.where}; the "
        f"policy's limit is {limit:.2f}"
    )
    if sure:
        return text
    return (
        f"{text}, but a quarter of the {figure.rounds} rounds or more stay within it, so this "
        "machine cannot say: measure again where nothing else runs"
    )


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _limit(where: str, kind: str, ratio: object) -> float:
    if kind not in LIMITS:
        raise _error(where, repr(kind), ", ".join(LIMITS))
    number = isinstance(ratio, int | float) and not isinstance(ratio, bool)
    if not number or not math.isfinite(ratio) or ratio < 1:  # type: ignore[arg-type, operator]
        raise _error(f"{where}, {kind}", repr(ratio), "a ratio of 1 or more, such as 1.25")
    return float(ratio)  # type: ignore[arg-type]


def _toleration(where: str, entry: Any) -> Toleration:
    if not isinstance(entry, dict):
        raise _error(where, repr(entry), "a table [[tolerate]]")
    for name in entry:
        if name not in _KEYS:
            raise _error(where, repr(name), ", ".join(_KEYS))
    for name in ("key", "reason", *(["subject"] if "subject" in entry else [])):
        value = entry.get(name)
        if not isinstance(value, str) or not value.strip():
            raise _error(f"{where}, {name}", repr(value), "a text that is not empty")
    tier, slash, rest = entry["key"].partition("/")
    if tier not in TIERS or not slash or not rest:
        raise _error(
            f"{where}, key",
            repr(entry["key"]),
            f"TIER/KIND/WHAT with TIER one of {', '.join(TIERS)}, patterns behind it alone",
        )
    until = entry.get("until")
    if until is not None and type(until) is not datetime.date:  # a datetime is a date, too
        raise _error(f"{where}, until", repr(until), "a day without quotes, such as 2030-01-31")
    return Toleration(entry["key"], entry["reason"], entry.get("subject", "*"), until, where)


def _error(where: str, found: str, allowed: str) -> PolicyError:
    return PolicyError(f"{where}: found {found}; allowed: {allowed}; to fix: {_SHORT}")
