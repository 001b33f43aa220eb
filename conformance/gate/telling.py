"""A gate's result in words, for Markdown and for the page alike: titles, rows, signs."""

from collections.abc import Iterable
from dataclasses import dataclass

from conformance.gate.model import Change, Figure, Finding, GateResult, Status, TierResult, Weight

SIGNS = {Status.PASS: "✅", Status.FAIL: "❌", Status.NOT_RUN: "○"}
VERDICT_SIGNS = {"GO": "✅", "NO-GO": "❌", "INCOMPLETE": "⚠️"}
CHANGES = (Change.ADDED, Change.DELETED, Change.CHANGED, Change.UNCHANGED)
WHAT = {
    "static": "what the subject uses, read in the sources: names, signatures, layout, changed code",
    "wrapper": "the package's own Python code, run on a pretended GPU",
    "planner": "the package's MLAPlan, compiled and run on the CPU",
    "twin": "cases of the suite on the simulated kernel",
    "hopper": "the suite and a benchmark on a Hopper GPU",
}
_ORDER = (Weight.OBJECTION, Weight.REVIEW, Weight.NOTE)


@dataclass(frozen=True)
class Row:
    """A finding beside the tier that made it.

    evidence: how to see it again; empty where all of its tier is seen again in one way (`again`).
    """

    tier: str
    finding: Finding
    evidence: str

    @property
    def word(self) -> str:
        """What the finding does to the verdict."""
        return "tolerated" if self.finding.tolerated else str(self.finding.weight)


def title(result: GateResult) -> str:
    """Subject and both versions."""
    subject = f"{result.subject} {result.subject_version}".strip()
    return f"{subject}: FlashInfer {result.baseline.version} to {result.candidate.version}"


def of_change(result: GateResult, change: Change) -> list[Row]:
    """The rows of one part of the before/after table, what matters most first."""
    rows = [row for row in _rows(result) if row.finding.change is change]
    return sorted(rows, key=lambda row: (not row.finding.objects, _ORDER.index(row.finding.weight)))


def objections(result: GateResult) -> list[Row]:
    """What speaks against the candidate, by the tier that sees it first."""
    return [row for row in _rows(result) if row.finding.objects]


def _rows(result: GateResult) -> list[Row]:
    return [
        Row(tier.tier, found, "" if again(tier) else found.evidence)
        for tier in result.tiers
        for found in tier.findings
    ]


def figures(result: GateResult) -> list[tuple[str, Figure]]:
    """All figures, each with its tier."""
    return [(tier.tier, figure) for tier in result.tiers for figure in tier.figures]


def summary(tier: TierResult) -> str:
    """A tier's outcome in a few words."""
    if tier.status is Status.NOT_RUN:
        return tier.reason
    counts = [
        (sum(found.objects for found in tier.findings), "objection"),
        (sum(bool(found.tolerated) for found in tier.findings), "tolerated"),
        (sum(found.weight is Weight.REVIEW for found in tier.findings), "to review"),
    ]
    told = [f"{count} {_plural(word, count)}" for count, word in counts if count]
    unchanged = sum(found.change is Change.UNCHANGED for found in tier.findings)
    return ", ".join([*told, f"{unchanged} of {len(tier.findings)} looked at are unchanged"])


def facts(tier: TierResult) -> str:
    """What a tier looked at."""
    return "; ".join(f"{name}: {_short(value)}" for name, value in tier.facts.items())


def again(tier: TierResult) -> str:
    """How to see what a tier saw, where that is the same for all of it; else empty."""
    told = {found.evidence for found in tier.findings if found.evidence}
    return told.pop() if len(told) == 1 and len(tier.findings) > 1 else ""


def environment(result: GateResult) -> str:
    """Where the gate ran."""
    found = {name: value for name, value in result.environment.items() if value}
    gpu = found.pop("gpu", None)
    told = [f"{name} {value}" for name, value in found.items()]
    return ", ".join([*told, *([f"GPU {gpu['name']}"] if gpu else [])])


def time(value: float) -> str:
    """Microseconds, with a unit that fits."""
    return f"{value / 1000:.3g} ms" if value >= 1000 else f"{value:.3g} us"


def _plural(word: str, count: int) -> str:
    return f"{word}s" if count > 1 and word == "objection" else word


def _short(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Iterable):
        return ", ".join(map(str, value))
    return str(value)
