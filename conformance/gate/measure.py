"""The benchmark of two packages on one GPU: alternating children, ratios of times, and waits.

For one subject each package has a process of its own; both hold a load of the same shape, and each
round asks one after the other. What a subject refuses on one side only, or waits for on one side
only, is a finding.
"""

import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from conformance.core.case import GEOMETRIES, Geometry
from conformance.gate.alternate import ROUNDS, SIDES, alternate, figure
from conformance.gate.errors import GateError
from conformance.gate.load import Shape
from conformance.gate.measured import Measured, Refusal, Seen, findings
from conformance.gate.measuring import as_question
from conformance.gate.model import Figure, Side
from conformance.gate.talk import ChildDied, Talk
from conformance.tiers import VERSIONS

SHAPES = tuple(
    Shape(rows, heads, fp8, reserved, GEOMETRIES["glm"])
    for rows, heads, fp8, reserved in (
        (8, 64, False, 1024),
        (8, 128, True, 16384),
        (64, 64, True, 1024),
        (64, 128, False, 16384),
        (256, 64, False, 16384),
        (256, 64, True, 1024),
        (256, 128, False, 1024),
        (256, 128, True, 16384),
    )
)
"""What is measured on a GPU: each head count, cache and capacity beside each other at some size."""

REHEARSED = tuple(
    Shape(3, 64, fp8, 8, Geometry(128, 4, 136), head_dim_ckv=64, long=148, short=20, blocks=16)
    for fp8 in (False, True)
)
"""What a rehearsal runs through."""

KINDS = {"replan": "plan", "reuse": "plan", "launch": "launch", "kernel": "kernel"}
NAMES = {
    "replan": "host time of a plan",
    "reuse": "host time of a step that reuses its plan",
    "launch": "host time to queue a forward",
    "kernel": "device time of a forward",
}

_SAMPLES = 20
_HELLO_S, _PREPARE_S, _ASK_S = 300.0, 1200.0, 300.0  # the first load of a module may build it
_DEATHS = 3


class MeasureError(GateError):
    """The benchmark cannot be made on this machine; the message says why."""


@dataclass(frozen=True)
class Place:
    """A package as a child runs it.

    environment: all of the child's variables, PYTHONPATH among them. folder: where the package must
    come from; None where that is not asked.
    """

    side: Side
    environment: Mapping[str, str]
    folder: Path | None = None


@dataclass
class _End:
    """One side: its place, its child while there is one, and how often one has died."""

    name: str
    place: Place
    command: Sequence[str]
    scratch: Path
    talk: Talk | None = None
    deaths: int = 0
    hello: dict[str, Any] = field(default_factory=dict)

    def ask(self, timeout_s: float, do: str, **more: Any) -> dict[str, Any]:
        if self.talk is None:
            self.talk = Talk(self.name, self.command, self.place.environment, self.scratch)
        try:
            return self.talk.ask({"do": do, **more}, timeout_s)
        except ChildDied:
            self.end()
            self.deaths += 1
            raise

    def end(self) -> None:
        if self.talk is not None:
            self.talk.end()
            self.talk = None

    def greet(self) -> None:
        """See that the child is of the place's package."""
        self.hello = self.ask(_HELLO_S, "hello")
        found, wanted = self.hello["folder"], self.place.folder
        if found and wanted is not None and Path(found) != wanted.resolve():
            raise MeasureError(
                f"{self.name}: found FlashInfer in {found}; allowed: {wanted}; to fix: look for "
                "what puts another one before it on sys.path, such as a .pth file"
            )


def measure(
    subject: str,
    places: Mapping[str, Place],
    scratch: Path,
    *,
    shapes: Sequence[Shape] | None = None,
    rounds: int = ROUNDS,
    rehearse: bool = False,
    command: Sequence[str] = (),
) -> Measured:
    """Return what was measured of a subject (package.module:factory) on both places, by side.

    scratch: an existing folder for the children's words. shapes: SHAPES, or REHEARSED, by default.
    rehearse: on the twin, where nothing is timed. command: starts a child, for tests. Raises
    MeasureError where a child cannot start.
    """
    ends = {
        side: _End(
            side, places[side], command or _command(subject, places[side], rehearse), scratch
        )
        for side in SIDES
    }
    seen: list[Seen] = []
    figures: list[Figure] = []
    with ExitStack() as stack:
        for end in ends.values():
            stack.callback(end.end)
        for end in ends.values():
            try:
                end.greet()
            except ChildDied as problem:
                raise MeasureError(
                    f"{problem}; to fix: see that `import flashinfer.mla` works with it"
                ) from problem
        _same_subject(ends)
        for shape in shapes or (REHEARSED if rehearse else SHAPES):
            one, timed = _measured(shape, ends, rounds)
            seen.append(one)
            figures += timed
            if any(end.deaths >= _DEATHS for end in ends.values()):
                break  # each death is a finding; more of them say nothing new
    hello = ends["candidate"].hello
    return Measured(
        subject=hello["subject"],
        subject_version=hello["version"],
        baseline=places["baseline"].side,
        candidate=places["candidate"].side,
        gpu=hello["gpu"],
        figures=tuple(figures),
        findings=findings(seen),
        shapes=tuple(one.label for one in seen),
    )


def _command(subject: str, place: Place, rehearse: bool) -> Sequence[str]:
    version = place.side.version if place.side.version in VERSIONS else VERSIONS[-1]
    start = (sys.executable, "-m", "conformance.gate.measuring", subject)
    return (*start, version) if rehearse else start


def _same_subject(ends: Mapping[str, _End]) -> None:
    found = {(end.hello["subject"], end.hello["version"]) for end in ends.values()}
    if len(found) > 1:
        raise MeasureError(
            f"subject: found {' and '.join(map(str, sorted(found)))}; allowed: one subject on both "
            "sides; to fix: name one whose version does not follow FlashInfer's"
        )


class _Stopped(Exception):
    """A side refused a shape, or died at it; what is known of it stands in `Seen`."""


def _measured(shape: Shape, ends: Mapping[str, _End], rounds: int) -> tuple[Seen, list[Figure]]:
    """Prepare a shape on both sides, look for waits, and time the calls that both have."""
    seen, figures, calls = Seen(shape.label), [], {}

    def ask(side: str, timeout_s: float, do: str, **more: Any) -> dict[str, Any]:
        try:
            answer = ends[side].ask(timeout_s, do, **more)
        except ChildDied as problem:
            seen.died[side] = str(problem)
            raise _Stopped from problem
        if "refused" in answer:
            seen.refused[side] = Refusal(answer["refused"], answer["what"], answer["cause"])
            if answer["dead"]:
                ends[side].end()  # of a process whose CUDA context is gone no more can be asked
            raise _Stopped
        return answer

    for side in SIDES:  # also where the first one refuses: it may be both
        with suppress(_Stopped):
            calls[side] = ask(side, _PREPARE_S, "prepare", shape=as_question(shape))["calls"]
    if len(calls) == len(SIDES):
        with suppress(_Stopped):
            for side in SIDES:
                seen.waits[side] = ask(side, _ASK_S, "waits")["waits"]
            each = partial(ask, timeout_s=_ASK_S, do="time", samples=_SAMPLES)
            answers = alternate(lambda side: each(side)["us"], rounds)
            where = ends["candidate"].hello["gpu"]
            for call in (
                call for call in KINDS if all(call in a[s] for a in answers for s in SIDES)
            ):
                name = f"{NAMES[call]}, {shape.label}"
                medians = [{side: round_[side][call] for side in SIDES} for round_ in answers]
                figures.append(figure(name, KINDS[call], where, medians))
    for side in (side for side in SIDES if ends[side].talk is not None):
        with suppress(_Stopped):
            ask(side, _ASK_S, "drop")
    return seen, figures
