"""The process in which one FlashInfer's Python code runs: JSON lines in, JSON lines out.

Started by `conformance.gate.pair` with a bare environment, the package's folder on its path. The
first line out says whether FlashInfer could be imported; then each command gets one answer.
"""

import importlib
import json
import os
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import IO, Any

from conformance.gate.talk import answering


def main() -> None:
    """Answer commands until the end of the input."""
    with answering() as (questions, answers), ExitStack() as stack:
        order = next(questions)
        try:
            session = Session(Path(order["folder"]), order["subject"], stack)
        except BaseException as problem:
            _say(answers, _failure(problem))
            return
        _say(answers, {"ready": True})
        commands: dict[str, Callable[[Mapping[str, Any]], Any]] = {
            "look": session.look,
            "time": session.time,
        }
        for command in questions:
            try:
                _say(answers, {"value": commands[command["do"]](command)})
            except Exception as problem:
                _say(answers, _failure(problem))


class Session:
    """A FlashInfer in place, and a subject on it."""

    def __init__(self, folder: Path, subject: str, stack: ExitStack) -> None:
        from conformance.core.worker import load_subject
        from conformance.gate.desk import Desk
        from conformance.gate.frames import Owner
        from conformance.tiers import installed, nearest
        from conformance.twin.semantics import BY_FINGERPRINT, fingerprint

        data = folder / "flashinfer" / "data"
        self.desk, self.owner = Desk(), Owner(folder)
        self.semantics = nearest(data)
        self.known = fingerprint(data) in BY_FINGERPRINT
        self.tier = stack.enter_context(installed(self.semantics, wrap=self.desk.wrap))
        self.flashinfer = importlib.import_module("flashinfer")
        found = Path(os.path.abspath(str(self.flashinfer.__file__)))  # a checkout may be links
        if not any(found.is_relative_to(root) for root in (folder.absolute(), folder.resolve())):
            raise ImportError(f"flashinfer is {found.parent}, in place of the one in {folder}")
        self._load: Callable[[], Any] = lambda: load_subject(subject)
        self._subject: Any = None
        self._watch: Any = None

    @property
    def subject(self) -> Any:
        """The subject, loaded when it is first needed."""
        if self._subject is None:
            self._subject = self._load()
        return self._subject

    def look(self, command: Mapping[str, Any]) -> Any:
        """Run the scenario and the probes; with `uses` the scenario is followed."""
        from triton.runtime.interpreter import GridExecutor

        from conformance.core.bench import Bench
        from conformance.core.inputs import World
        from conformance.gate.desk import Noted
        from conformance.gate.scenario import Scenario
        from conformance.gate.seen import Seen
        from conformance.gate.tracing import tracing

        pausing = [
            *((Noted, name) for name in ("plan", "run")),
            *((Bench, name) for name in ("golden", "judge")),
            *((World, name) for name in ("__init__", "draw_step")),
            (GridExecutor, "__call__"),
        ]
        with tracing(self.owner, pausing) if command.get("uses") else nullcontext() as trace:
            steps = Scenario(self.subject, self.tier, self.desk, self.owner).run()
        native = tuple(sorted(self.desk.methods))
        uses = None if trace is None else trace.uses(native)
        version = str(self.flashinfer.__version__)
        return Seen(version, self.semantics, self.known, steps, self._probes(), uses).as_json()

    def _probes(self) -> Any:
        from conformance.gate.frames import first_line
        from conformance.gate.probes import SMS, observe
        from conformance.gate.seen import BROKEN, ProbeSeen
        from conformance.twin.eager import Eager
        from conformance.twin.pretended import package

        device = Eager(SMS)
        package(device)
        said: dict[str, tuple[str, str]] = {}

        def problem_seen(name: str, problem: Exception) -> None:
            said[name] = first_line(problem), self.owner.of_traceback(problem.__traceback__)

        with self.desk.answering(self._recorder()), device.active():
            try:
                seen = observe(
                    self.flashinfer.mla.BatchMLAPagedAttentionWrapper,
                    lambda wrapper: len(device.waits),
                    place=device.adopt,
                    problem_seen=problem_seen,
                )
            except Exception as problem:
                where = self.owner.of_traceback(problem.__traceback__)
                return {BROKEN: ProbeSeen(type(problem).__name__, first_line(problem), where)}
        return {name: ProbeSeen(outcome, *said.get(name, ())) for name, outcome in seen.items()}

    def _recorder(self) -> Any:
        from conformance.gate.probes import Recorder
        from conformance.twin.semantics import of_version

        return Recorder(returns_size=not of_version(self.semantics).plan_copies)

    def _native(self) -> Any:
        from conformance.twin.surface import NativeModule

        return NativeModule(self.semantics)

    def time(self, command: Mapping[str, Any]) -> list[float]:
        """Microseconds of `samples` builds of the figure `name`."""
        from conformance.gate.stopwatch import Stopwatch

        if self._watch is None:
            self._watch = Stopwatch(self.subject, self.tier, self.desk, self._native)
        samples: list[float] = self._watch.samples(command["name"], int(command["samples"]))
        return samples


def _failure(problem: BaseException) -> dict[str, Any]:
    """What went wrong: the exception, and a missing package by name; its traceback is printed."""
    traceback.print_exception(problem)
    missing = problem.name if isinstance(problem, ModuleNotFoundError) else None
    first = (str(problem).strip().splitlines() or [""])[0]
    return {"failed": f"{type(problem).__name__}: {first}", "missing": missing}


def _say(answers: IO[str], value: Any) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
