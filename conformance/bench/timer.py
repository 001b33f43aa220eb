"""Timers: calls timed in alternating order, on the host or as a graph on the device, or not at all.

A call that raises is refused, with its reason, and timed no further; the others go on.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from conformance.bench.shape import Call
from conformance.bench.stats import Timing, summarize

REPEATS = 5
SYNCHRONIZE_EVERY = 20
"""Calls after which the device is awaited, so that no queue fills up."""

_SECONDS = 0.25
_FEWEST, _MOST = 10, 200
_WARM_UP = 3
_LAUNCHES, _REPLAYS = 50, 10


@dataclass(frozen=True)
class Timed:
    """What became of a call: a timing, a refusal, or neither where nothing is timed."""

    timing: Timing | None = None
    refused: str | None = None


class Timer(Protocol):
    """Runs calls and tells how long they took."""

    def host(self, runtime: Any, calls: Mapping[str, Call]) -> dict[str, Timed]:
        """Time each call on the host."""

    def device(self, runtime: Any, calls: Mapping[str, Call]) -> dict[str, Timed]:
        """Time each call's work on the device, captured many times over into one graph."""


def reason(problem: Exception) -> str:
    """An exception in one line."""
    said = " ".join(str(problem).split())
    return f"{type(problem).__name__}: {said[:300]}" if said else type(problem).__name__


class _Attempts:
    """The calls that have not raised so far."""

    def __init__(self, calls: Mapping[str, Call]) -> None:
        self.left = dict(calls)
        self.refused: dict[str, str] = {}

    def each(self, number: int, do: Any) -> None:
        """Do something with every call, in an order that turns around from time to time."""
        names = list(self.left)
        for name in names if number % 2 == 0 else reversed(names):
            try:
                do(name, self.left[name])
            except Exception as problem:
                self.refused[name] = reason(problem)
                del self.left[name]


class GpuTimer:
    """Times on a GPU."""

    def host(self, runtime: Any, calls: Mapping[str, Call]) -> dict[str, Timed]:
        attempts = _Attempts(calls)
        counts: dict[str, int] = {}
        samples: dict[str, list[list[float]]] = {name: [] for name in calls}

        def warm(name: str, call: Call) -> None:
            call()
            runtime.synchronize()
            began = time.perf_counter()
            for _ in range(_WARM_UP):
                call()
            took = (time.perf_counter() - began) / _WARM_UP
            runtime.synchronize()
            counts[name] = min(max(int(_SECONDS / took), _FEWEST), _MOST)

        def repeat(name: str, call: Call) -> None:
            taken: list[float] = []
            call()  # what the call before left behind is of its own making from here on
            for number in range(counts[name]):
                if number % SYNCHRONIZE_EVERY == 0:
                    runtime.synchronize()
                began = time.perf_counter()
                call()
                taken.append(time.perf_counter() - began)
            runtime.synchronize()
            samples[name].append(taken)

        attempts.each(0, warm)
        for number in range(REPEATS):
            attempts.each(number, repeat)
        return _outcomes(calls, samples, attempts)

    def device(self, runtime: Any, calls: Mapping[str, Call]) -> dict[str, Timed]:
        attempts = _Attempts(calls)
        graphs: dict[str, Any] = {}
        samples: dict[str, list[list[float]]] = {name: [] for name in calls}

        def capture(name: str, call: Call) -> None:
            graphs[name] = captured(runtime, call, _LAUNCHES)
            graphs[name].replay()
            runtime.synchronize()

        def repeat(name: str, _: Call) -> None:
            taken: list[float] = []
            for _replay in range(_REPLAYS):
                begin, end = (torch.cuda.Event(enable_timing=True) for _each in range(2))
                begin.record()
                graphs[name].replay()
                end.record()
                runtime.synchronize()
                taken.append(begin.elapsed_time(end) / 1e3 / _LAUNCHES)
            samples[name].append(taken)

        attempts.each(0, capture)
        for number in range(REPEATS):
            attempts.each(number, repeat)
        return _outcomes(calls, samples, attempts)


class NoTimer:
    """Makes each call, on the host and captured, and times none."""

    def host(self, runtime: Any, calls: Mapping[str, Call]) -> dict[str, Timed]:
        attempts = _Attempts(calls)
        for number in range(2):
            attempts.each(number, lambda _, call: call())
        return _outcomes(calls, {}, attempts)

    def device(self, runtime: Any, calls: Mapping[str, Call]) -> dict[str, Timed]:
        attempts = _Attempts(calls)
        attempts.each(0, lambda _, call: captured(runtime, call, 2).replay())
        return _outcomes(calls, {}, attempts)


def captured(runtime: Any, call: Call, launches: int) -> Any:
    """A graph of so many calls; what a first call compiles is compiled before."""
    call()
    runtime.synchronize()
    with runtime.capture() as graph:
        for _ in range(launches):
            call()
    return graph


def _outcomes(
    calls: Mapping[str, Call], samples: Mapping[str, list[list[float]]], attempts: _Attempts
) -> dict[str, Timed]:
    """What became of each call; one that was refused half-way has no timing."""
    return {
        name: Timed(refused=attempts.refused[name])
        if name in attempts.refused
        else Timed(summarize(samples[name]) if samples.get(name) else None)
        for name in calls
    }
