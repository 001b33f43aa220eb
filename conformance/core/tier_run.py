"""One tier run to its end: pytest is started again for what a fault kept from running.

Cases that the ledger knows to hang or, on a GPU, to crash come last, each in a process of its own.
"""

import itertools
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

from conformance.core.aftermath import settle
from conformance.core.gateways import answering
from conformance.core.process import Process
from conformance.core.record import Outcome, Record, RecordError, read_records
from conformance.core.request import Request, SuiteError

FAULTS = 20
"""Faults after which a tier is stopped: each costs a process, and by then all is said."""

_PYTEST_RAN = (0, 1, 5)  # passed, failed, nothing to run
_PYTEST_STOPPED = 2  # -x under xdist
_log = logging.getLogger(__name__)


def run_tier(
    request: Request, tier: str, gpus: Sequence[str], numbers: Iterable[int] | None = None
) -> tuple[list[Record], list[str]]:
    """Return a tier's records, and the cases that did not run because faults were too many.

    numbers: of its pytest processes; those of several runs into one folder must differ.
    """
    records: dict[str, Record] = {}
    cases: list[str] = []
    alone: frozenset[str] = frozenset()
    only, faults, how = None, 0, request
    for number in numbers or itertools.count(1):
        process = Process(how, tier, number, gpus, only, restarts=FAULTS - faults - 1)
        ended = process.run()
        try:
            lost = settle(process, ended)
            fresh = {r.case: r for r in read_records(request.report, process.records)}
        except RecordError as problem:
            raise SuiteError(f"result files are not whole: {problem}") from problem
        cases, alone = cases or process.cases(), alone or process.endangering()
        faults += max(0, lost - _foretold(fresh.values()))
        records |= fresh
        left = [case for case in cases if case not in records]
        shared = [case for case in left if case not in alone]
        here = [case for case in left if case in only] if only is not None else shared
        failed = any(record.failed for record in fresh.values())
        stopped = (request.first_failure and failed) or (request.over and bool(cases))
        allowed = (*_PYTEST_RAN, *([_PYTEST_STOPPED] if stopped else []))
        if not lost and ended.code not in allowed and not (ended.stalled and cases and not here):
            raise SuiteError(
                f"pytest ended with {ended.code} on the {tier} tier; its output says why"
            )
        if not fresh and lost:
            raise SuiteError(
                f"the {tier} tier's processes die before their first case; pytest's output says why"
            )
        if ended.code == 1 and not failed and not lost:
            raise SuiteError(f"pytest failed on the {tier} tier, no record; its output says why")
        if (cases and not left) or stopped:
            return list(records.values()), []
        if not lost and not cases:
            return [], []
        if not lost and here:
            raise SuiteError(f"{len(here)} cases on {tier} have no record, {here[0]} the first")
        if faults >= FAULTS:
            return list(records.values()), left
        if here:
            what = "did not run because of a fault; starting again"
            _log.warning("%s: %d cases %s", tier, len(here), what)
        only, how = (shared, request) if shared else (left[:1], replace(request, workers="0"))
        how = answering(how) if lost else how
    raise AssertionError("unreachable")


def _foretold(records: Iterable[Record]) -> int:
    """Return how many of the records may have ended a process without its being a fault."""
    deadly = ("crash", "hang")
    return sum(r.outcome is Outcome.XFAIL and r.expected.startswith(deadly) for r in records)
