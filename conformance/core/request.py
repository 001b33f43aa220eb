"""What a caller may ask of a run."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from conformance.core.again import AGAIN
from conformance.core.catalogue import REQUIREMENTS
from conformance.core.ledger import Deviation
from conformance.settings import Settings

ROOT = Path(__file__).parents[2]
JUDGES = (ROOT / "conformance" / "tests" / "requirements", ROOT / "fuzz" / "requirements")
"""The folders with the requirements' tests. pytest takes them by their place: nothing imports the
second one's room.
"""
INSTALLED = "installed"
"""In place of a version that the twin simulates: the FlashInfer on the path."""

LIMITS_S = {"twin": Settings.watchdog_twin, "hopper": Settings.watchdog_hopper}
"""Seconds that a test of each tier may take, by default."""


class SuiteError(Exception):
    """The suite was asked wrongly or failed itself; its message says which."""


@dataclass(frozen=True)
class Identity:
    """What a subject calls itself, and its version, empty where it has none."""

    name: str
    version: str


@dataclass(frozen=True)
class Request:
    """What to run. subject: package.module:factory. tier: auto, twin or hopper.

    given: the subject's name on the command line, empty where that is `subject`. identity: None:
    the run finds it out. ledger: what is known of subjects, of whichever.

    require: of hopper, planner.
    cases, requirements: a selection, which makes no verdict on conformance. workers: as for
    pytest-xdist's -n; on hopper at most one per GPU, which is `auto`, and 0 runs in pytest itself.
    kernels: auto, torch or interpret (twin tier). flashinfer: the version that the twin simulates,
    auto for each in turn, installed for the one on the path. first_failure: stop at the first one;
    first_failure_each: skip the rest
    of a requirement once a check of it failed. shuffle: seed of another order. limit_s: seconds
    a test may take before it counts as hung; 0 for no limit, None for the tier's own in limits_s.
    junit: where JUnit files go, one per tier (`x.xml` gives `x-twin.xml`). judges: folders or
    files with the requirements' tests. again: a template of a case's command, see `core/again.py`.
    asked: what the judges want to know besides, in a form of their own. until: when no further
    case starts, by time.monotonic(); None for never. tx: gateways of pytest-xdist, in place of
    workers; rsyncdirs: folders that go to those on other hosts, beside the suite's own.
    """

    subject: str
    tier: str = "auto"
    cases: Sequence[str] = ()
    requirements: Sequence[str] = ()
    require: frozenset[str] = frozenset()
    report: Path = Path("conformance-report")
    workers: str = "auto"
    kernels: str = "auto"
    flashinfer: str = "auto"
    first_failure: bool = False
    first_failure_each: bool = False
    shuffle: int | None = None
    limit_s: float | None = None
    limits_s: Mapping[str, float] = field(default_factory=lambda: LIMITS_S)
    junit: Path | None = None
    judges: Sequence[Path] = JUDGES
    given: str = ""
    identity: Identity | None = None
    ledger: Sequence[Deviation] = ()
    again: str = AGAIN
    asked: str = ""
    until: float | None = None
    tx: Sequence[str] = ()
    rsyncdirs: Sequence[Path] = ()

    @property
    def over(self) -> bool:
        """Whether no further case may start."""
        return self.until is not None and time.monotonic() >= self.until

    @property
    def named(self) -> str:
        """The subject as a command line names it."""
        return self.given or self.subject

    @property
    def selection(self) -> bool:
        """Whether only a part of the suite was asked for."""
        return bool(self.cases or self.requirements)

    def limit(self, tier: str) -> float:
        """Seconds that a test of a tier may take; 0: as long as it likes."""
        return self.limits_s[tier] if self.limit_s is None else self.limit_s


def known(requirement: str) -> str:
    """Return the id itself; raise SuiteError when the catalogue does not have it."""
    if requirement not in REQUIREMENTS:
        raise SuiteError(
            f"requirement: found {requirement!r}; allowed: {', '.join(REQUIREMENTS)}; to fix: "
            "see `python -m conformance list --count`"
        )
    return requirement
