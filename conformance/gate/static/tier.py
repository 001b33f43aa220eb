"""The static tier: what a package's text says about an upgrade; nothing is imported or run."""

from dataclasses import replace
from time import perf_counter

from conformance.gate.model import Finding, TierResult, ran
from conformance.gate.package import Package
from conformance.gate.static import attributes, deprecations, exports, layout, names, regions
from conformance.gate.static.library import Library
from conformance.gate.static.native import Native
from conformance.gate.uses import Uses

TIER = "static"
_FOLDER = "flashinfer/mla"
"""What is followed from function to function: FlashInfer's MLA package, or module."""


def judge(baseline: Package, candidate: Package, uses: Uses | None) -> TierResult:
    """Compare two packages by their text.

    uses: what the subject uses of the baseline; None where that is not known: then the layout and
    the native regions alone are judged, and the facts say so. Raises PackageError for Python text
    that cannot be parsed.
    """
    started = perf_counter()
    sides = names.Sides(Library(baseline.folder), Library(candidate.folder))
    before, after = Native(baseline.data), Native(candidate.data)
    found: list[Finding] = []
    if uses is not None:
        called = names.callees(sides, uses.calls)
        for callee in called:
            found += names.judge(sides, callee)
            found += deprecations.judge(sides, callee, _FOLDER)
        found += attributes.judge(sides, uses.attributes, called)
        found += attributes.judge(sides, uses.optional, called, needed=False)
    found += exports.judge(before, after, uses)
    found += layout.judge(baseline, candidate)
    found += regions.judge(before, after, sides)
    if uses is not None:
        found.append(regions.judge_wrapper(sides, uses, called, _FOLDER))
    facts = {
        "judged": "names, signatures, layout, regions" if uses else "layout and native regions",
        "functions called": len(called) if uses is not None else 0,
        "attributes used": len(set(uses.attributes)) if uses is not None else 0,
        "native sources": len(after.own),
        "library headers": len(after.foreign),
    }
    if uses is None:
        facts["not judged"] = "names and signatures: what the subject uses is not known"
    return replace(ran(TIER, tuple(found), facts=facts), seconds=perf_counter() - started)
