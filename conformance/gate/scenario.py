"""A few steps of a subject on a pretended device, chosen to meet what FlashInfer changes.

The numbers of rows are small, so that the whole takes seconds: a decode, the next one that may
reuse its plan, one that may not, a padded batch at once and as a graph, FP8, many reserved rows,
and more rows than a schedule holds.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from conformance.core.bench import Bench
from conformance.core.case import Case, Config, Step, parse
from conformance.core.subject import HostBatch, Subject, Tier, Unobservable
from conformance.gate.desk import Desk, HeldBackError, PlacedWaits
from conformance.gate.frames import Owner, first_line
from conformance.gate.seen import StepSeen, Wait

MANY_RESERVED = 8192
BEYOND_ROWS, BEYOND_HEADS = 17000, 128
"""More work items than a schedule holds, whatever the lengths: 16384."""

STEPS = (
    *("construct", "decode", "reuse", "replan", "padded", "graph", "graph replayed"),
    *("fp8", "many reserved", "beyond capacity"),
)


def _step(length: int, rows: int = 3, padded: int = 0) -> Step:
    lengths = tuple(length + 7 * row for row in range(rows))
    bounds = tuple(length + 2 for length in lengths)
    return Step((1,) * rows, lengths, bounds, max(rows, padded))


class Scenario:
    """Runs the steps of one subject on one tier. owner: whose code is whose."""

    def __init__(self, subject: Subject, tier: Tier, desk: Desk, owner: Owner) -> None:
        self._subject, self._tier, self._desk, self._owner = subject, tier, desk, owner
        self._waits: PlacedWaits | None = None
        self._bench: Bench | None = None
        self.steps: list[StepSeen] = []

    def run(self) -> tuple[StepSeen, ...]:
        """Every step, in the order of STEPS."""
        first, padded = _step(40), _step(60, padded=8)
        steps = [first, _step(41), _step(40, rows=5), padded, _step(61, rows=2, padded=8)]
        bench = self._see("construct", lambda: self._made("bf16", steps))
        if bench is None:
            self._skip("the subject was not constructed", *STEPS[1:])
            return tuple(self.steps)
        for name, step in zip(STEPS[1:5], steps, strict=False):
            self._see(name, lambda step=step: self._judged(bench, step))  # type: ignore[misc]
        self._graph(bench, *steps[3:])
        self._see("fp8", lambda: self._judged(self._made("fp8", [first]), first))
        self._see(
            "many reserved",
            lambda: self._judged(self._made("bf16", [first], max_tokens=MANY_RESERVED), first),
        )
        self._see("beyond capacity", self._beyond)
        return tuple(self.steps)

    def _graph(self, bench: Bench, wide: Step, narrow: Step) -> None:
        """A batch padded as a graph is, captured, and replayed for fewer rows."""
        if "capture" not in self._subject.capabilities:
            self._skip("the subject's forwards cannot be captured", "graph", "graph replayed")
            return
        graph: list[Any] = []

        def capture() -> tuple[bool, float]:
            inputs = bench.world.draw_step(wide)
            bench.clear_output()
            metadata = bench.build(wide)
            bench.load(inputs)
            with bench.runtime.capture() as taken:
                bench.forward(metadata, wide.padded_rows)
            graph.append(taken)
            taken.replay()
            return self._right(bench, wide, inputs)

        def replay() -> tuple[bool, float]:
            inputs = bench.world.draw_step(narrow, "replay")
            bench.clear_output()
            bench.build(narrow)
            bench.load(inputs)
            graph[0].replay()
            return self._right(bench, narrow, inputs)

        self._see("graph", capture)
        if graph:
            self._see("graph replayed", replay)
        else:
            self._skip("the capture did not succeed", "graph replayed")

    def _judged(self, bench: Bench, step: Step) -> tuple[bool, float]:
        inputs = bench.world.draw_step(step)
        bench.run(step, inputs)
        return self._right(bench, step, inputs)

    def _right(self, bench: Bench, step: Step, inputs: Any) -> tuple[bool, float]:
        with self._aside():
            bench.runtime.synchronize()
            verdict = bench.judge(bench.output(step.rows), bench.golden(step, inputs))
        return verdict.ok, verdict.max_ratio

    def _beyond(self) -> None:
        """Plan more rows than a schedule holds; the native planner is not let run."""
        config = Config(
            num_heads=BEYOND_HEADS,
            head_dim_ckv=512,
            head_dim_kpe=0,
            fp8=False,
            geometry=_case("bf16").geometry,
            max_tokens=BEYOND_ROWS,
            sm_scale=512**-0.5,
            k_scale=1.0,
        )
        clock = self._clock(_case("bf16"))
        given = {} if clock is None else {"clock": clock}
        instance = self._subject.construct(config, self._tier, interpret=True, **given)
        self._watch(instance.runtime)
        runtime, rows = instance.runtime, BEYOND_ROWS
        starts, ones = torch.arange(rows + 1, dtype=torch.int32), torch.ones(rows).int()
        starts_there, ones_there = (
            runtime.zeros((size,), torch.int32) for size in (rows + 1, rows)
        )
        runtime.write(starts_there, starts)
        runtime.write(ones_there, ones)
        table = runtime.zeros((rows, 1), torch.int32)
        batch = HostBatch(starts, starts_there, ones_there, ones, table, num_padded_tokens=rows)
        self._start()
        with self._desk.holding():
            try:
                instance.build(batch)
            except HeldBackError:
                return

    def _made(self, dtype: str, steps: list[Step], **changes: Any) -> Bench:
        bench = Bench(
            _case(dtype), self._subject, self._tier, steps, interpret=True, clock=True,
            changes=changes,
        )  # fmt: skip
        self._watch(bench.runtime)
        self._bench = bench
        self._start()
        return bench

    def _clock(self, case: Case) -> Any:
        if self._tier.clock is None or "clock" not in self._subject.capabilities:
            return None
        return self._tier.clock(case.number, "interpret")

    def _watch(self, runtime: Any) -> None:
        """Note the waits of a device; one that counts them itself is only asked how many."""
        self._runtime = runtime
        self._waits = None
        if not isinstance(getattr(runtime, "waits", 0), int):
            self._waits = runtime.waits = PlacedWaits(self._owner)

    def _start(self) -> None:
        self._desk.taken()
        self._counted = getattr(self._runtime, "waits", 0)
        if self._waits is not None:
            self._waits.taken()

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """A context in which the suite itself looks: what waits is not the subject's."""
        if self._waits is not None:
            yield
            return
        unobserved = getattr(self._runtime, "unobserved", None)
        if unobserved is None:
            yield
        else:
            with unobserved():
                yield

    def _waited(self) -> tuple[Wait, ...]:
        if self._waits is not None:
            return self._waits.taken()
        count = int(getattr(self._runtime, "waits", 0) - self._counted)
        return (Wait("read", "a wait of the device's queue"),) * count

    _runtime: Any = None
    _counted: Any = 0

    def _see(self, name: str, work: Callable[[], Any]) -> Any:
        """Run one step and keep what was seen of it."""
        warned: set[str] = set()
        told = warnings.warn

        def note(
            message: Any, category: Any = None, stacklevel: int = 1, *rest: Any, **kw: Any
        ) -> Any:
            kind = type(message) if isinstance(message, Warning) else category or UserWarning
            if issubclass(kind, (DeprecationWarning, FutureWarning)):
                warned.add(str(message))
            return told(message, category, stacklevel + 1, *rest, **kw)

        self._desk.taken()
        if self._runtime is not None:
            self._start()
        result: Any = None
        refused = where = skipped = ""
        with mock.patch.object(warnings, "warn", note):
            try:
                result = work()
            except Unobservable as problem:
                skipped = f"the subject lacks: {problem}"
            except Exception as problem:
                refused, where = (
                    first_line(problem),
                    self._owner.of_traceback(problem.__traceback__),
                )
        right, error = result if isinstance(result, tuple) else (None, 0.0)
        waits = self._waited() if self._runtime is not None else ()
        self.steps.append(
            StepSeen(
                name, self._desk.taken(), waits, refused, where, right, error, skipped,
                tuple(sorted(warned)),
            )
        )  # fmt: skip
        return result

    def _skip(self, why: str, *names: str) -> None:
        self.steps.extend(StepSeen(name, skipped=why) for name in names)


def _case(dtype: str) -> Case:
    return parse(f"GATE/dtype={dtype},geo=tiny,heads=16/1")
