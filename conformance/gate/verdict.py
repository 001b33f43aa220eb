"""The verdict on an upgrade for one subject, and what a manager is told of it.

GO takes evidence from a GPU: no CPU tier can give it, and any tier can refuse.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from conformance.gate.model import TIERS, Finding, Side, Status, TierResult, Weight


class Answer(IntEnum):
    """The gate's exit codes."""

    GO = 0
    NO_GO = 1
    INCOMPLETE = 2
    ASKED_WRONGLY = 3


WORDS = {Answer.GO: "GO", Answer.NO_GO: "NO-GO", Answer.INCOMPLETE: "INCOMPLETE"}
_SEVERITY = (Answer.GO, Answer.INCOMPLETE, Answer.NO_GO, Answer.ASKED_WRONGLY)
_SHOWN = 3
_GPU, _SOURCES = "hopper", "static"


@dataclass(frozen=True)
class Decision:
    """The verdict. word: GO, NO-GO or INCOMPLETE. paragraph: three to five plain sentences."""

    word: str
    exit: Answer
    paragraph: str


def worst(answers: Iterable[Answer]) -> Answer:
    """Return the exit code that stands for several subjects: 3, else 1, else 2, else 0."""
    return max(answers, key=_SEVERITY.index)


def objections(tiers: Iterable[TierResult]) -> tuple[Finding, ...]:
    """Return what speaks against the candidate, of the earliest tier first."""
    by_tier = {tier.tier: tier for tier in tiers}
    return tuple(
        finding
        for name in TIERS
        if name in by_tier and by_tier[name].status is not Status.NOT_RUN
        for finding in by_tier[name].findings
        if finding.objects
    )


def decide(tiers: Sequence[TierResult], subject: str, baseline: Side, candidate: Side) -> Decision:
    """Return the verdict on the tiers of one subject, as a policy left them.

    A tier that is not among them did not run. Raise ValueError for one that is there twice, or
    whose status is not what its findings say.
    """
    by_tier = {tier.tier: tier for tier in tiers}
    if len(by_tier) != len(tiers) or not set(by_tier) <= {*TIERS}:
        raise ValueError(f"tiers: found {[t.tier for t in tiers]}; allowed: each of {TIERS} once")
    for tier in tiers:
        if tier.status is Status.PASS and any(found.objects for found in tier.findings):
            raise ValueError(f"{tier.tier}: found an objection in a tier that passed")
    done = [name for name in TIERS if _status(by_tier, name) is not Status.NOT_RUN]
    if any(_status(by_tier, name) is Status.FAIL for name in done):
        answer = Answer.NO_GO
    elif _GPU in done and _SOURCES in done:
        answer = Answer.GO
    else:
        answer = Answer.INCOMPLETE
    left = [name for name in TIERS if name not in done]
    sentences = [
        _compared(subject, baseline, candidate, done),
        _consequence(answer, by_tier, done),
        *([_unchecked(by_tier, left)] if left else []),
        _next(answer, by_tier, subject),
    ]
    return Decision(WORDS[answer], answer, " ".join(sentences))


def _status(by_tier: dict[str, TierResult], name: str) -> Status:
    return by_tier[name].status if name in by_tier else Status.NOT_RUN


def _compared(subject: str, baseline: Side, candidate: Side, done: Sequence[str]) -> str:
    tiers = f"in the tiers {_list(done)}" if done else "in no tier"
    versions = f"FlashInfer {candidate.version} was compared with {baseline.version}"
    if candidate.version == baseline.version:
        versions = (
            f"FlashInfer {candidate.version} ({candidate.asked}) was compared with another one of "
            f"the same version ({baseline.asked})"
        )
    if candidate.digest == baseline.digest:
        versions = f"FlashInfer {candidate.version} was compared with itself"
    return f"{versions} for the attention backend {subject}, {tiers}."


def _consequence(answer: Answer, by_tier: dict[str, TierResult], done: Sequence[str]) -> str:
    if answer is Answer.NO_GO:
        found = objections(by_tier.values())
        groups = _by_cause(found)
        told = "; ".join(_told(group) for group in groups[:_SHOWN])
        left = sum(len(group) for group in groups[_SHOWN:])
        more = f"; and {left} more" if left else ""
        if not found:  # a tier may fail as a whole
            failed = [name for name in done if by_tier[name].status is Status.FAIL]
            told = f"the tier {failed[0]} failed" + (
                f": {by_tier[failed[0]].reason}" if by_tier[failed[0]].reason else ""
            )
        return f"If the upgrade goes on: {told}{more}."
    passed = [f for name in done for f in by_tier[name].findings if f.tolerated]
    kept = f", save for {_count(len(passed), 'objection')} that the policy lets pass" * bool(passed)
    if answer is Answer.GO:
        return f"Nothing speaks against it, on a Hopper GPU or in its sources{kept}."
    if not any(name != _GPU for name in done):
        return "Nothing was found against it, and too little was looked at to say more."
    if _GPU in done:
        return f"No tier that ran objects{kept}, but the sources were not compared."
    return (
        f"CPU tiers: no objection{kept}; how it computes, and how fast, is known once it has run "
        "on a GPU."
    )


def _by_cause(found: Sequence[Finding]) -> list[list[Finding]]:
    """Objections of one kind that one place in the candidate makes, told as one."""
    groups: dict[object, list[Finding]] = {}
    for finding in found:
        kind = finding.key.rpartition("/")[0]
        groups.setdefault((kind, finding.cause) if finding.cause else finding.key, []).append(
            finding
        )
    return list(groups.values())


def _told(group: Sequence[Finding]) -> str:
    first = group[0]
    text = first.what.rstrip(". ")
    more = f", and so in {_count(len(group) - 1, 'other place')}" if len(group) > 1 else ""
    return f"{text}{more} (in {first.cause})" if first.cause else f"{text}{more}"


def _unchecked(by_tier: dict[str, TierResult], left: Sequence[str]) -> str:
    told = []
    for name in left:
        tier = by_tier.get(name)
        reason = tier.reason.rstrip(". ") if tier and tier.reason else "not asked for"
        told.append(f"{name} ({reason})")
    ways = any(name in by_tier and by_tier[name].command for name in left)
    how = "; the report has the commands that would check it" if ways else ""
    return f"Not checked: {', '.join(told)}{how}."


def _next(answer: Answer, by_tier: dict[str, TierResult], subject: str) -> str:
    reviews = sum(
        finding.weight is Weight.REVIEW
        for tier in by_tier.values()
        if tier.status is not Status.NOT_RUN
        for finding in tier.findings
    )
    read = f"read {_count(reviews, 'finding')} marked for review" if reviews else ""
    if answer is Answer.NO_GO:
        return (
            f"Next: stay on the baseline for {subject}; change the backend or wait for another "
            "FlashInfer, then ask again."
        )
    if answer is Answer.GO:
        return f"Next: {read + ', then ' if read else ''}upgrade one host, then the fleet."
    first = "run the tiers that did not run, a Hopper GPU's before all"
    return f"Next: {read + ', and ' if read else ''}{first}; until then the fleet stays as it is."


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"
