"""Times what a subject's builds cost the host, kernels and the native planner left out."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from conformance.core.bench import Bench
from conformance.core.case import Step, parse
from conformance.core.subject import HostBatch, Subject, Tier
from conformance.gate.desk import Desk

ROWS = 64
_BATCH = slice(3, None)  # of a native plan's arguments: behind the workspaces
FIGURES = {
    "host time of a plan, 64 rows, 1024 reserved": (1024, True),
    "host time of a plan, 64 rows, 8192 reserved": (8192, True),
    "host time of a step of the same lengths, 64 rows, 1024 reserved": (1024, False),
}
"""What is timed: rows reserved, and whether each step has another number of rows than the last."""


def _step(rows: int) -> Step:
    lengths = tuple(40 + row for row in range(rows))
    return Step((1,) * rows, lengths, lengths, rows)


class _Remembered:
    """A native module that plans each batch once and then only remembers what it returned."""

    def __init__(self, native: Any) -> None:
        self.num_sms = native.num_sms
        self._native = native
        self._results: dict[tuple[Any, ...], Any] = {}

    def plan(self, *args: Any) -> Any:
        key = tuple(
            value.numpy().tobytes() if isinstance(value, torch.Tensor) else value
            for value in args[_BATCH]
        )
        if key not in self._results:
            self._results[key] = self._native.plan(*args)
        return self._results[key]

    def run(self, *args: Any) -> None:
        """No result is looked at."""


class Stopwatch:
    """Times builds, each figure on an instance of its own that is made once.

    native: makes the native module; each batch is planned once, so that what is timed is Python.
    """

    def __init__(self, subject: Subject, tier: Tier, desk: Desk, native: Callable[[], Any]) -> None:
        self._subject, self._tier, self._desk = subject, tier, desk
        self._native = _Remembered(native())
        self._ready: dict[str, tuple[Bench, list[HostBatch]]] = {}

    def samples(self, name: str, count: int) -> list[float]:
        """Microseconds of each of `count` builds."""
        with self._python_alone():
            bench, batches = self._ready.get(name) or self._made(name)
            times = []
            for number in range(count):
                batch = batches[number % len(batches)]
                start = time.perf_counter()
                bench.instance.build(batch)
                times.append((time.perf_counter() - start) * 1e6)
        return times

    def _python_alone(self) -> AbstractContextManager[Any]:
        return self._desk.answering(self._native)

    def _made(self, name: str) -> tuple[Bench, list[HostBatch]]:
        reserved, anew = FIGURES[name]
        steps = [_step(ROWS - 8), _step(ROWS)] if anew else [_step(ROWS)]
        case = parse("GATE/dtype=bf16,geo=tiny,heads=16/1")
        bench = Bench(
            case, self._subject, self._tier, steps, interpret=True, changes={"max_tokens": reserved}
        )
        launch = getattr(type(bench.runtime), "launch", None)
        if launch is not None:
            bench.runtime.launch = lambda *args, **kwargs: None
        ready = bench, [bench.own_batch(step) for step in steps]
        self._ready[name] = ready
        for batch in ready[1]:
            bench.instance.build(batch)  # what is done once is done
        return ready
