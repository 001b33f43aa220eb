"""The wrapper tier: what a subject meets of the candidate's own Python code, beside the baseline's.

The code runs on the CPU on a pretended Hopper device (`conformance.twin.pretended`), over the
twin's planner and kernel. What it says of outputs is Python's part: which arguments reach the
kernel. Times are told and judged by a policy alone.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from conformance.gate.model import (
    Change,
    Figure,
    Finding,
    Status,
    TierResult,
    Weight,
    not_run,
    ran,
)
from conformance.gate.package import Package
from conformance.gate.pair import Answer, Child, ChildError, Pair, Untimed, scratch_folder
from conformance.gate.seen import BROKEN, ProbeSeen, Seen, StepSeen, Wait, from_json
from conformance.gate.stopwatch import FIGURES
from conformance.gate.uses import Uses

TIER = "wrapper"
WRAPPER = "BatchMLAPagedAttentionWrapper"
"""The class that the probes call."""

_OFF_PATH = "not on the subject's path"
_BEYOND = "beyond capacity"
_MISSING = (
    "the Python package {missing}, which this FlashInfer needs, is missing; to fix: install it "
    "beside the suite"
)


def examine(
    baseline: Package,
    candidate: Package,
    subject: str,
    *,
    command: str,
    scratch: Path | None = None,
    rounds: int = 5,
    samples: int = 4,
    timeout_s: float = 180.0,
) -> tuple[TierResult, Uses | None]:
    """Run both packages' code under a subject; return what the tier says, and the baseline's uses.

    subject: a factory, as `load_subject` takes it. command: what would run this tier again.
    rounds, samples: of the times; no rounds, no times. timeout_s: for each of a child's answers.
    """
    start = time.monotonic()
    with ExitStack() as stack:
        folder = scratch or Path(stack.enter_context(scratch_folder()))
        pair = stack.enter_context(Pair(baseline, candidate, subject, folder, timeout_s=timeout_s))
        before, after = pair.look()
        figures: list[Figure] = []
        untimed: list[Untimed] = []
        if before.seen is not None and after.seen is not None and rounds:
            figures, untimed = pair.time(tuple(FIGURES), rounds=rounds, samples=samples)
    result = _told(before, after, figures, command)
    if result.status is not Status.NOT_RUN and untimed:
        more = tuple(_untimed(one, command) for one in untimed)
        result = ran(TIER, (*result.findings, *more), result.figures, result.facts)
    uses = None if before.seen is None else before.seen.uses
    return replace(result, seconds=round(time.monotonic() - start, 1)), uses


def uses_of(baseline: Package, subject: str, *, timeout_s: float = 180.0) -> Uses | None:
    """What a subject uses of the baseline, with no other package run; None where it cannot run."""
    with scratch_folder() as folder:
        child = Child("baseline", baseline, subject, Path(folder), timeout_s)
        try:
            child.ready()
            return from_json(child.ask({"do": "look", "uses": True})).uses
        except ChildError:
            return None
        finally:
            child.close()


def _untimed(one: Untimed, command: str) -> Finding:
    """A step that could not be timed: an objection where the candidate alone is to blame."""
    alone = bool(one.candidate) and not one.baseline and not one.blameless
    slug = one.name.replace(" ", "-").replace(",", "")
    return Finding(
        f"{TIER}/time/{slug}",
        Change.CHANGED if alone else Change.UNCHANGED,
        Weight.OBJECTION if alone else Weight.REVIEW,
        f"'{one.name}' could not be timed{' on the candidate alone' if alone else ''}.",
        one.baseline or ("timed" if alone else one.problem),
        one.candidate or ("" if alone else one.problem),
        evidence=command,
    )


def _told(before: Answer, after: Answer, figures: Sequence[Figure], command: str) -> TierResult:
    if before.problem is not None:
        missing = before.problem.missing
        reason = _MISSING.format(missing=missing) if missing else str(before.problem)
        return not_run(TIER, f"the baseline's code did not run: {reason}", command)
    if after.problem is not None:
        if after.problem.missing and not after.problem.missing.startswith("flashinfer"):
            missing = _MISSING.format(missing=after.problem.missing)
            return not_run(TIER, f"the candidate's code did not run: {missing}", command)
        if after.problem.blameless:
            return not_run(TIER, f"the candidate's code was not seen: {after.problem}", command)
        finding = Finding(
            f"{TIER}/step/import", Change.CHANGED, Weight.OBJECTION,
            "The candidate's Python code does not run where the baseline's does.",
            "runs", str(after.problem), evidence=command,
        )  # fmt: skip
        return ran(TIER, (finding,))
    assert before.seen is not None and after.seen is not None
    first = next((step for step in before.seen.steps if step.refused or step.right is False), None)
    if first is not None and not any(step.right for step in before.seen.steps):
        reason = (
            f"the subject does not work on the baseline: {first.name}: {first.refused or 'wrong'}"
        )
        return not_run(TIER, reason, command)
    return judge(before.seen, after.seen, before.seen.uses or Uses(), figures, evidence=command)


def judge(
    baseline: Seen,
    candidate: Seen,
    uses: Uses,
    figures: Sequence[Figure] = (),
    *,
    evidence: str = "",
) -> TierResult:
    """Compare what was seen. uses: of the subject on the baseline; evidence: a command."""
    findings: list[Finding] = []
    after = {step.name: step for step in candidate.steps}
    for step in baseline.steps:
        findings += _step(step, after[step.name])
    findings += _probes(baseline, candidate, on_path=uses.wraps(WRAPPER))
    facts = {
        "steps": len(baseline.steps),
        "probes": len(baseline.probes),
        "calls the wrapper class": uses.wraps(WRAPPER),
        "module below the baseline": _module(baseline),
        "module below the candidate": _module(candidate),
    }
    told = tuple(replace(finding, evidence=evidence) for finding in findings)
    return ran(TIER, told, tuple(figures), facts)


def _module(seen: Seen) -> str:
    return seen.semantics if seen.known else f"{seen.semantics} (its own sources are unknown)"


def _finding(
    kind: str, name: str, alike: bool, weight: Weight, what: str, before: str, after: str,
    cause: str = "",
) -> Finding:  # fmt: skip
    change = Change.UNCHANGED if alike else Change.CHANGED
    weight = Weight.NOTE if alike else weight
    key = f"{TIER}/{kind}/{name.replace(' ', '-')}"
    return Finding(key, change, weight, what, before, after, cause)


def _step(before: StepSeen, after: StepSeen) -> Iterator[Finding]:
    name = before.name
    if before.skipped and (after.skipped or not after.refused):
        text = f"Step '{name}' was not judged: {before.skipped}."
        yield _finding("step", name, True, Weight.NOTE, text, before.skipped, after.skipped)
        return
    if after.skipped:  # what it builds on was refused, which is told there
        text = f"Step '{name}' could not be tried: {after.skipped}."
        yield _finding("step", name, False, Weight.REVIEW, text, "done", after.skipped)
        return
    yield _refusal(name, before, after)
    if before.refused or after.refused:
        return
    yield _waits(name, before.waits, after.waits)
    yield _finding(
        "native", name, before.native == after.native, Weight.REVIEW,
        f"Step '{name}': calls of the native module"
        + (" are the same." if before.native == after.native else " differ."),
        "; ".join(before.native), "; ".join(after.native),
    )  # fmt: skip
    if before.right is not None or after.right is not None:
        alike = before.right == after.right
        worse = bool(before.right) and not after.right
        text = "wrong" if not after.right else "right"
        yield _finding(
            "output", name, alike, Weight.OBJECTION if worse else Weight.NOTE,
            f"Step '{name}': the output is {text}" + ("." if alike else " now."),
            _right(before), _right(after),
        )  # fmt: skip


def _right(step: StepSeen) -> str:
    return f"{'right' if step.right else 'wrong'}, {step.error:.2g} of its bound"


def _refusal(name: str, before: StepSeen, after: StepSeen) -> Finding:
    seen = before.refused or "done", after.refused or "done"
    if bool(before.refused) == bool(after.refused):
        alike = before.refused.partition(":")[0] == after.refused.partition(":")[0]
        what = f"Step '{name}' is {'refused' if after.refused else 'done'} by both."
        return _finding("step", name, alike, Weight.REVIEW, what, *seen, after.where)
    if after.refused:
        what = f"Step '{name}' is refused now."
        return _finding("step", name, False, Weight.OBJECTION, what, *seen, after.where)
    if name == _BEYOND:
        what = "More rows than a schedule holds reach the native planner, which does not count."
        cause = f"a check is gone that was in {before.where}"
        return _finding("step", name, False, Weight.OBJECTION, what, *seen, cause)
    what = f"Step '{name}' is refused no longer."
    return _finding("step", name, False, Weight.NOTE, what, *seen, before.where)


def _waits(name: str, before: Sequence[Wait], after: Sequence[Wait]) -> Finding:
    had, has = Counter(before), Counter(after)
    more, fewer = has - had, had - has
    seen = f"{len(before)} waits", f"{len(after)} waits"
    if len(after) > len(before):
        added = "; ".join(sorted({f"{wait.what} ({wait.kind})" for wait in more}))
        what = f"Step '{name}' waits for the device {len(after) - len(before)} times more: {added}."
        cause = "; ".join(sorted({wait.where for wait in more if wait.where}))
        return _finding("waits", name, False, Weight.OBJECTION, what, *seen, cause)
    if len(after) < len(before):
        cause = "; ".join(sorted({wait.where for wait in fewer if wait.where}))
        what = f"Step '{name}' waits for the device less often."
        return _finding("waits", name, False, Weight.NOTE, what, *seen, cause)
    what = f"Step '{name}' waits for the device as often."
    return _finding("waits", name, True, Weight.NOTE, what, *seen)


def _probes(baseline: Seen, candidate: Seen, *, on_path: bool) -> Iterator[Finding]:
    alike, broken = 0, candidate.probes.get(BROKEN) or baseline.probes.get(BROKEN)
    if broken is not None:
        what = "The wrapper's probes could not be made, since a plain plan or run is refused."
        weight = Weight.REVIEW if on_path else Weight.NOTE
        yield _finding("probe", "all", False, weight, what, "", broken.said, broken.where)
        return
    for name in sorted({*baseline.probes, *candidate.probes}):
        before = baseline.probes.get(name, ProbeSeen("absent"))
        after = candidate.probes.get(name, ProbeSeen("absent"))
        if before.outcome == after.outcome:
            alike += 1
            continue
        weight, what, cause = _probe(name, before, after)
        if not on_path:
            weight, what = Weight.NOTE, f"{what[:-1]} ({_OFF_PATH})."
        yield _finding("probe", name, False, weight, what, _text(before), _text(after), cause)
    what = f"{alike} of the wrapper's probes end the same way."
    yield _finding("probe", "all others", True, Weight.NOTE, what, str(alike), str(alike))


def _probe(name: str, before: ProbeSeen, after: ProbeSeen) -> tuple[Weight, str, str]:
    if after.outcome == "ok":
        what = f"A check is gone: '{name}' is accepted now, and the native code gets it."
        return Weight.OBJECTION, what, f"a check is gone that was in {before.where}"
    if before.outcome == "ok":
        return Weight.REVIEW, f"The wrapper refuses '{name}' now.", after.where
    return Weight.REVIEW, f"The wrapper's probe '{name}' ends otherwise.", after.where


def _text(probe: ProbeSeen) -> str:
    return probe.said or str(probe.outcome)
