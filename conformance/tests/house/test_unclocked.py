"""Subjects that cannot run on the suite's clock or take a module are judged by what they show.

Each fault here must be found by the requirement that it breaks, and the same code without it pass.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from conformance.core.case import parse
from conformance.core.lab import CheckFailed, Lab
from conformance.core.subject import Observation, Unobservable
from conformance.subjects.upstream import ReadsBack, Sound
from conformance.tests.requirements import test_admit, test_queue
from conformance.tiers import tier

WAITS = test_queue.test_a_step_waits_for_nothing
FLIGHT = test_queue.test_plans_in_flight_keep_their_own_schedules
WORKS = test_admit.test_what_is_admitted_works


class _Instance:
    """Another instance, which counts what it reads back while it builds."""

    def __init__(self, inner: Any, first: Callable[[], None], shows: bool) -> None:
        self._inner, self._first, self._shows = inner, first, shows
        self.runtime, self.forward, self._waits = inner.runtime, inner.forward, 0

    def build(self, batch: Any) -> Any:
        self._first()
        read, runtime = self.runtime.read, self.runtime

        def counted(src: Any) -> Any:
            self._waits += 1
            return read(src)

        runtime.read = counted
        try:
            return self._inner.build(batch)
        finally:
            runtime.read = read

    def observe(self) -> Observation:
        seen: Observation = self._inner.observe()
        return replace(seen, waits=self._waits if self._shows else None)


class Unclocked:
    """A subject without the capabilities clock and native.

    at: what happens at construction; first: at each build. shows: whether it shows its waits.
    """

    name = "unclocked"
    capabilities = frozenset({"bf16", "fp8", "capture"})

    def __init__(
        self,
        of: Any = Sound,
        *,
        at: Callable[[], None] = lambda: None,
        first: Callable[[], None] = lambda: None,
        shows: bool = True,
    ) -> None:
        self._of, self._at, self._first, self._shows = of(), at, first, shows
        self.refusals = self._of.refusals

    def construct(self, *args: Any, clock: Any = None, wrap: Any = None, **how: Any) -> Any:
        assert clock is None, "a clock for a subject that has none"
        assert wrap is None, "a module for a subject that takes none"
        self._at()
        return _Instance(self._of.construct(*args, **how), self._first, self._shows)


def judged(judge: Any, subject: Unclocked, pattern: str) -> BaseException | None:
    """Run the first case that has the pattern; return what was raised."""
    case = next(case for case in judge.judge.cases("twin") if pattern in case)
    try:
        judge(Lab(parse(case), subject, tier("twin"), "torch"))
    except (Exception, pytest.skip.Exception) as problem:
        return problem
    return None


def failing(problem: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise problem

    return fail


@pytest.mark.parametrize("how", ["how=plan,", "how=reuse,", "how=idle,"])
def test_a_sound_subject_without_a_clock_passes(how: str) -> None:
    assert judged(WAITS, Unclocked(), how) is None


def test_a_wait_that_is_shown_fails() -> None:
    problem = judged(WAITS, Unclocked(ReadsBack), "how=plan,")
    assert isinstance(problem, CheckFailed), problem
    assert "waits for the device\n  got      1" in str(problem)


def test_waits_that_are_not_shown_are_unobservable() -> None:
    for of in (Sound, ReadsBack):
        problem = judged(WAITS, Unclocked(of, shows=False), "how=plan,")
        assert isinstance(problem, Unobservable), problem
        assert "waits" in str(problem)


def test_plans_in_flight_need_a_device_that_is_behind() -> None:
    problem = judged(FLIGHT, Unclocked(), "how=4")
    assert isinstance(problem, Unobservable), problem


def test_a_first_step_that_works_passes() -> None:
    for dtype in ("bf16", "fp8"):
        assert judged(WORKS, Unclocked(), f"how=sound,dtype={dtype}") is None


def test_a_first_step_that_fails_behind_the_gate_fails() -> None:
    broken = Unclocked(first=failing(AttributeError("no _planned_backend")))
    problem = judged(WORKS, broken, "how=sound")
    assert isinstance(problem, CheckFailed), problem
    assert "AttributeError: no _planned_backend" in str(problem)


def test_a_first_step_that_is_wrong_fails() -> None:
    class Doubled(Sound):
        def construct(self, config: Any, tier: Any, **how: Any) -> Any:
            return super().construct(replace(config, sm_scale=2 * config.sm_scale), tier, **how)

    problem = judged(WORKS, Unclocked(Doubled), "how=sound")
    assert isinstance(problem, CheckFailed), problem
    assert "differs from golden" in str(problem)


def test_a_refusal_at_construction_names_flashinfer() -> None:
    for said, passes in (("FlashInfer 0.7.2.post1: not served", True), ("not served", False)):
        problem = judged(WORKS, Unclocked(at=failing(ValueError(said))), "how=sound")
        assert (problem is None) is passes, problem


def test_a_module_that_is_tampered_with_needs_a_subject_that_takes_one() -> None:
    problem = judged(WORKS, Unclocked(), "how=writes-nothing")
    assert isinstance(problem, Unobservable), problem
