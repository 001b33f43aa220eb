"""Records of one tier on baseline and candidate, compared case by case and told by requirement.

Right is a case that passed, also where the ledger of known deviations foretold a fault. Wrong is
one that failed, crashed, hung or was refused, also where that was foretold: a known deviation is
still one. A case that was skipped, or of which the subject shows too little, is neither.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from conformance.core.catalogue import REQUIREMENTS
from conformance.core.record import Outcome, Record
from conformance.gate.model import Change, Finding, Weight

_TEXT = 300


class Seen(StrEnum):
    """What the records say of a case; the worst stands where several speak of it."""

    WRONG = "wrong"
    UNJUDGED = "not judged"
    RIGHT = "right"


_RANK = tuple(Seen)
_OF = {
    Outcome.PASS: Seen.RIGHT,
    Outcome.XPASS: Seen.RIGHT,
    Outcome.UNOBSERVABLE: Seen.UNJUDGED,
    Outcome.SKIPPED: Seen.UNJUDGED,
}


def seen(record: Record) -> Seen:
    """What one record says of its case."""
    return _OF.get(record.outcome, Seen.WRONG)


def compare(
    before: Sequence[Record], after: Sequence[Record], tier: str, evidence: str
) -> tuple[Finding, ...]:
    """One finding per requirement that either side has records of, in the catalogue's order.

    before, after: of baseline and candidate; records of other tiers than `tier` do not count.
    evidence: how to see it again. An objection is a requirement with a case that is wrong on the
    candidate and was not on the baseline, or that was right and of which the candidate's subject no
    longer shows enough. A case that only one side has a record of is no objection by itself, unless
    it is the candidate's and wrong: see `unanswered`.
    """
    first, second = _by_case(before, tier), _by_case(after, tier)
    ids = {record.requirement for side in (first, second) for record in side.values()}
    known = [id for id in REQUIREMENTS if id in ids]
    return tuple(
        _finding(tier, id, _of(first, id), _of(second, id), evidence)
        for id in (*known, *sorted(ids - set(known)))
    )


def unanswered(before: Iterable[Record], after: Iterable[Record], tier: str) -> list[str]:
    """Cases that were judged on the baseline and that the candidate's records leave out.

    Skipped counts as left out: the reason for it lies in the machine, not in the package.
    """
    second = _by_case(after, tier)
    return sorted(
        case
        for case, record in _by_case(before, tier).items()
        if seen(record) is not Seen.UNJUDGED
        and (case not in second or second[case].outcome is Outcome.SKIPPED)
    )


def _by_case(records: Iterable[Record], tier: str) -> dict[str, Record]:
    """The worst record of each case."""
    worst: dict[str, Record] = {}
    for record in records:
        if record.tier != tier:
            continue
        other = worst.get(record.case)
        if other is None or _RANK.index(seen(record)) < _RANK.index(seen(other)):
            worst[record.case] = record
    return worst


def _of(side: Mapping[str, Record], requirement: str) -> dict[str, Record]:
    return {case: record for case, record in side.items() if record.requirement == requirement}


@dataclass(frozen=True)
class _Cases:
    """The cases of a requirement, by what became of them."""

    worse: list[str]
    hidden: list[str]  # right before, and not to be seen any more
    wrong: list[str]  # on both
    better: list[str]

    @classmethod
    def of(cls, first: Mapping[str, Record], second: Mapping[str, Record]) -> "_Cases":
        at = {case: seen(record) for case, record in first.items()}
        now = {case: seen(record) for case, record in second.items()}
        wrong = [case for case in sorted(now) if now[case] is Seen.WRONG]
        return cls(
            worse=[case for case in wrong if at.get(case) is not Seen.WRONG],
            hidden=[
                case
                for case in sorted(now)
                if at.get(case) is Seen.RIGHT and second[case].outcome is Outcome.UNOBSERVABLE
            ],
            wrong=[case for case in wrong if at.get(case) is Seen.WRONG],
            better=[
                case
                for case in sorted(now)
                if now[case] is Seen.RIGHT and at.get(case) is not Seen.RIGHT
            ],
        )


def _finding(
    tier: str,
    requirement: str,
    first: Mapping[str, Record],
    second: Mapping[str, Record],
    evidence: str,
) -> Finding:
    cases = _Cases.of(first, second)
    change, weight = Change.CHANGED, Weight.NOTE
    if cases.worse:
        weight = Weight.OBJECTION
        said = f"{_count(cases.worse)} wrong now: {_first(second, cases.worse)}"
    elif cases.hidden:
        weight = Weight.OBJECTION
        said = f"{_count(cases.hidden)} no longer shown: {_first(second, cases.hidden)}"
    elif cases.wrong:
        change, weight = Change.UNCHANGED, Weight.REVIEW
        said = f"{_count(cases.wrong)} wrong before and now: {_first(second, cases.wrong)}"
    elif cases.better:
        said = f"{_count(cases.better)} right now, of which the baseline did not show it"
    elif not any(seen(record) is Seen.RIGHT for record in second.values()):
        lost = any(seen(record) is not Seen.UNJUDGED for record in first.values())
        change, weight = Change.UNCHANGED, Weight.REVIEW if lost else Weight.NOTE
        said = "no case of it was judged on the candidate"
    else:
        change, said = Change.UNCHANGED, "right before and now"
    known = REQUIREMENTS.get(requirement)
    return Finding(
        key=f"{tier}/{requirement}",
        change=change,
        weight=weight,
        what=f"{requirement}{f' ({known.sentence.rstrip(chr(46))})' if known else ''}: {said}",
        before=_tally(first),
        after=_tally(second),
        evidence=evidence,
    )


def _count(cases: Sequence[str]) -> str:
    return f"{len(cases)} case{'s' * (len(cases) != 1)}"


def _first(side: Mapping[str, Record], cases: Sequence[str]) -> str:
    record = side[cases[0]]
    told = record.message.removeprefix(f"{record.case}:").partition("\n  repro")[0]
    message = " ".join(told.split())
    return f"{record.case} ({record.outcome}): {message[:_TEXT]}".rstrip(": ")


def _tally(side: Mapping[str, Record]) -> str:
    """Such as `11 right, 1 wrong of 12`."""
    counts = [(kind, sum(seen(r) is kind for r in side.values())) for kind in reversed(_RANK)]
    told = ", ".join(f"{count} {kind}" for kind, count in counts if count)
    return f"{told} of {len(side)}" if told else ""
