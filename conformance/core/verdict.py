"""Reading off a verdict: what ran, what did not and why, and the exit code."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from conformance.core.catalogue import ALIVE, REQUIREMENTS
from conformance.core.ledger import stale
from conformance.core.record import Expected, Outcome, Record
from conformance.core.request import Request


class Exit(IntEnum):
    """The suite's exit codes."""

    CONFORMS = 0
    DOES_NOT = 1
    INCOMPLETE = 2
    SUITE_FAILED = 3


@dataclass
class Verdict:
    """What a run showed. not_run: (what, why, command that runs it).

    short: what passed too seldom. stale: ledger entries that spoke of nothing that ran.
    cut: cases of it did not run because others failed.
    """

    records: list[Record]
    ran: list[str]
    not_run: list[tuple[str, str, str]] = field(default_factory=list)
    short: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    incomplete: bool = False
    selection: bool = False
    cut: bool = False

    @property
    def failures(self) -> list[Record]:
        """Records that speak against the subject."""
        return [r for r in self.records if r.failed]

    @property
    def deviations(self) -> dict[Expected, list[Record]]:
        """Known deviations that were seen, each with its records."""
        seen: dict[Expected, list[Record]] = {}
        for record in self.records:
            known = Expected.read(record.expected)
            if known is not None and record.outcome is Outcome.XFAIL:
                seen.setdefault(known, []).append(record)
        return seen

    @property
    def exit(self) -> Exit:
        """The exit code. A selection that passes is no more than that, and said so.

        Known deviations do not change it: they are what a caller knows and accepted beforehand.
        """
        if self.failures or self.stale:
            return Exit.DOES_NOT
        if self.incomplete or self.short:
            return Exit.INCOMPLETE
        return Exit.CONFORMS


def judge(request: Request, verdict: Verdict) -> None:
    """Add to a verdict what did not run and which requirements stayed below their minimum."""
    accepted = (Outcome.PASS, Outcome.XFAIL)
    counted = [r for r in verdict.records if r.outcome in accepted]
    counts = Counter((r.tier, r.requirement) for r in counted)
    passed = Counter((r.tier, r.requirement) for r in counted if r.outcome is Outcome.PASS)
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
        open_: dict[tuple[str, str, str, str], list[str]] = {}
        for r in verdict.records:
            if r.outcome not in accepted and not r.failed:
                open_.setdefault((r.requirement, r.tier, r.outcome, r.message), []).append(r.case)
        verdict.short += [
            f"{id} on {tier}: {len(cases)} {outcome} ({reason}), {cases[0]} the first"
            for (id, tier, outcome, reason), cases in open_.items()
        ]
        return
    verdict.incomplete |= "twin" not in seen
    if "twin" in seen and not any(r.interpreted for r in verdict.records):
        again = "python -m conformance run --tier twin --kernels auto"
        verdict.not_run.append(("interpreted kernels", f"--kernels {request.kernels}", again))
        verdict.incomplete = True
    if request.identity is not None and not verdict.cut:
        who = request.identity
        verdict.stale += [
            f"{entry.where}: no case of it ran; to fix: take it out, or correct its pattern"
            for entry in stale(request.ledger, verdict.records, who.name, who.version)
        ]
    for tier in verdict.ran:
        if counts[tier, ALIVE] and not passed[tier, ALIVE]:
            verdict.short.append(f"{ALIVE} on {tier}: no case passed, the rest says nothing")
        for requirement in REQUIREMENTS.values():
            least = requirement.minimum(tier)
            if least == 0:
                verdict.not_run.append(
                    (f"{requirement.id} on {tier}", requirement.unjudged, "none")
                )
                continue
            count = counts[tier, requirement.id]
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
