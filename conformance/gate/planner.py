"""The planner tier: both packages' MLAPlan, compiled with g++, plan the same inputs.

The candidate's plans are held against the baseline's and against the twin's, plan-info by field and
staged bytes by array. What no plan writes is not compared.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from conformance.cache import Cache
from conformance.gate.headers import changed
from conformance.gate.model import Change, Finding, TierResult, Weight, not_run, ran
from conformance.gate.package import Package
from conformance.gate.planner_child import Plan
from conformance.gate.planner_inputs import SEED, Asked, inputs
from conformance.gate.planner_run import plans_of, plans_of_twin
from conformance.gate.schedule import KINDS, Difference, differences, place, shown
from conformance.twin import compiled
from conformance.twin.drawn import SM_COUNTS
from conformance.twin.errors import CompilerMissing, DoesNotCompile

TIER = "planner"

_NEEDED = "apt-get install g++; pip install --no-deps " + " ".join(compiled.HEADER_PACKAGES)
_REVIEWED = frozenset({"stray"})
_NO_HEADER = "No such file or directory"


@dataclass(frozen=True)
class _Seen:
    """An input, and how the candidate's plan of it differs."""

    index: int
    asked: Asked
    difference: Difference


def judge(baseline: Package, candidate: Package, cache: Cache) -> TierResult:
    """Compile both planners, plan with both, and say how they differ. cache: keeps the libraries.

    Code of both packages runs in child processes with a bare environment. Not run without a
    compiler, or where the baseline's planner cannot be compiled.
    """
    started = time.monotonic()
    result = _judge(baseline, candidate, cache, inputs())
    return replace(result, seconds=round(time.monotonic() - started, 3))


def _judge(
    baseline: Package, candidate: Package, cache: Cache, asked: Sequence[Asked]
) -> TierResult:
    try:
        first = compiled.library(cache, baseline.data)
    except CompilerMissing as problem:
        return not_run(TIER, f"the baseline's planner: {problem}", _NEEDED)
    try:
        second = compiled.library(cache, candidate.data)
    except DoesNotCompile as problem:
        error = _first_error(str(problem))
        if _NO_HEADER in error:
            return not_run(TIER, f"the candidate's planner needs a header: {error}", _NEEDED)
        cause = changed(baseline.data, candidate.data)
        return ran(TIER, (_uncompiled(error, cause),), facts=_facts(asked))
    except CompilerMissing as problem:
        return not_run(TIER, f"the candidate's planner: {problem}", _NEEDED)
    facts = {**_facts(asked), "same library": first == second}
    with ThreadPoolExecutor(2) as pool:
        sides = [pool.submit(plans_of, library, asked) for library in (first, second)]
        twin = plans_of_twin(asked)
        before, after = (side.result() for side in sides)
    if not any(plan.info for plan in before.values()):
        died = next((plan.died for plan in before.values() if plan.died), "no process of it starts")
        return not_run(TIER, f"the baseline's planner plans nothing here: {died}", _NEEDED)
    seen = _differences(asked, before, after)
    cause = changed(baseline.data, candidate.data) if seen else ""
    findings = [
        _finding(kind, seen[kind], before, after, twin, cause) for kind in KINDS if kind in seen
    ]
    findings += _left(asked, before, after)
    findings += _same(asked, before, after, twin)
    return ran(TIER, tuple(findings), facts=facts)


def _facts(asked: Sequence[Asked]) -> dict[str, object]:
    return {"inputs": len(asked), "seed": SEED, "SM counts": list(SM_COUNTS)}


def _first_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if "error:" in line]
    return lines[0] if lines else " ".join(text.split())[:300]


def _uncompiled(error: str, cause: str) -> Finding:
    return Finding(
        key=f"{TIER}/compiles",
        change=Change.CHANGED,
        weight=Weight.OBJECTION,
        what="MLAPlan cannot be called as it was: the candidate's planner does not compile against "
        "either of the two signatures on record",
        before="compiles",
        after=error,
        cause=cause,
        evidence=error,
    )


def _differences(
    asked: Sequence[Asked], before: Mapping[int, Plan], after: Mapping[int, Plan]
) -> dict[str, list[_Seen]]:
    """By kind, the inputs of which both sides have an answer and that differ so."""
    seen: dict[str, list[_Seen]] = {}
    for index, one in enumerate(asked):
        if index in before and index in after:
            for found in differences(before[index], after[index], one.given.num_sms):
                seen.setdefault(found.kind, []).append(_Seen(index, one, found))
    return seen


def _finding(
    kind: str,
    seen: Sequence[_Seen],
    before: Mapping[int, Plan],
    after: Mapping[int, Plan],
    twin: Mapping[int, Plan],
    cause: str,
) -> Finding:
    first = seen[0]
    sms, found = first.asked.given.num_sms, first.difference
    was, now, said = (shown(side[first.index], sms, found) for side in (before, after, twin))
    where = place(found)
    more = f"; also {', '.join(found.others)}" if found.others else ""
    what = (
        f"{KINDS[kind]} for {len(seen)} inputs, first for '{first.asked.name}'"
        + (f": {where}{more}" if where else "")
        + f"; the twin says {said}"
    )
    return Finding(
        key=f"{TIER}/{found.field}",
        change=Change.CHANGED,
        weight=Weight.REVIEW if kind in _REVIEWED else Weight.OBJECTION,
        what=what,
        before=was,
        after=now,
        cause=cause,
        evidence=f"input '{first.asked.name}' of conformance/gate/planner_inputs.py",
    )


def _left(
    asked: Sequence[Asked], before: Mapping[int, Plan], after: Mapping[int, Plan]
) -> list[Finding]:
    """What was not planned because processes died too often, on the baseline or on both."""
    left = [i for i in range(len(asked)) if i not in before or i not in after]
    if not left:
        return []
    return [
        Finding(
            key=f"{TIER}/unplanned",
            change=Change.CHANGED if len(after) < len(before) else Change.UNCHANGED,
            weight=Weight.OBJECTION if len(after) < len(before) else Weight.REVIEW,
            what=f"{len(left)} of {len(asked)} inputs are without a plan: a planner died too often",
            before=f"{len(before)} planned",
            after=f"{len(after)} planned",
        )
    ]


def _same(
    asked: Sequence[Asked],
    before: Mapping[int, Plan],
    after: Mapping[int, Plan],
    twin: Mapping[int, Plan],
) -> list[Finding]:
    """What did not change, and what the twin has otherwise although the packages agree."""
    same = [
        i
        for i in range(len(asked))
        if i in before and i in after and not before[i].died and before[i].same(after[i])
    ]
    findings = []
    if same:
        findings.append(
            Finding(
                key=f"{TIER}/plans",
                change=Change.UNCHANGED,
                weight=Weight.NOTE,
                what="plan-info and every staged byte are the same in both packages",
                before=f"{len(same)} of {len(asked)} inputs",
                after=f"{len(same)} of {len(asked)} inputs",
            )
        )
    other = [
        _Seen(i, asked[i], found)
        for i in same
        for found in differences(twin[i], after[i], asked[i].given.num_sms)
    ]
    if other:
        first = other[0]
        sms, found = first.asked.given.num_sms, first.difference
        ours, theirs = (shown(side[first.index], sms, found) for side in (twin, after))
        where = place(found)
        findings.append(
            Finding(
                key=f"{TIER}/twin",
                change=Change.UNCHANGED,
                weight=Weight.REVIEW,
                what=f"both packages plan otherwise than the twin for {len(other)} inputs, so what "
                f"the twin says of them is not theirs; first '{first.asked.name}': "
                f"{KINDS[found.kind]}{f': {where}' if where else ''}",
                before=f"twin {ours}",
                after=f"packages {theirs}",
            )
        )
    return findings
