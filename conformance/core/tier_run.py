"""One tier run to its end: pytest is started again for what a fault kept from running."""

import itertools
import logging
from collections.abc import Sequence

from conformance.core.aftermath import settle
from conformance.core.process import Process
from conformance.core.record import Record, RecordError, read_records
from conformance.core.request import Request, SuiteError

FAULTS = 20
"""Faults after which a tier is stopped: each costs a process, and by then all is said."""

_PYTEST_RAN = (0, 1, 5)  # passed, failed, nothing to run
_PYTEST_STOPPED = 2  # -x under xdist
_log = logging.getLogger(__name__)


def run_tier(request: Request, tier: str, gpus: Sequence[str]) -> tuple[list[Record], list[str]]:
    """Return a tier's records, and the cases that did not run because faults were too many."""
    records: dict[str, Record] = {}
    cases: list[str] = []
    only, faults = None, 0
    for number in itertools.count(1):
        process = Process(request, tier, number, gpus, only, restarts=FAULTS - faults - 1)
        ended = process.run()
        try:
            lost = settle(process, ended)
            fresh = {r.case: r for r in read_records(request.report, process.records)}
        except RecordError as problem:
            raise SuiteError(f"result files are not whole: {problem}") from problem
        cases, faults = cases or process.cases(), faults + lost
        records |= fresh
        only = [case for case in cases if case not in records]
        failed = any(record.failed for record in fresh.values())
        allowed = (*_PYTEST_RAN, *([_PYTEST_STOPPED] if request.first_failure and failed else []))
        if not lost and ended.code not in allowed and not (ended.stalled and cases and not only):
            raise SuiteError(
                f"pytest ended with {ended.code} on the {tier} tier; its output says why"
            )
        if not fresh and lost:
            raise SuiteError(
                f"the {tier} tier's processes die before their first case; pytest's output says why"
            )
        if ended.code == 1 and not failed and not lost:
            raise SuiteError(f"pytest failed on the {tier} tier, no record; its output says why")
        if (cases and not only) or (request.first_failure and failed):
            return list(records.values()), []
        if not lost and not cases:
            return [], []
        if not lost:
            raise SuiteError(f"{len(only)} cases on {tier} have no record, {only[0]} the first")
        if faults >= FAULTS:
            return list(records.values()), only
        _log.warning("%s: %d cases did not run because of a fault; starting again", tier, len(only))
    raise AssertionError("unreachable")
