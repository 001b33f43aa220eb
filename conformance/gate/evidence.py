"""Evidence from a GPU, weighed: the records of both packages become findings, or a reason why not.

A requirement that was right on the baseline and is wrong now speaks against the candidate, whether
the ledger of known deviations foretells it or not. What is wrong on both and foretold is a review.
What is wrong and foretold by nobody speaks against it in any case.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from conformance.core.catalogue import ALIVE
from conformance.core.record import Outcome, Record
from conformance.gate.cases import Seen, compare, seen
from conformance.gate.model import Change, Finding, Side, Weight

TIER = "hopper"
_TEXT = 300
_BARELY = (Outcome.REFUSED, Outcome.UNOBSERVABLE)
"""What a subject may do on both packages without the upgrade's having to do with it."""
_WEIGHTS = (Weight.NOTE, Weight.REVIEW, Weight.OBJECTION)


@dataclass(frozen=True)
class Evidence:
    """One package's records of one subject on a GPU.

    subject, version: as the subject calls itself. where: the archive or folder they are from.
    gpu: its name. command: what made them.
    """

    side: Side
    subject: str
    version: str
    records: tuple[Record, ...]
    where: str
    gpu: str = ""
    command: str = ""


def records_of(evidence: Iterable[Evidence], side: Side) -> tuple[Record, ...]:
    """All records of one side, from whichever files."""
    return tuple(r for one in evidence if one.side.digest == side.digest for r in one.records)


def weigh(before: Sequence[Record], after: Sequence[Record], evidence: str) -> tuple[Finding, ...]:
    """Return one finding per requirement; cases that only the candidate has are judged alone."""
    after = [record for record in after if record.tier == TIER]
    known = {record.case for record in before if record.tier == TIER}
    both = [record for record in after if record.case in known]
    unknown = _unforetold(both)
    compared = [
        _escalated(finding, unknown.get(finding.key.rpartition("/")[2], []))
        for finding in (compare(before, both, TIER, evidence) if both else ())
    ]
    alone = _alone([record for record in after if record.case not in known], evidence, bool(known))
    return _heavier([*compared, *alone])


def gaps(expected: Sequence[str], before: Iterable[Record], after: Iterable[Record]) -> list[str]:
    """Say why the candidate's records are not those of a whole run; nothing where they are.

    expected: every case of a whole run. A case that the subject refuses, or of which it shows too
    little, is one that was run if the baseline's is the same; else it is not judged.
    """
    had, has = _by_case(before), _by_case(after)
    missing = [case for case in expected if case not in has]
    told = []
    if missing:
        told.append(
            f"{len(missing)} of {len(expected)} cases of the whole suite have no record, "
            f"{missing[0]} the first: a selection, or a run that was cut short"
        )
    open_: dict[str, list[Record]] = {}
    for case in expected:
        record = has.get(case)
        if record is None or seen(record) is Seen.RIGHT or record.failed:
            continue
        if record.outcome is Outcome.XFAIL:
            continue
        same = case in had and had[case].outcome is record.outcome
        if not (record.outcome in _BARELY and same):
            open_.setdefault(record.requirement, []).append(record)
    for requirement, records in open_.items():
        least = sum(case.partition("/")[0] == requirement for case in expected)
        first = records[0]
        told.append(
            f"{requirement}: {least - len(records)} of at least {least} cases were judged "
            f"({first.case} {first.outcome}: {_line(first.message) or 'no reason given'})"
        )
    alive = [r for r in has.values() if r.requirement == ALIVE]
    if alive and not any(r.outcome is Outcome.PASS for r in alive):
        told.append(f"{ALIVE}: no case passed, so the others say nothing")
    return told


def barely(after: Iterable[Record]) -> Finding | None:
    """What the subject does not show on either package: told, and no objection."""
    hidden = [r for r in after if r.tier == TIER and r.outcome in _BARELY]
    if not hidden:
        return None
    ids = list(dict.fromkeys(record.requirement for record in hidden))
    return Finding(
        key=f"{TIER}/not-shown",
        change=Change.UNCHANGED,
        weight=Weight.REVIEW,
        what=f"{len(hidden)} cases of {len(ids)} requirements were refused by the subject, or it "
        f"shows too little for them, {hidden[0].case} the first: nothing is known of them",
        after=", ".join(ids),
    )


def _unforetold(records: Iterable[Record]) -> dict[str, list[Record]]:
    """What is wrong and no ledger knows, by requirement."""
    found: dict[str, list[Record]] = {}
    for record in records:
        if record.failed and record.outcome is not Outcome.XPASS:
            found.setdefault(record.requirement, []).append(record)
    return found


def _escalated(finding: Finding, unforetold: Sequence[Record]) -> Finding:
    if not unforetold or finding.weight is Weight.OBJECTION:
        return finding
    return replace(
        finding,
        weight=Weight.OBJECTION,
        what=f"{finding.what}; no ledger of known deviations foretells {_first(unforetold)}",
    )


def _alone(records: Sequence[Record], evidence: str, partly: bool) -> list[Finding]:
    """Findings on cases that the baseline has no records of, by what the suite says of them."""
    by_id: dict[str, list[Record]] = {}
    for record in records:
        by_id.setdefault(record.requirement, []).append(record)
    unknown = _unforetold(records)
    before = "not seen in all cases" if partly else "not seen"
    findings = []
    for id, each in by_id.items():
        known = [record for record in each if record.outcome is Outcome.XFAIL]
        right = sum(seen(record) is Seen.RIGHT for record in each)
        change, weight = Change.UNCHANGED, Weight.NOTE
        if wrong := unknown.get(id, []):
            change, weight = Change.CHANGED, Weight.OBJECTION
            said = f"{_cases(wrong)} wrong: {_first(wrong)}"
        elif known:
            weight = Weight.REVIEW
            said = f"{_cases(known)} wrong as the ledger of known deviations says: {_first(known)}"
        elif right:
            said = "right"
        else:
            said = "no case of it was judged"
        findings.append(
            Finding(
                key=f"{TIER}/{id}",
                change=change,
                weight=weight,
                what=f"{id}: {said}; the baseline's cases were not seen",
                before=before,
                after=f"{right} right of {len(each)}",
                evidence=evidence,
            )
        )
    return findings


def _heavier(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """One finding per key: the one that weighs most, the first of equals."""
    kept: dict[str, Finding] = {}
    for finding in findings:
        other = kept.get(finding.key)
        if other is None or _WEIGHTS.index(finding.weight) > _WEIGHTS.index(other.weight):
            kept[finding.key] = finding
    return tuple(kept.values())


def _by_case(records: Iterable[Record]) -> Mapping[str, Record]:
    """The record of each case on this tier: a judged one before one that is not."""
    found: dict[str, Record] = {}
    for record in records:
        if record.tier != TIER:
            continue
        if record.case not in found or seen(found[record.case]) is Seen.UNJUDGED:
            found[record.case] = record
    return found


def _cases(records: Sequence[Record]) -> str:
    return f"{len(records)} case{'s' * (len(records) != 1)}"


def _first(records: Sequence[Record]) -> str:
    record = records[0]
    message = _line(record.message.removeprefix(f"{record.case}:"))
    return f"{record.case} ({record.outcome}): {message}".rstrip(": ")


def _line(text: str) -> str:
    return " ".join(text.split())[:_TEXT]
