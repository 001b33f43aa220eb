"""The hunt: plant each mutant in a copy of the sources and see its requirement notice it."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from conformance.core.catalogue import ALIVE, REQUIREMENTS
from conformance.core.record import Outcome, Record
from conformance.core.run import Exit
from conformance.mutants.copies import Ran, run_copy
from conformance.mutants.model import Mutant, MutantError

_MINUTES = 15


class Fate(StrEnum):
    """What became of a mutant."""

    KILLED = "killed"
    SURVIVED = "survived"
    INVALID = "invalid"
    NOT_RUN = "not run"  # its requirement's cases need a tool that is not here


@dataclass(frozen=True)
class Finding:
    """A mutant's fate. by: the case that noticed it; message: what was seen."""

    mutant: Mutant
    fate: Fate
    by: str
    message: str


def provable() -> list[str]:
    """The ids that need a mutant, in the catalogue's order.

    All that the twin judges but SMOKE: a mutant that does not pass SMOKE is none.
    """
    return [r.id for r in REQUIREMENTS.values() if r.twin and r.id != ALIVE]


def without_kill(findings: Iterable[Finding]) -> list[str]:
    """The ids that no mutant names and is killed by, in the catalogue's order."""
    killing = {found.mutant.requirement for found in findings if found.fate is Fate.KILLED}
    return [id for id in provable() if id not in killing]


def hunt(mutants: Sequence[Mutant], workers: int, told: Callable[[Finding], None]) -> list[Finding]:
    """Return each mutant's fate; raise MutantError when the unchanged sources are not green.

    The unchanged copy takes the same path with every requirement named. told: called with each
    finding as it comes.
    """
    with ThreadPoolExecutor(workers) as pool:
        try:
            lanes = sorted({mutant.lane for mutant in mutants})
            futures: list[Future[Any]] = [pool.submit(_unchanged, x, mutants) for x in lanes]
            futures += [pool.submit(_fate, mutant) for mutant in mutants]
            found: dict[str, Finding] = {}
            for done in as_completed(futures):
                finding: Finding | None = done.result()
                if finding:
                    found[finding.mutant.name] = finding
                    told(finding)
        finally:
            pool.shutdown(cancel_futures=True)
    return [found[mutant.name] for mutant in mutants]


def _unchanged(lane: str, mutants: Iterable[Mutant]) -> None:
    """Raise MutantError unless a lane's requirements pass on a copy without a mutant."""
    ids = sorted({ALIVE, *(m.requirement for m in mutants if m.lane == lane)})
    ran = run_copy(None, lane, ["-x", *_select(ids)], minutes=_MINUTES)
    open_ = [id for id in ids if _lacks_tool(id, ran)]
    green = all(ran.alive(id) for id in ids if id not in open_)
    if not green or ran.code not in (Exit.CONFORMS, *([Exit.INCOMPLETE] if open_ else [])):
        raise MutantError(f"the unchanged sources are not green:\n{ran.output[-3000:]}")


def _fate(mutant: Mutant) -> Finding:
    selection = ["-x", *_select([ALIVE, mutant.requirement])]
    ran = run_copy(mutant, mutant.lane, selection, minutes=_MINUTES)
    if not ran.alive(ALIVE):
        said = _messages(ran.of(ALIVE)) or ran.output[-2000:]
        return Finding(mutant, Fate.INVALID, "", f"does not pass {ALIVE}: {said}")
    checks = ran.of(mutant.requirement)
    for record in checks:
        if record.outcome is Outcome.FAIL:
            return Finding(mutant, Fate.KILLED, record.case, record.message)
    if _lacks_tool(mutant.requirement, ran):
        return Finding(mutant, Fate.NOT_RUN, "", checks[0].message)
    if ran.code != Exit.CONFORMS:
        said = _messages(checks) or ran.output[-2000:]
        return Finding(mutant, Fate.INVALID, "", f"no check of {mutant.requirement} failed: {said}")
    return Finding(mutant, Fate.SURVIVED, "", f"{len(checks)} cases of {mutant.requirement} pass")


def _lacks_tool(requirement: str, ran: Ran) -> bool:
    """Whether each case of a requirement that needs a tool was skipped for want of it."""
    records = ran.of(requirement)
    skipped = bool(records) and all(r.outcome is Outcome.SKIPPED for r in records)
    return skipped and bool(REQUIREMENTS[requirement].tool)


def _select(ids: Iterable[str]) -> list[str]:
    return [f"--requirement={id}" for id in ids]


def _messages(records: Iterable[Record]) -> str:
    return "; ".join(r.message for r in records if r.outcome is not Outcome.PASS)
