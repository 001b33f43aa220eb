"""What a gate finds: findings and figures by tier, and the result that holds them all."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

SCHEMA = "smla-gate/1"

TIERS = ("static", "wrapper", "planner", "twin", "hopper")
"""From what is read to what is run; a fault is named by the first tier that sees it."""


class Status(StrEnum):
    """What became of a tier. A tier that did not run speaks neither for nor against."""

    PASS = "pass"
    FAIL = "fail"
    NOT_RUN = "not run"


class Change(StrEnum):
    """How what was looked at differs between baseline and candidate."""

    ADDED = "added"
    DELETED = "deleted"
    CHANGED = "changed"
    UNCHANGED = "unchanged"


class Weight(StrEnum):
    """What a finding does to the verdict: an objection fails its tier, the others do not.

    review: a person should read it; note: it is told for completeness.
    """

    OBJECTION = "objection"
    REVIEW = "review"
    NOTE = "note"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at in both packages.

    key: names it for a policy, as `TIER/KIND/WHAT`; the same in every run, so without line numbers,
    counts and versions. what: one sentence a manager can read. before, after: what was seen in
    baseline and candidate, short; empty where there was nothing. cause: where in the candidate it
    comes from, as `file: function`, found and never written in; empty where nothing points there.
    evidence: how to see it again: a command, or a place in the report folder. tolerated: why the
    policy lets an objection pass, empty where it does not.
    """

    key: str
    change: Change
    weight: Weight
    what: str
    before: str = ""
    after: str = ""
    cause: str = ""
    evidence: str = ""
    tolerated: str = ""

    @property
    def objects(self) -> bool:
        """Whether it speaks against the candidate."""
        return self.weight is Weight.OBJECTION and not self.tolerated


@dataclass(frozen=True)
class Figure:
    """A measured time of both packages, alternating in one run; medians in microseconds.

    name: of what, such as "host time of a plan, 64 rows, 1024 reserved". kind: what a policy
    limits, of "plan", "kernel" and "launch". where: the processor or GPU. ratio: the median of the
    rounds' ratios, candidate over baseline. spread: largest less smallest of them. low: their lower
    quartile, which three rounds of four exceed.
    """

    name: str
    kind: str
    where: str
    baseline_us: float
    candidate_us: float
    ratio: float
    spread: float
    rounds: int
    low: float


@dataclass(frozen=True)
class TierResult:
    """What one tier says. reason, command: of one that did not run, why and what would run it.

    facts: what was looked at, for the reader: short words to numbers or texts, JSON values.
    """

    tier: str
    status: Status
    findings: tuple[Finding, ...] = ()
    figures: tuple[Figure, ...] = ()
    reason: str = ""
    command: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


def ran(
    tier: str,
    findings: tuple[Finding, ...],
    figures: tuple[Figure, ...] = (),
    facts: Mapping[str, Any] | None = None,
) -> TierResult:
    """The result of a tier that ran: it fails by an objection, else it passes."""
    status = Status.FAIL if any(found.objects for found in findings) else Status.PASS
    return TierResult(tier, status, findings, figures, facts=facts or {})


def not_run(tier: str, reason: str, command: str) -> TierResult:
    """The result of a tier that did not run; both texts are for the reader."""
    return TierResult(tier, Status.NOT_RUN, reason=reason, command=command)


@dataclass(frozen=True)
class Side:
    """One of the two packages, for a report. digest: SHA-256 of the wheel, or of a checkout."""

    asked: str
    version: str
    digest: str


@dataclass(frozen=True)
class GateResult:
    """A gate's answer for one subject. verdict: GO, NO-GO or INCOMPLETE."""

    subject: str
    subject_version: str
    baseline: Side
    candidate: Side
    tiers: tuple[TierResult, ...]
    verdict: str
    environment: Mapping[str, Any]
    schema: str = SCHEMA

    def as_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return asdict(self)
