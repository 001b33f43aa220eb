"""Running the tiers asked for and judging what they showed."""

import os
import shutil
from pathlib import Path

from conformance.core.gpus import VARIABLE, names, visible_capabilities
from conformance.core.junit import junit_path, write_junit
from conformance.core.request import JUDGES, Request, SuiteError
from conformance.core.tier_run import FAULTS, run_tier
from conformance.core.verdict import Exit, Verdict, judge

__all__ = ["Exit", "JUDGES", "Request", "SuiteError", "Verdict", "run"]


def run(request: Request) -> Verdict:
    """Run the tiers asked for and judge their records; raise SuiteError when that fails."""
    verdict = Verdict([], [], selection=request.selection)
    gpus = _gpus() if request.tier != "twin" else []
    _clear(request.report)
    for tier in _tiers(request, gpus):
        records, kept = run_tier(request, tier, gpus if tier == "hopper" else [])
        verdict.records += records
        verdict.ran.append(tier)
        if kept:
            why = f"stopped after {FAULTS} faults; the first that did not run is {kept[0]}"
            verdict.not_run.append((f"{len(kept)} cases on {tier}", why, "none"))
            verdict.incomplete = True
        if request.junit is not None:
            write_junit(junit_path(request.junit, tier), tier, records)
    if verdict.ran and not verdict.records:
        raise SuiteError("no case ran: nothing in this selection has cases on this tier")
    judge(request, verdict)
    return verdict


def _gpus() -> list[str]:
    return names(os.environ.get(VARIABLE), visible_capabilities())


def _tiers(request: Request, gpus: list[str]) -> list[str]:
    if request.tier != "auto":
        return [request.tier] if request.tier != "hopper" or gpus else []
    return ["twin", "hopper"] if gpus else ["twin"]


def _clear(report: Path) -> None:
    try:
        report.mkdir(parents=True, exist_ok=True)
        for old in report.glob("records-*.jsonl"):
            old.unlink()
        for folder in ("traces", "processes"):
            shutil.rmtree(report / folder, ignore_errors=True)
    except OSError as problem:
        raise SuiteError(f"report folder {report}: {problem.strerror}") from problem
