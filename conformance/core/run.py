"""Running the tiers asked for and judging what they showed."""

import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from conformance.core.gpus import VARIABLE, names, visible_capabilities
from conformance.core.identity import identify
from conformance.core.junit import junit_path, write_junit
from conformance.core.request import JUDGES, Identity, Request, SuiteError
from conformance.core.tier_run import FAULTS, run_tier
from conformance.core.verdict import Exit, Verdict, judge

__all__ = ["Exit", "Identity", "JUDGES", "Request", "SuiteError", "Verdict", "identify", "run"]


def run(request: Request) -> Verdict:
    """Run the tiers asked for and judge their records; raise SuiteError when that fails.

    What an earlier run left in the report folder goes once it is known that this one can write.
    """
    if request.identity is None:
        request = replace(request, identity=identify(request.subject, request.given))
    verdict = Verdict([], [], selection=request.selection)
    gpus = hopper_gpus() if request.tier != "twin" else []
    writable(request)
    clear(request.report)
    unwritten: list[str] = []
    for tier in _tiers(request, gpus):
        records, kept = run_tier(request, tier, gpus if tier == "hopper" else [])
        verdict.records += records
        verdict.ran.append(tier)
        if kept:
            why = f"stopped after {FAULTS} faults; the first that did not run is {kept[0]}"
            verdict.not_run.append((f"{len(kept)} cases on {tier}", why, "none"))
            verdict.incomplete = verdict.cut = True
        verdict.cut |= request.first_failure and any(r.failed for r in records)
        if request.junit is not None:
            path = junit_path(request.junit, tier)
            try:
                write_junit(path, tier, records)
            except OSError as problem:
                unwritten.append(f"{path}: {problem.strerror}")
    if unwritten:
        raise SuiteError(
            f"JUnit: found {'; '.join(unwritten)}; allowed: a file that can be written; to fix: "
            f"choose another --junit. All cases ran; their records are whole in {request.report}"
        )
    if verdict.ran and not verdict.records:
        raise SuiteError("no case ran: nothing in this selection has cases on this tier")
    judge(request, verdict)
    return verdict


def writable(request: Request) -> None:
    """Raise SuiteError when the run could not write its files; what is there stays as it is."""
    places = [("report folder", request.report, "--report")]
    if request.junit is not None:
        places.append(("JUnit's folder", request.junit.parent, "--junit"))
    for what, folder, option in places:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as problem:
            raise SuiteError(
                f"{what} {folder}: found {problem.strerror}; allowed: a folder that can be "
                f"written; to fix: choose another {option}, or change who may write there"
            ) from problem
    if request.junit is not None and request.junit.is_dir():
        raise SuiteError(
            f"--junit {request.junit}: found a folder; allowed: a file; to fix: name a file in it"
        )


def hopper_gpus() -> list[str]:
    """Return the names of the Hopper GPUs that CUDA shows this process."""
    return names(os.environ.get(VARIABLE), visible_capabilities())


def _tiers(request: Request, gpus: list[str]) -> list[str]:
    if request.tier != "auto":
        return [request.tier] if request.tier != "hopper" or gpus else []
    return ["twin", "hopper"] if gpus else ["twin"]


def clear(report: Path) -> None:
    """Delete what an earlier run left in a report folder; raise SuiteError where that fails."""
    try:
        for old in report.glob("records-*.jsonl"):
            old.unlink()
        for folder in ("traces", "processes"):
            shutil.rmtree(report / folder, ignore_errors=True)
    except OSError as problem:
        raise SuiteError(f"report folder {report}: {problem.strerror}") from problem
