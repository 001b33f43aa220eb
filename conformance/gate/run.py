"""Runs a gate: every tier for every subject, the policy on them, the verdict, the report."""

import datetime
import shlex
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from conformance.cache import Cache
from conformance.core.environment import describe
from conformance.gate import hopper, planner, policy, static, store, twin, verdict, wrapper
from conformance.gate.errors import GateError
from conformance.gate.markdown import markdown
from conformance.gate.model import TIERS, GateResult, TierResult, not_run
from conformance.gate.package import Package
from conformance.gate.page import page
from conformance.gate.policy import Policy
from conformance.gate.telling import summary

Named = hopper.Asked
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Asked:
    """A whole gate. results: archives from GPU hosts. tiers: those that may run.

    whole_twin: the whole suite on the twin, not its smoke subset. report: folder for what is found.
    """

    baseline: Package
    candidate: Package
    subjects: tuple[Named, ...]
    policy: Policy
    results: tuple[Path, ...]
    tiers: frozenset[str]
    whole_twin: bool
    report: Path
    cache: Cache

    @property
    def again(self) -> str:
        """The command that runs this gate."""
        words = ["python", "-m", "conformance", "gate", self.baseline.asked, self.candidate.asked]
        words += [word for named in self.subjects for word in ("--subject", named.given)]
        words += ["--trust"] if self.baseline.trusted or self.candidate.trusted else []
        words += ["--whole-twin"] if self.whole_twin else []
        return shlex.join(words)


@dataclass(frozen=True)
class Judged:
    """A result and the decision on it."""

    result: GateResult
    decision: verdict.Decision


def gate(asked: Asked, tell: Tell) -> tuple[list[Judged], tuple[str, ...]]:
    """Return what was judged, one per subject, and what there is to say of the policy's entries.

    tell: takes a line of progress. The report is written once all is judged. Raises GateError where
    what was given cannot be used; archives are looked at before anything else runs.
    """
    store.clear(asked.report)  # no older verdict may pass for this one
    carried = {
        named.given: _hoppers(asked, named, tell) for named in asked.subjects if asked.results
    }
    plans = _tier(asked, "planner", None, lambda: planner.judge(*_pair(asked), asked.cache), tell)
    today, environment = datetime.date.today(), describe()
    judged, applied = [], []
    for named in asked.subjects:
        tiers = _tiers(asked, named, plans, carried, tell)
        weighed = policy.apply(tiers, asked.policy, named.identity.name, today)
        sides = (asked.baseline.side, asked.candidate.side)
        decision = verdict.decide(weighed.tiers, named.given, *sides)
        who = (named.identity.name, named.identity.version)
        result = GateResult(*who, *sides, weighed.tiers, decision.word, environment)
        judged.append(Judged(result, decision))
        applied.append(weighed)
    _write(asked.report, judged)
    return judged, policy.told(asked.policy, today, applied)


def _tiers(
    asked: Asked, named: Named, plans: TierResult, carried: Mapping[str, TierResult], tell: Tell
) -> tuple[TierResult, ...]:
    """One subject's tiers, in their order."""
    uses = None
    found = {"planner": plans}

    def wrapped() -> TierResult:
        nonlocal uses
        with tempfile.TemporaryDirectory(prefix="gate-wrapper-") as scratch:
            result, uses = wrapper.examine(
                *_pair(asked), named.factory, command=asked.again, scratch=Path(scratch)
            )
        return result

    # What the subject uses of the baseline is seen where it runs, and then read in the sources.
    found["wrapper"] = _tier(asked, "wrapper", named, wrapped, tell)
    if "static" in asked.tiers and "wrapper" not in asked.tiers:
        uses = wrapper.uses_of(asked.baseline, named.factory)  # the candidate is only read then
    found["static"] = _tier(asked, "static", named, lambda: static.judge(*_pair(asked), uses), tell)
    found["twin"] = _tier(asked, "twin", named, lambda: _twin(asked, named), tell)
    found["hopper"] = carried.get(named.given) or _hoppers(asked, named, tell)
    return tuple(found[name] for name in TIERS)


def _pair(asked: Asked) -> tuple[Package, Package]:
    return asked.baseline, asked.candidate


def _twin(asked: Asked, named: Named) -> TierResult:
    report = asked.report / "twin" / _slug(named.given)
    return twin.judge(*_pair(asked), named.given, report, whole=asked.whole_twin)


def _hoppers(asked: Asked, named: Named, tell: Tell) -> TierResult:
    report = asked.report / "hopper" / _slug(named.given)

    def judged() -> TierResult:
        try:
            return hopper.judge(named, *_pair(asked), report, asked.results)
        except GateError as problem:
            if asked.results:  # what was given is wrong
                raise
            # What the other tiers have found is not lost with the suite's own failure.
            return not_run("hopper", str(problem), asked.again)

    return _tier(asked, "hopper", named, judged, tell)


def _tier(
    asked: Asked, name: str, named: Named | None, judge: Callable[[], TierResult], tell: Tell
) -> TierResult:
    """A tier that was asked for, else why it did not run."""
    if name not in asked.tiers:
        return _unasked(name, asked)
    return _timed(asked, name, named, judge, tell)


def _timed(
    asked: Asked, name: str, named: Named | None, judge: Callable[[], TierResult], tell: Tell
) -> TierResult:
    started = time.monotonic()
    result = replace(judge(), seconds=round(time.monotonic() - started, 1))
    whose = f" of {named.given}" if named is not None and len(asked.subjects) > 1 else ""
    tell(f"{name}{whose}: {result.status}, {result.seconds:.0f} s: {summary(result)}")
    return result


def _unasked(name: str, asked: Asked) -> TierResult:
    return not_run(name, "not asked for", f"{asked.again} --tier {name}")


def _slug(given: str) -> str:
    return "".join(c if c.isalnum() or c in "._=-" else "-" for c in given).strip("-.")[-80:]


def _write(report: Path, judged: list[Judged]) -> None:
    results = [one.result for one in judged]
    paragraphs = [one.decision.paragraph for one in judged]
    store.write_text(report / store.JSON, store.dumps(results))
    store.write_text(report / store.MARKDOWN, markdown(results, paragraphs))
    store.write_text(report / store.PAGE, page(results, paragraphs))
