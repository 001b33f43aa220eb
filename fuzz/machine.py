"""The same engine as a Hypothesis state machine, so that a finding shrinks to a short history.

Each rule but one is a turn of some kind, so there is a history whichever Hypothesis leaves out.
It is played when the rules end.
"""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import strategies as st
from hypothesis.database import ExampleDatabase
from hypothesis.errors import Flaky
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from conformance.core.case import GEOMETRIES
from conformance.core.population import edges
from conformance.core.subject import Subject, Tier, Unobservable
from fuzz.engine import Engine
from fuzz.faults import FAULTS
from fuzz.history import DEVICES, Fault, History, Part, Shape, Turn
from fuzz.places import DENSE, places_in
from fuzz.player import Finding, play

_ALL = list(HealthCheck)
PROFILES = {
    "ci": settings(
        max_examples=120, stateful_step_count=15, derandomize=True, database=None, deadline=None,
        suppress_health_check=_ALL, report_multiple_bugs=False,
    ),
    "fuzz": settings(
        max_examples=1000, stateful_step_count=30, deadline=None, print_blob=True,
        suppress_health_check=_ALL, report_multiple_bugs=False,
    ),
    "deep": settings(
        max_examples=20000, stateful_step_count=80, deadline=None, print_blob=True,
        suppress_health_check=_ALL, report_multiple_bugs=False,
    ),
}  # fmt: skip
"""How long Hypothesis looks. ci: bounded, the same each time; fuzz, deep: with its database."""

_PHASES = [phase for phase in Phase if phase is not Phase.explain]
"""Without the one that varies what was found, hundreds of times, for a text that nobody reads."""

_INSIDE = [name for name, kind in FAULTS.items() if kind.inside]


class Found(AssertionError):
    """A history that is a finding."""


@st.composite
def shapes(draw: Any) -> Shape:
    """Draw a shape; the plainest is what others shrink to."""
    geo = draw(st.sampled_from(("serve", "tiny", "flat", "odd", "pool", "wide")))
    geometry = GEOMETRIES[geo]
    slots, drafts = draw(st.integers(1, 6)), draw(st.integers(0, 4))
    rows = slots * (1 + drafts)
    graphs = draw(st.lists(st.integers(1, rows + 4), max_size=3, unique=True))
    return Shape(
        dtype=draw(st.sampled_from(("bf16", "fp8"))),
        kpe=draw(st.sampled_from((0, 64))),
        heads=draw(st.sampled_from((16, 1, 64, 65, 128))),
        geo=geo,
        width="small",
        slots=slots,
        budget=rows + draw(st.integers(0, 40) | st.just(DENSE + 40)),
        longest=3 * geometry.index_topk + geometry.index_kpool + 8 * (1 + drafts) + 64,
        drafts=drafts,
        lag=draw(st.integers(0, 3)),
        graphs=tuple(sorted(graphs)),
        force_mqa=draw(st.booleans()),
        device=draw(st.sampled_from(DEVICES)),
    )


def _moved(data: st.DataObject, counts: list[int], most: int) -> list[int]:
    """Draw another split of the same rows: some pass from one request to the next."""
    split = list(counts)
    for giver in range(len(split) - 1):
        room = min(split[giver] - 1, most - split[giver + 1])
        passed = data.draw(st.integers(0, max(room, 0)))
        split[giver] -= passed
        split[giver + 1] += passed
    return split


class Serving(RuleBasedStateMachine):
    """A serving engine; the rules are what it may decide. subject, tier: what it is played on.

    smallest: the last history that was a finding, in the end the one that Hypothesis shrank to.
    played: frames so far.
    """

    subject: Subject
    tier: Tier
    smallest: "tuple[History, Finding] | None" = None
    played = 0
    heard: Callable[[bool], None]

    @initialize(shape=shapes(), seed=st.integers(0, 999))
    def start(self, shape: Shape, seed: int) -> None:
        self.shape, self.seed, self.engine = shape, seed, Engine(shape)
        self.turns: list[Turn] = []
        self.room = shape.longest - 2 * (1 + shape.drafts) - 6
        self._preempt: set[int] = set()

    @precondition(lambda self: bool(self.engine.running))
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        """A request loses its blocks before the next turn."""
        self._preempt.add(data.draw(st.sampled_from(self.engine.running)))

    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        """A turn whose forward runs eagerly."""
        self._turn(data)

    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        """A turn whose forward is a captured one, where one is large enough."""
        self._turn(data, graph=True)

    @rule(data=st.data())
    def read_back(self, data: st.DataObject) -> None:
        """A turn without bounds on the host."""
        self._turn(data, known=False, graph=data.draw(st.booleans()))

    @precondition(lambda self: self.shape.drafts > 0)
    @rule(data=st.data())
    def draft(self, data: st.DataObject) -> None:
        """A turn and the draft steps behind it."""
        self._turn(data, drafting=data.draw(st.integers(1, self.shape.drafts)))

    @rule(data=st.data(), kind=st.sampled_from(_INSIDE), amount=st.integers(0, 9))
    def plant(self, data: st.DataObject, kind: str, amount: int) -> None:
        """A turn with a fault inside of the contract."""
        self._turn(data, fault=Fault(kind, amount, amount), graph=data.draw(st.booleans()))

    @precondition(lambda self: bool(self.engine.running))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        """A turn with which a request ends."""
        self._turn(data, finish=(data.draw(st.sampled_from(self.engine.running)),))

    @precondition(lambda self: self.shape.drafts > 0)
    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        """A turn whose draft budget the device distributes anew."""
        self._turn(data, moved=True, graph=data.draw(st.booleans()))

    def _turn(
        self,
        data: st.DataObject,
        *,
        graph: bool = False,
        finish: tuple[int, ...] = (),
        moved: bool = False,
        **what: Any,
    ) -> None:
        shape, engine, requests = self.shape, self.engine, self.engine.requests
        full = {n for n in engine.running if requests[n].tokens > self.room} - self._preempt
        kept = [n for n in engine.running if n not in self._preempt | full]
        decoding = [n for n in kept if requests[n].decoding and data.draw(st.booleans())]
        counts = [data.draw(st.integers(1, 1 + shape.drafts)) for _ in decoding]
        split = _moved(data, counts, 1 + shape.drafts) if moved else counts
        parts = [
            Part(number, count, data.draw(st.integers(0, true - 1)))
            for number, count, true in zip(decoding, counts, split, strict=True)
        ]
        left = {n: requests[n].tokens - requests[n].done for n in kept if not requests[n].decoding}
        left |= {n: requests[n].tokens for n in requests if n not in kept and n not in full}
        arrive: list[int] = []
        if len(left) < 2:  # so that there is always something to do
            near = [n for n in edges(GEOMETRIES[shape.geo]) if n <= self.room] or [1]
            lengths = st.sampled_from(near) | st.integers(1, self.room)
            arrive = data.draw(st.lists(lengths, min_size=not (left or parts), max_size=2))
        left |= {engine.arrived + i: prompt for i, prompt in enumerate(arrive)}
        holding, rows = {*kept, *full}, sum(part.queries for part in parts)
        for number, whole in left.items():
            most = min(whole, shape.budget - rows)
            if most and len(holding | {number}) <= shape.slots and not data.draw(st.booleans()):
                holding.add(number)
                parts.append(Part(number, data.draw(st.sampled_from((most, 1)) |
                                                    st.integers(1, most))))  # fmt: skip
                rows += parts[-1].queries
        turn = Turn(
            arrive=tuple(arrive),
            preempt=tuple(sorted(self._preempt)),
            parts=tuple(parts),
            device=tuple(split) if split != counts else (),
            finish=tuple(sorted(full | (set(finish) & set(kept)))),
            graph=graph and rows <= max(shape.graphs, default=-1),
            **what,
        )
        self._preempt = set()
        step = self.engine.take(turn)[0].step
        places = places_in(turn, step, shape, (), None, last=False)
        if turn.fault and turn.fault.kind not in places:
            turn = replace(turn, fault=None)
        self.turns.append(turn)

    def teardown(self) -> None:
        """Play what was decided."""
        if not getattr(self, "turns", None):
            return
        history = History(self.seed, self.shape, tuple(self.turns))
        try:
            seen = play(history, self.subject, self.tier)
        except Unobservable:
            return
        type(self).played += seen.frames
        finding = seen.finding
        self.heard(finding is not None)
        if finding:
            type(self).smallest = history, finding
            raise Found(f"{finding.frame}: {finding.message}")


def hunt(
    profile: str,
    subject: Subject,
    tier: Tier,
    database: ExampleDatabase | None = None,
    heard: Callable[[bool], None] = lambda found: None,
) -> tuple[History, Finding] | None:
    """Let Hypothesis look for a finding; return the smallest that it came to, None for none.

    database: where it keeps findings, and looks first; None: the profile's own. heard: called after
    each history with whether it was a finding. Raises Unobservable where nothing could be played.
    """

    class Hunt(Serving):
        """This hunt's own state machine."""

    Hunt.subject, Hunt.tier, Hunt.heard = subject, tier, staticmethod(heard)
    chosen = settings(PROFILES[profile], verbosity=Verbosity.quiet, phases=_PHASES)
    if database is not None:
        chosen = settings(chosen, database=database)
    # What does not come again, as on a GPU it may, is a finding as well.
    with contextlib.suppress(Found, Flaky):
        run_state_machine_as_test(Hunt, settings=chosen)
    if not Hunt.played and Hunt.smallest is None:
        raise Unobservable("any history")
    return Hunt.smallest
