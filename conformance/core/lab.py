"""What a requirement's test is given: its case, benches on the current tier, and assertions.

Assertions say what was expected, what was got, for which case, and how to run it again; their own
frames stay out of the traceback.
"""

import logging
import weakref
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import Tensor

from conformance.core import population
from conformance.core.again import AGAIN, again, twin_options
from conformance.core.bench import Bench
from conformance.core.case import Case, Config, Step
from conformance.core.drawing import draw
from conformance.core.inputs import StepInputs
from conformance.core.subject import Observation, Subject, Tier, Unobservable
from golden import Golden

_INTERPRETED_PERIOD = 10
_INTERPRETED_PHASE = 3
_log = logging.getLogger(__name__)


class CheckFailed(AssertionError):
    """A requirement's check found the subject wrong; any other exception is a crash.

    what, got, expected: of the check. worst: elements of an output, as of `golden.Verdict`.
    """

    def __init__(
        self, message: str, *, what: str = "", got: Any = None, expected: Any = None,
        worst: Sequence[tuple[int, int, int, float, float, float]] = (),
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.what, self.got, self.expected, self.worst = what, got, expected, worst


def interpreted(number: int, mode: str) -> bool:
    """Return whether a twin case runs its Triton kernels interpreted: every tenth, by default."""
    if mode == "auto":
        # A phase that moves: a fixed one would always meet the same values of a dimension whose
        # cycle divides the period.
        return (number + number // _INTERPRETED_PERIOD) % _INTERPRETED_PERIOD == _INTERPRETED_PHASE
    return mode == "interpret"


class Lab:
    """One case on one tier.

    error, ratio: the worst that `golden` saw, for the record. history: what a judge of many steps
    saw, for the record as well. traces: where schedules seen on a GPU are to be written, if
    anywhere. given: the subject's name on the command line, empty where it is the subject's own.
    again: a template of the command that runs the case again.
    """

    history: dict[str, Any] | None = None

    def __init__(
        self,
        case: Case,
        subject: Subject,
        tier: Tier,
        kernels: str,
        traces: Path | None = None,
        given: str = "",
        again: str = AGAIN,
    ) -> None:
        self.case, self.subject, self.tier, self.traces = case, subject, tier, traces
        self.given, self._again = given or subject.name, again
        self.interpret = tier.name == "twin" and interpreted(case.number, kernels)
        self.error: float | None = None
        self.ratio: float | None = None
        self._benches: list[weakref.ref[Bench]] = []  # a judge may free one to make room
        self._failing: list[int] = []

    @property
    def repro(self) -> str:
        """The command that runs this case again."""
        below = self.tier.simulates
        twin = twin_options(self.interpret, below, self.tier.installed)
        names = {"subject": self.given, "tier": self.tier.name}
        return again(self._again, self.case, **names, twin=twin, below=below)

    def step(self) -> Step:
        """Draw the case's batch."""
        return population.step_of(self.case)

    def config(self, *steps: Step) -> Config:
        """Return the configuration that `bench` constructs the subject with, by default."""
        return population.config_of(self.case, steps, full_width=self.tier.full_width)

    def bench(self, *steps: Step, wrap: Callable[[Any], Any] | None = None, **memory: Any) -> Bench:
        """Construct the subject for this case, with room for these steps.

        wrap: stands between the subject and FlashInfer's native module. memory: as of Bench.
        """
        if wrap is not None:
            self.needs("native")
        bench = Bench(
            self.case,
            self.subject,
            self.tier,
            steps,
            interpret=self.interpret,
            wrap=wrap,
            **memory,
        )
        self._benches.append(weakref.ref(bench))
        return bench

    def load_kernels(self, *steps: Step) -> None:
        """On a GPU, run the steps once with an instance of their own, for a judge who then holds
        the device: loading a kernel waits for it.
        """
        if self.tier.native is not None:
            return
        bench = self.bench(*steps, clock=True)
        for number, step in enumerate(steps):
            bench.queue(bench.frame(step, bench.world.draw_step(step, label=str(number))))
        bench.runtime.synchronize()

    def needs(self, capability: str) -> None:
        """Raise Unobservable where the subject lacks a capability."""
        if capability not in self.subject.capabilities:
            raise Unobservable(f"capability {capability}")

    def drawing(self) -> dict[str, Any] | None:
        """Return the latest bench's schedule as core.drawing makes it; None where nothing shows.

        To be asked for once a judge has ended: no device is held any more. Raises nothing, for it
        must not hide the failure that it illustrates.
        """
        for bench in filter(None, (reference() for reference in reversed(self._benches))):
            if bench.latest is None:
                continue
            try:
                seen = bench.observe()
                offsets = [] if seen.kv_indptr is None else seen.kv_indptr.tolist()
                valid = bench.valid(bench.latest)
                return draw(bench.schedule(seen), offsets, valid, self.tier.log, self._failing)
            except Unobservable:
                continue
            except Exception as problem:
                _log.warning("%s: no drawing: %s", self.case.id, problem)
        return None

    def check(self, condition: bool, what: str, *, got: Any, expected: Any) -> None:
        """Assert a property of the subject."""
        __tracebackhide__ = True
        if not condition:
            raise CheckFailed(
                f"{self.case.id}: {what}\n  got      {_short(got)}\n"
                f"  expected {_short(expected)}\n  repro    {self.repro}",
                what=what, got=got, expected=expected,
            )  # fmt: skip

    def unchanged(self, before: Observation, after: Observation, by: str) -> None:
        """Assert that two observations are the same, bit by bit."""
        __tracebackhide__ = True
        for item in fields(before):
            old, new = getattr(before, item.name), getattr(after, item.name)
            same = old.equal(new) if isinstance(old, Tensor) else old == new
            self.check(same, f"{item.name} after {by}", got="changed", expected="as before")

    def expect(self, got: Any, expected: Any, what: str) -> None:
        """Assert that two values (numbers, lists) are equal."""
        __tracebackhide__ = True
        self.check(got == expected, what, got=got, expected=expected)

    def no_flags(self, bench: Bench) -> None:
        """Assert that the device noticed nothing, of a subject that shows flags.

        Whether flags are raised and shown at all is judged by requirements of their own.
        """
        __tracebackhide__ = True
        flags = bench.observe().flags
        self.expect(flags or frozenset(), frozenset(), "flags")

    def golden(self, bench: Bench, observed: Tensor, golden: Golden, what: str = "output") -> None:
        """Assert that outputs equal golden within the error model; remember how near."""
        __tracebackhide__ = True
        verdict = bench.judge(observed, golden)
        self.error = max(self.error or 0.0, verdict.max_error)
        self.ratio = max(self.ratio or 0.0, verdict.max_ratio)
        if not verdict.ok:
            self._failing = [row for row, *_ in verdict.worst]
            raise CheckFailed(
                f"{self.case.id}: {what} differs from golden\n{verdict.message}\n"
                f"  repro    {self.repro}",
                what=what,
                worst=verdict.worst,
            )

    def judged_run(self, bench: Bench, step: Step, inputs: StepInputs, **how: Any) -> Tensor:
        """Run a step, hold its live rows against golden, and return them."""
        __tracebackhide__ = True
        out = bench.run(step, inputs, **how)
        self.golden(bench, out, bench.golden(step, inputs))
        return out


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 600 else f"{text[:600]}... ({len(text)} characters)"
