"""A subject that notes, case by case, how often each of its instances is used.

Named to `python -m conformance run` as `fuzz.mutants.counting:Counting@SUBJECT,FILE`.
"""

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conformance.core.worker import load_subject

_RUNNING = "PYTEST_CURRENT_TEST"
"""Environment variable in which pytest names the test under way; child processes inherit it."""


class Counting:
    """Passes everything on, and appends a line "case, instance, event" to a file for each use.

    text: another subject (package.module:factory), a comma, and the file. Events are construct,
    build, forward, replay, and trial: a run of FlashInfer's kernel during a construction, which
    shows where the case wraps the native module.
    """

    def __init__(self, text: str) -> None:
        factory, _, file = text.rpartition(",")
        self._real, self._file = load_subject(factory), Path(file)
        self._numbers = itertools.count()
        self.name, self.capabilities = self._real.name, self._real.capabilities
        self.version = getattr(self._real, "version", "")

    def refusals(self, config: Any, capability: tuple[int, int]) -> list[str]:
        """Return what the other subject refuses."""
        return self._real.refusals(config, capability)

    def construct(self, *args: Any, **options: Any) -> "_Counted":
        """Return an instance of the other subject that is counted."""
        instance = f"{os.getpid()}.{next(self._numbers)}"

        def note(event: str) -> None:
            with self._file.open("a") as lines:
                lines.write(f"{case_under_way()}\t{instance}\t{event}\n")

        note("construct")
        modules: list[_Tried] = []
        wrap: Any = options.get("wrap")

        def tried(module: Any) -> _Tried:
            modules.append(_Tried(wrap(module), note))
            return modules[-1]

        if wrap is not None:
            options["wrap"] = tried
        real = self._real.construct(*args, **options)
        for module in modules:
            module.trying = False
        return _Counted(real, note)


class _Tried:
    """A native module whose runs are noted while `trying`; it lacks what the wrapped one lacks."""

    def __init__(self, module: Any, note: Callable[[str], None]) -> None:
        self._module, self._note = module, note
        self.trying = True

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        if name != "run":
            return value

        def run(*args: Any) -> Any:
            if self.trying:
                self._note("trial")
            return value(*args)

        return run


class _Counted:
    def __init__(self, real: Any, note: Callable[[str], None]) -> None:
        self._real, self._note = real, note
        self.runtime = real.runtime
        self._capture = real.runtime.capture
        self.runtime.capture = self._captured

    def build(self, batch: Any) -> Any:
        self._note("build")
        return self._real.build(batch)

    def forward(self, *args: Any, **options: Any) -> None:
        self._note("forward")
        self._real.forward(*args, **options)

    def write_cache(self, *args: Any, **options: Any) -> None:
        self._real.write_cache(*args, **options)

    def observe(self) -> Any:
        return self._real.observe()

    @contextmanager
    def _captured(self) -> Iterator["_Replayed"]:
        with self._capture() as graph:
            yield _Replayed(graph, self._note)


class _Replayed:
    def __init__(self, graph: Any, note: Callable[[str], None]) -> None:
        self._graph, self._note = graph, note

    def replay(self) -> None:
        self._note("replay")
        self._graph.replay()


def case_under_way() -> str:
    """Return the id of the case whose test runs, empty outside of any."""
    test = os.environ.get(_RUNNING, "")
    return test.partition("[")[2].rpartition("]")[0]
