"""Reading off a verdict: what ran, what did not and why, and the exit code."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from conformance.core.catalogue import REQUIREMENTS
from conformance.core.record import Outcome, Record
from conformance.core.request import Request


class Exit(IntEnum):
    """The suite's exit codes."""

    CONFORMS = 0
    DOES_NOT = 1
    INCOMPLETE = 2
    SUITE_FAILED = 3


@dataclass
class Verdict:
    """What a run showed. not_run: (what, why, command that runs it)."""

    records: list[Record]
    ran: list[str]
    not_run: list[tuple[str, str, str]] = field(default_factory=list)
    short: list[str] = field(default_factory=list)
    incomplete: bool = False
    selection: bool = False

    @property
    def failures(self) -> list[Record]:
        """Records that speak against the subject."""
        return [r for r in self.records if r.failed]

    @property
    def exit(self) -> Exit:
        """The exit code. A selection that passes is no more than that, and said so."""
        if self.failures:
            return Exit.DOES_NOT
        if self.incomplete or self.short:
            return Exit.INCOMPLETE
        return Exit.CONFORMS


def judge(request: Request, verdict: Verdict) -> None:
    """Add to a verdict what did not run and which requirements stayed below their minimum."""
    passed = Counter((r.tier, r.requirement) for r in verdict.records if r.outcome is Outcome.PASS)
    seen = {record.tier for record in verdict.records}
    if "hopper" not in seen:
        asked = request.tier == "hopper" or "hopper" in request.require
        no_gpu = "no GPU of compute capability 9.0 is visible"
        why = "not asked for" if request.tier == "twin" else no_gpu
        again = "python -m conformance run --require hopper (where a Hopper GPU is)"
        verdict.not_run.append(("hopper tier", why, again))
        verdict.incomplete |= asked
    if "twin" not in seen:
        verdict.not_run.append(
            ("twin tier", "not asked for", "python -m conformance run --tier twin")
        )
    if request.selection:
        # No verdict on conformance, but what was selected must have been judged.
        open_ = [r for r in verdict.records if r.outcome is not Outcome.PASS and not r.failed]
        verdict.short += [f"{r.case} on {r.tier}: {r.outcome} ({r.message})" for r in open_]
        return
    verdict.incomplete |= "twin" not in seen
    if "twin" in seen and not any(r.interpreted for r in verdict.records):
        again = "python -m conformance run --tier twin --kernels auto"
        verdict.not_run.append(("interpreted kernels", f"--kernels {request.kernels}", again))
        verdict.incomplete = True
    for tier in verdict.ran:
        for requirement in REQUIREMENTS.values():
            least = requirement.minimum(tier)
            if least == 0:
                verdict.not_run.append(
                    (f"{requirement.id} on {tier}", requirement.unjudged, "none")
                )
                continue
            count = passed[tier, requirement.id]
            if count >= least:
                continue
            reason = _skip_reason(verdict.records, tier, requirement.id)
            tool = requirement.tool if tier == "twin" else ""
            if tool and reason and tool not in request.require:
                again = f"python -m conformance run --tier twin --require {tool}"
                verdict.not_run.append((f"{requirement.id} on {tier}", reason, again))
            else:
                verdict.short.append(
                    f"{requirement.id} on {tier}: {count} of at least {least} cases passed"
                    + (f" ({reason})" if reason else "")
                )


def _skip_reason(records: Sequence[Record], tier: str, requirement: str) -> str:
    """Return why a requirement's cases were skipped, when all were and for one reason."""
    of_it = [r for r in records if r.tier == tier and r.requirement == requirement]
    reasons = {r.message for r in of_it if r.outcome is Outcome.SKIPPED}
    skipped = all(r.outcome is Outcome.SKIPPED for r in of_it)
    return reasons.pop() if skipped and len(reasons) == 1 else ""
