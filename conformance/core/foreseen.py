"""What is known of a case before it runs: what lies below, its ledger entry, and its repro line."""

import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from conformance.core.again import again, twin_options
from conformance.core.case import Case, parse
from conformance.core.lab import interpreted
from conformance.core.ledger import Deviation, Situation, match
from conformance.core.record import Outcome, Record
from conformance.core.request import INSTALLED


class Foreseen:
    """A pytest process's cases beforehand. option: its options; installed: FlashInfer's version."""

    def __init__(self, option: Any, installed: str) -> None:
        text = Path(option.ledger).read_text() if option.ledger else "[]"
        self._ledger = [Deviation.from_table(table) for table in json.loads(text)]
        self._option, self._installed = option, installed

    def below(self, case: Case) -> str:
        """Return the FlashInfer version below the subject: simulated, or installed."""
        if self._option.tier != "twin":
            return self._installed
        if self._option.flashinfer == INSTALLED:
            return self._installed or INSTALLED
        tiers = import_module("conformance.tiers")
        return str(tiers.simulated(case.number, self._option.flashinfer))

    def known(self, case: Case) -> Deviation | None:
        """Return what the ledger says of a case."""
        option = self._option
        names = option.subject_name, option.subject_version
        return match(self._ledger, Situation(case.id, option.tier, *names, self.below(case)))

    def alone(self, cases: Sequence[str]) -> list[str]:
        """Return which of several cases may not share a process; a single one always may."""
        if len(cases) < 2:
            return []
        known = [self.known(parse(case)) for case in cases]
        tier = self._option.tier
        pairs = zip(cases, known, strict=True)
        return [case for case, entry in pairs if entry is not None and entry.endangers(tier)]

    def record(self, id: str) -> Record:
        """Return the record of a case whose process dies before it can say anything."""
        case, option = parse(id), self._option
        twin = option.tier == "twin"
        interpret = twin and interpreted(case.number, option.kernels)
        below, known = self.below(case), self.known(case)
        given = option.given or option.subject
        return Record(
            case=case.id,
            requirement=case.requirement,
            tier=option.tier,
            subject=given,
            outcome=Outcome.CRASH,
            error=None,
            ratio=None,
            interpreted=interpret,
            message="the process that ran it died",
            repro=again(
                option.again,
                case,
                subject=given,
                tier=option.tier,
                twin=twin_options(interpret, below if twin else "", option.flashinfer == INSTALLED),
                below=below,
            ),
            flashinfer=below,
            subject_version=option.subject_version,
            expected=known.expected if known else "",
        )
