"""The twin tier: the suite on both packages' Python code on the CPU, the twin's kernel below it.

The kernel's semantics are chosen by the fingerprint of a package's sources; where it is not on
record nothing is simulated, since that would be a guess.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from conformance.core.catalogue import REQUIREMENTS
from conformance.core.record import Outcome, Record, RecordError, read_records
from conformance.core.request import ROOT
from conformance.core.verdict import Exit
from conformance.gate.bare import environment
from conformance.gate.cases import Seen, compare, seen, unanswered
from conformance.gate.model import TierResult, not_run, ran
from conformance.gate.package import Package
from conformance.isolation.group import end_group
from conformance.listing import case_ids
from conformance.twin.errors import UnknownSemanticsError
from conformance.twin.semantics import fingerprint, of_sources

TIER = "twin"

FAMILIES = ("SMOKE", "LEN", "PLAN", "READ", "NUM", "GRAPH", "DRAFT")
"""Whose requirements the smoke subset has cases of."""

LONG = frozenset({"PLAN-7", "GRAPH-5", "DRAFT-5"})
"""Left out of it: many rows, or steps by the dozen on interpreted kernels, take up to a minute."""

SMOKE_SECONDS = 300.0
WHOLE_SECONDS = 4 * 3600.0

_TAIL = 1000
_AGAIN = "add a row to conformance/twin/semantics.py from its sources, then ask the gate again"


def smoke() -> list[str]:
    """The ids of the smoke subset: a case of each requirement, from another part of its list."""
    of_it = [id for id in REQUIREMENTS if id.partition("-")[0] in FAMILIES and id not in LONG]
    chosen = []
    for place, id in enumerate(of_it):
        own = case_ids((TIER,), (id,))
        chosen.append(own[place * len(own) // len(of_it)])
    return chosen


@dataclass(frozen=True)
class _Ran:
    """A package's records, or why there are none that can be trusted."""

    records: list[Record]
    problem: str = ""


def judge(
    baseline: Package,
    candidate: Package,
    subject: str,
    report: Path,
    *,
    whole: bool = False,
    before: Sequence[Record] | None = None,
) -> TierResult:
    """Run the suite on both packages and compare by requirement.

    subject: as a command line names it. report: a folder for records and logs. whole: every case
    instead of the smoke subset. before: the baseline's records of the same cases, where they are
    there already. Both packages' Python code runs in child processes with a bare environment.
    """
    started = time.monotonic()
    result = _judge(baseline, candidate, subject, report, whole, before)
    return replace(result, seconds=round(time.monotonic() - started, 3))


def _judge(
    baseline: Package,
    candidate: Package,
    subject: str,
    report: Path,
    whole: bool,
    before: Sequence[Record] | None,
) -> TierResult:
    for side, package in (("baseline", baseline), ("candidate", candidate)):
        try:
            of_sources(package.data)
        except UnknownSemanticsError:
            found = fingerprint(package.data)
            return not_run(
                TIER,
                f"semantics unknown: the {side}'s module sources have fingerprint {found}, which "
                "is not on record; the static tier's regions say what changed",
                _AGAIN,
            )
    cases = [] if whole else smoke()

    children: list[subprocess.Popen[bytes]] = []

    def run(name: str, package: Package) -> _Ran:
        return _run(package, subject, report / name, cases, children)

    with ThreadPoolExecutor(1 if whole else 2) as pool:
        try:
            now = pool.submit(run, "candidate", candidate)
            was = None if before is not None else pool.submit(run, "baseline", baseline)
            after = now.result()
            first = _Ran(list(before or ())) if was is None else was.result()
        except BaseException:  # an interrupt: their threads wait for them
            pool.shutdown(wait=False, cancel_futures=True)
            for child in children:
                end_group(child)
            raise
    for side, end in (("baseline", first), ("candidate", after)):
        if end.problem:
            return not_run(TIER, f"the suite on the {side}: {end.problem}", _command(subject, []))
    if not any(seen(record) is Seen.RIGHT for record in first.records):
        return not_run(TIER, "no case is right on the baseline", _command(subject, cases[:1]))
    lost = unanswered(first.records, after.records, TIER)
    if lost:
        why = f"{len(lost)} cases that the baseline answered ran on the candidate without an answer"
        return not_run(TIER, f"{why}, {lost[0]} the first", _command(subject, lost[:1]))
    findings = compare(first.records, after.records, TIER, f"records and logs in {report}")
    facts = {
        "cases": len(after.records),
        "selection": "whole suite" if whole else "smoke subset",
        "passed": sum(record.outcome is Outcome.PASS for record in after.records),
    }
    return ran(TIER, findings, facts=facts)


def _run(
    package: Package,
    subject: str,
    report: Path,
    cases: Sequence[str],
    children: list[subprocess.Popen[bytes]],
) -> _Ran:
    """Run the suite on one package; what it prints stands beside the records.

    children: takes the process, for who must end it early.
    """
    report.mkdir(parents=True, exist_ok=True)
    log = report.with_suffix(".log")
    # The smoke subset runs in one process, since starting workers takes longer than they save, and
    # interprets no Triton kernel of the subject's: those are not what differs.
    short = ["-n", "0", "--kernels", "torch"] if cases else []
    place = report.resolve()  # the child runs elsewhere
    command = [sys.executable, *_options(subject, cases), *short, "--report", str(place)]
    limit = SMOKE_SECONDS if cases else WHOLE_SECONDS
    with log.open("wb") as words:
        child = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(package.folder, place.with_suffix(".home")),
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        children.append(child)
        try:
            code = child.wait(limit)
        except subprocess.TimeoutExpired:
            return _Ran([], f"did not end within {limit:g} s; see {log}")
        finally:
            end_group(child)
    if code not in (Exit.CONFORMS, Exit.DOES_NOT, Exit.INCOMPLETE):
        last = log.read_bytes()[-_TAIL:].decode(errors="replace")
        return _Ran([], f"ended with {code}; {log} ends with: {' '.join(last.split())}")
    try:
        return _Ran(read_records(report, f"{TIER}-*"))
    except RecordError as problem:
        return _Ran([], str(problem))


def _options(subject: str, cases: Sequence[str]) -> list[str]:
    return [
        *("-m", "conformance", "run", "--tier", TIER, "--flashinfer", "installed"),
        *("--subject", subject),
        *(f"--case={case}" for case in cases),
    ]


def _command(subject: str, cases: Sequence[str]) -> str:
    return f"PYTHONPATH=FOLDER {' '.join(['python', *_options(subject, cases)])}"
