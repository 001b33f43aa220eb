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

    missing: the Python package that it lacks. died: it is gone.
    """

    def __init__(self, text: str, *, missing: str = "", died: bool = False) -> None:
        super().__init__(text)
        self.missing, self.died = missing, died


def environment(package: Package, scratch: Path) -> dict[str, str]:
    """A child's environment. scratch: a folder of its own, for its home and what it writes."""
    home = scratch / "home"
    home.mkdir(parents=True, exist_ok=True)
    given = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    ours = [str(_SUITE), str(package.folder)]
    # A subject of the caller's own is found where the caller finds it; installed packages are not
    # named, since they are found anyhow.
    theirs = [str(Path(entry or ".").resolve()) for entry in sys.path]
    ours += [e for e in theirs if not e.startswith((sys.prefix, sys.base_prefix)) and e not in ours]
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
                f"the {self.name}'s process gave no answer within {self._timeout_s:g} s ({doing})",
                died=True,
            ) from None
        if line is None:
            raise ChildError(
                f"the {self.name}'s process ended, {self._ending()}, while {doing}", died=True
            )
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError:
            raise ChildError(f"the {self.name}'s process said {line[:80]!r}", died=True) from None
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
            try:
                child.ready()
                uses = child is self._children[0]
                return Answer(from_json(child.ask({"do": "look", "uses": uses})), None)
            except ChildError as problem:
                return Answer(None, problem)

        with ThreadPoolExecutor(2) as pool:
            baseline, candidate = pool.map(one, self._children)
        return baseline, candidate

    def time(self, names: Sequence[str], *, rounds: int = 5, samples: int = 4) -> list[Figure]:
        """Alternate between both, the order reversed each round; ratios are of a round's medians.

        A figure that one of them cannot give is left out.
        """
        figures = []
        for name in names:
            with _no_figure():
                figures.append(self._timed(name, rounds, samples))
        return figures

    def _timed(self, name: str, rounds: int, samples: int) -> Figure:
        children = dict(zip(SIDES, self._children, strict=True))
        command = {"do": "time", "name": name, "samples": samples}
        medians = alternate(lambda side: statistics.median(children[side].ask(command)), rounds)
        return figure(name, "plan", "CPU, pretended device", medians)


@contextmanager
def _no_figure() -> Iterator[None]:
    try:
        yield
    except ChildError:
        return


def scratch_folder() -> "tempfile.TemporaryDirectory[str]":
    """A folder for one pair's children."""
    return tempfile.TemporaryDirectory(prefix="gate-", ignore_cleanup_errors=True)
