"""Baseline and candidate side by side, each in a process of its own with a bare environment."""

import json
import os
import queue
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.gate.alternate import SIDES, alternate, figure
from conformance.gate.model import Figure
from conformance.gate.package import Package
from conformance.gate.seen import Seen, from_json
from conformance.isolation.group import end_group

PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "SMLA_CACHE_ROOT")
"""All that a child sees of its parent's environment."""

_SUITE = Path(__file__).parents[2]
_TAIL = 4000


class ChildError(Exception):
    """A child could not do what it was asked; the text says why, for a report.

    missing: the Python package that it lacks. ran: FlashInfer was imported before.
    """

    def __init__(self, text: str, *, missing: str = "") -> None:
        super().__init__(text)
        self.missing, self.ran = missing, False


def environment(package: Package, scratch: Path) -> dict[str, str]:
    """A child's environment. scratch: a folder of its own, for its home and what it writes."""
    home = scratch / "home"
    home.mkdir(parents=True, exist_ok=True)
    given = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    ours = [str(_SUITE), str(package.folder)]
    # A subject of the caller's own is found where the caller finds it; installed packages are not
    # named, since they are found anyhow.
    theirs = [str(Path(entry or ".").resolve()) for entry in sys.path]
    roots = (sys.prefix, sys.base_prefix)
    inside = [e for e in theirs if any(Path(e).is_relative_to(root) for root in roots)]
    ours += [entry for entry in theirs if entry not in inside and entry not in ours]
    return {
        **given,
        "HOME": str(home),
        "TMPDIR": str(home),
        "PYTHONPATH": os.pathsep.join(ours),
        "PYTHONDONTWRITEBYTECODE": "1",
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
        self._errors = folder / "stderr.txt"
        folder.mkdir(parents=True, exist_ok=True)
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-s", "-m", "conformance.gate.child"],
                env=environment(package, folder),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self._answers: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self._send({"folder": str(package.folder), "subject": subject})

    def ready(self) -> None:
        """Wait until FlashInfer is imported; raise ChildError where it cannot be."""
        self._answer("importing FlashInfer")

    def ask(self, command: Mapping[str, Any]) -> Any:
        """The value that a command gives; raise ChildError where there is none."""
        self._send(command)
        return self._answer(str(command["do"]))["value"]

    def close(self) -> None:
        """End it, and all that it started."""
        end_group(self._process)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with _ignored():
                    pipe.close()

    def _send(self, value: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with _ignored():  # one that is gone is told of where its answer is missing
            self._process.stdin.write(json.dumps(value) + "\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(None)

    def _answer(self, doing: str) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=self._timeout_s)
        except queue.Empty:
            end_group(self._process, signal.SIGABRT)
            raise ChildError(
                f"the {self.name}'s process gave no answer within {self._timeout_s:g} s ({doing})"
            ) from None
        if line is None:
            self._answers.put(None)  # whoever asks next need not wait to learn the same
            raise ChildError(f"the {self.name}'s process ended, {self._ending()} ({doing})")
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise ChildError(f"the {self.name}'s process said {line[:80]!r}")
        if "failed" in answer:
            with self._errors.open("a") as errors:
                errors.write(answer["traceback"])
            raise ChildError(f"{self.name}: {answer['failed']}", missing=answer["missing"] or "")
        return answer

    def _ending(self) -> str:
        end_group(self._process)
        code = self._process.returncode
        how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
        last = self._errors.read_text(errors="replace")[-_TAIL:].strip().splitlines()
        return f"{how} ({last[-1][:200]})" if last else how


@contextmanager
def _ignored() -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError):
        return


@dataclass(frozen=True)
class Answer:
    """What became of one child: what it saw, or why not."""

    seen: Seen | None
    problem: ChildError | None


@dataclass(frozen=True)
class Untimed:
    """A step that was not timed: why not on either side, empty where it was; and what was met."""

    name: str
    baseline: str
    candidate: str
    problem: str


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
                sides = {
                    side: self._alone(child, name)
                    for side, child in zip(SIDES, self._children, strict=True)
                }
                untimed.append(Untimed(name, sides["baseline"], sides["candidate"], str(problem)))
        return figures, untimed

    def _alone(self, child: Child, name: str) -> str:
        """Why a child cannot time a step; empty where it can."""
        try:
            child.ask({"do": "time", "name": name, "samples": 1})
        except ChildError as problem:
            return str(problem)
        return ""

    def _timed(self, name: str, rounds: int, samples: int) -> Figure:
        children = dict(zip(SIDES, self._children, strict=True))
        command = {"do": "time", "name": name, "samples": samples}
        medians = alternate(lambda side: statistics.median(children[side].ask(command)), rounds)
        return figure(name, "plan", "CPU, pretended device", medians)


def scratch_folder() -> "tempfile.TemporaryDirectory[str]":
    """A folder for one pair's children."""
    return tempfile.TemporaryDirectory(prefix="gate-", ignore_cleanup_errors=True)
