"""Baseline and candidate side by side, each in a process of its own with a bare environment."""

import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.core.request import ROOT
from conformance.gate.alternate import SIDES, alternate, figure
from conformance.gate.bare import plain
from conformance.gate.model import Figure
from conformance.gate.package import Package
from conformance.gate.seen import Seen, from_json
from conformance.gate.talk import ChildDied, Talk


class ChildError(Exception):
    """A child could not do what it was asked; the text says why, for a report.

    missing: the Python package that it lacks. blameless: as for `ChildDied`. ran: FlashInfer was
    imported before.
    """

    def __init__(self, text: str, *, missing: str = "", blameless: bool = False) -> None:
        super().__init__(text)
        self.missing, self.blameless, self.ran = missing, blameless, False


def environment(package: Package, scratch: Path) -> dict[str, str]:
    """A child's environment. scratch: a folder of its own, for its home and what it writes."""
    home = scratch / "home"
    # A subject of the caller's own is found where the caller finds it; installed packages are not
    # named, since they are found anyhow.
    theirs = [str(Path(entry or ".").resolve()) for entry in sys.path]
    roots = (sys.prefix, sys.base_prefix)
    inside = [e for e in theirs if any(Path(e).is_relative_to(root) for root in roots)]
    ours = [str(package.folder)]
    ours += [e for e in theirs if e not in inside and e not in (*ours, str(ROOT))]
    return {
        **plain(ours, home),
        "PYTHONHASHSEED": "0",
        "FLASHINFER_WORKSPACE_BASE": str(home),
        "TRITON_INTERPRET": "1",
        "OMP_NUM_THREADS": "1",  # two children at once, and steady times
    }


class Child:
    """One package's process. name: for messages. timeout_s: for each answer."""

    def __init__(
        self, name: str, package: Package, subject: str, scratch: Path, timeout_s: float
    ) -> None:
        self.name, self._timeout_s = name, timeout_s
        folder = scratch / name
        folder.mkdir(parents=True, exist_ok=True)
        command = (sys.executable, "-s", "-m", "conformance.gate.child")
        self._talk = Talk(name, command, environment(package, folder), folder)
        self._start = {
            "do": "import FlashInfer", "folder": str(package.folder), "subject": subject,
        }  # fmt: skip

    def ready(self) -> None:
        """Wait until FlashInfer is imported; raise ChildError where it cannot be."""
        self._ask(self._start)

    def ask(self, command: Mapping[str, Any]) -> Any:
        """The value that a command gives; raise ChildError where there is none."""
        return self._ask(command)["value"]

    def close(self) -> None:
        """End it, and all that it started."""
        self._talk.end()

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        try:
            answer = self._talk.ask(question, self._timeout_s)
        except ChildDied as problem:
            raise ChildError(str(problem), blameless=problem.blameless) from None
        if "failed" in answer:
            raise ChildError(f"{self.name}: {answer['failed']}", missing=answer["missing"] or "")
        return answer


@dataclass(frozen=True)
class Answer:
    """What became of one child: what it saw, or why not."""

    seen: Seen | None
    problem: ChildError | None


@dataclass(frozen=True)
class Untimed:
    """A step that was not timed: why not on either side, empty where it was; and what was met.

    blameless: the candidate was ended for what says nothing of it, as for `ChildDied`.
    """

    name: str
    baseline: str
    candidate: str
    problem: str
    blameless: bool = False


class Pair:
    """Both children. order: baseline, candidate."""

    def __init__(
        self,
        baseline: Package,
        candidate: Package,
        subject: str,
        scratch: Path,
        *,
        timeout_s: float = 180.0,
    ) -> None:
        packages = {"baseline": baseline, "candidate": candidate}
        with ExitStack() as stack:
            self._children = []
            for name, package in packages.items():
                child = Child(name, package, subject, scratch, timeout_s)
                stack.callback(child.close)
                self._children.append(child)
            self._stack = stack.pop_all()

    def __enter__(self) -> "Pair":
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()

    def look(self) -> tuple[Answer, Answer]:
        """Run the scenario in both at once; the baseline's uses are followed."""

        def one(child: Child) -> Answer:
            ran = False
            try:
                child.ready()
                ran = True
                uses = child is self._children[0]
                return Answer(from_json(child.ask({"do": "look", "uses": uses})), None)
            except ChildError as problem:
                problem.ran = ran
                return Answer(None, problem)

        with ThreadPoolExecutor(2) as pool:
            try:
                baseline, candidate = pool.map(one, self._children)
            except BaseException:  # an interrupt: their threads wait for answers
                self._stack.close()
                raise
        return baseline, candidate

    def time(
        self, names: Sequence[str], *, rounds: int = 5, samples: int = 4
    ) -> tuple[list[Figure], list[Untimed]]:
        """Alternate between both, the order reversed each round; ratios are of a round's medians.

        Return the figures, and which could not be made and why.
        """
        figures, untimed = [], []
        for name in names:
            try:
                figures.append(self._timed(name, rounds, samples))
            except ChildError as problem:
                before, after = (self._alone(child, name) for child in self._children)
                sides = str(before or ""), str(after or "")
                blameless = after is not None and after.blameless
                untimed.append(Untimed(name, *sides, str(problem), blameless))
        return figures, untimed

    def _alone(self, child: Child, name: str) -> ChildError | None:
        """Why a child cannot time a step; None where it can."""
        try:
            child.ask({"do": "time", "name": name, "samples": 1})
        except ChildError as problem:
            return problem
        return None

    def _timed(self, name: str, rounds: int, samples: int) -> Figure:
        children = dict(zip(SIDES, self._children, strict=True))
        command = {"do": "time", "name": name, "samples": samples}
        medians = alternate(lambda side: statistics.median(children[side].ask(command)), rounds)
        return figure(name, "plan", "CPU, pretended device", medians)


def scratch_folder() -> "tempfile.TemporaryDirectory[str]":
    """A folder for one pair's children."""
    return tempfile.TemporaryDirectory(prefix="gate-", ignore_cleanup_errors=True)
