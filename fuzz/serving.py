"""Draws histories: what a busy engine decides, biased to the edges, one seed for each.

The engine model runs along, so that every decision is one that can be made.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from conformance.core.case import GEOMETRIES, Step
from conformance.core.population import edges
from fuzz.engine import Engine
from fuzz.faults import FAULTS
from fuzz.history import DEVICES, MOST_PADDING, Fault, History, Part, Shape, Turn
from fuzz.places import DENSE, places_in
from golden import Draw

RARE = ("small-graph", "low-bound", "untold-split", "skipped-plan")
"""Kinds that seldom have a place."""

GEOS = ("serve", "serve", "tiny", "flat", "odd", "pool", "wide")
_HEADS = (16, 16, 1, 8, 64, 65, 128)


@dataclass(frozen=True)
class Profile:
    """What a run draws. turns: of a history, at most. faults: whether any are planted.

    shape: what every history's shape has, by name, of `fuzz.history.Shape`. chunk: most query
    tokens of a prefill in a turn, 0 for as many as the budget has room for. preempts: a running
    request is preempted in one of so many turns, on average, and a decode finishes in one of
    `finishes`.
    """

    turns: int = 16
    faults: bool = True
    shape: tuple[tuple[str, Any], ...] = ()
    chunk: int = 0
    preempts: int = 12
    finishes: int = 14


PLAIN = Profile()


def drawn(seed: int, profile: Profile = PLAIN) -> History:
    """Return the history of a seed."""
    draw = Draw(f"serving {seed}")
    shape = replace(_shape(draw.fork("shape")), **dict(profile.shape))
    engine, turns, captured = Engine(shape), [], set[int]()
    before: Step | None = None
    count = draw.fork("turns").randint(max(profile.turns // 2, 1), profile.turns + 1)
    for number in range(count):
        turn = _turn(draw.fork(f"turn {number}"), engine, shape, profile)
        frames = engine.take(turn)
        step = frames[0].step
        places = places_in(turn, step, shape, captured, before, last=number == count - 1)
        before = frames[-1].step
        kind = _kind(draw.fork(f"fault {number}"), places) if profile.faults else ""
        if kind:
            chosen = draw.fork(f"fault {number} where")
            fault = Fault(kind, chosen.randint(0, 64), chosen.randint(0, 64))
            drafting = 0 if FAULTS[kind].flag else turn.drafting
            turn = replace(turn, fault=fault, drafting=drafting)
            before = None if FAULTS[kind].error else before
        elif turn.graph:
            captured.add(step.padded_rows)
        turns.append(turn)
    return History(seed, shape, tuple(turns))


def _kind(draw: Draw, places: Sequence[str]) -> str:
    """Return the fault to plant, of those that have a place; empty for none.

    A flag may be raised in a history's last turn alone, so there one is, nearly always.
    """
    flagged = [name for name in places if FAULTS[name].flag]
    if flagged and draw.randint(0, 6):
        rare = [name for name in flagged if name in RARE]
        return draw.choice(rare if rare and draw.randint(0, 2) else flagged)
    return draw.choice(places) if places and draw.randint(0, 4) == 0 else ""


def _shape(draw: Draw) -> Shape:
    geo = draw.choice(GEOS)
    geometry = GEOMETRIES[geo]
    slots = draw.randint(1, 9)
    drafts = draw.choice((0, 1, 2, 3, 5))
    longest = 3 * geometry.index_topk + geometry.index_kpool + draw.randint(0, 40)
    rows = slots * (1 + drafts)
    heads = draw.choice(_HEADS)
    # Where a prompt can be long enough for dense attention and short enough to be all selected.
    dense = geometry.index_topk > DENSE and heads <= 32 and draw.randint(0, 2) == 0
    budget = rows + (DENSE + 40 if dense else draw.choice((0, 3, 12, 40)))
    graphs = {draw.randint(1, rows + 1), rows, rows + draw.randint(0, 9), *([budget] * dense)}
    return Shape(
        dtype=draw.choice(("bf16", "fp8")),
        kpe=draw.choice((0, 64)),
        heads=heads,
        geo=geo,
        width="small",
        slots=slots,
        budget=budget,
        longest=max(longest, 64 + 4 * drafts),
        drafts=drafts,
        lag=draw.choice((0, 1, 1, 2, 4)),
        graphs=tuple(sorted(graphs)) if draw.randint(0, 3) else (),
        force_mqa=draw.choice((False, True)),
        device=draw.choice(DEVICES),
    )


def _turn(draw: Draw, engine: Engine, shape: Shape, profile: Profile) -> Turn:
    """Draw a turn that the engine can make."""
    requests, room = engine.requests, shape.longest - 2 * (1 + shape.drafts) - 2
    full = [n for n in engine.running if requests[n].tokens > room]
    kept = [n for n in engine.running if n not in full]
    preempt = [n for n in kept if draw.randint(0, profile.preempts) == 0]
    kept = [n for n in kept if n not in preempt]
    waiting = [n for n in requests if n not in kept and n not in full]
    arrive: list[int] = []
    near = [n for n in edges(GEOMETRIES[shape.geo]) if n <= room] or [1]
    while len(waiting) + len(arrive) < 2 and draw.randint(0, 3):
        arrive.append(draw.choice((draw.choice(near), draw.randint(1, room + 1))))
    decodes = [n for n in kept if requests[n].decoding and draw.randint(0, 8)]
    parts, device = _decodes(draw, decodes, shape.drafts)
    left = {n: requests[n].tokens - requests[n].done for n in kept if not requests[n].decoding}
    left |= {n: requests[n].tokens for n in waiting}
    left |= {engine.arrived + i: prompt for i, prompt in enumerate(arrive)}
    holding, rows = {*kept, *full}, sum(part.queries for part in parts)
    for number, whole in left.items():
        most = min(whole, shape.budget - rows, profile.chunk or whole)
        if most and len(holding | {number}) <= shape.slots and draw.randint(0, 5):
            holding.add(number)
            parts.append(Part(number, draw.choice((most, draw.randint(1, most + 1)))))
            rows += parts[-1].queries
    graph = bool(shape.graphs) and rows <= max(shape.graphs) and draw.randint(0, 3) > 0
    drafting = shape.drafts > 0 and draw.randint(0, 3) == 0
    return Turn(
        arrive=tuple(arrive),
        preempt=tuple(preempt),
        parts=tuple(parts),
        device=tuple(device),
        finish=(*full, *(n for n in decodes if draw.randint(0, profile.finishes) == 0)),
        drafting=draw.randint(1, shape.drafts + 1) if drafting else 0,
        graph=graph,
        padding=0 if graph else draw.choice((0, 0, 1, 5, MOST_PADDING)),
        known=draw.randint(0, 10) > 0,
    )


def _decodes(draw: Draw, numbers: Sequence[int], drafts: int) -> tuple[list[Part], list[int]]:
    """Draw the decodes' parts; and how the device distributed their rows, empty for as told."""
    counts = [1 + draw.randint(0, drafts + 1) for _ in numbers]
    device: list[int] = []
    if numbers and drafts and draw.randint(0, 3) == 0:
        counts = [draw.randint(1, drafts + 2)] * len(numbers)
        device = _split(draw, sum(counts), len(numbers), 1 + drafts)
    true = device or counts
    pairs = zip(numbers, counts, true, strict=True)
    return [Part(n, count, draw.randint(0, has)) for n, count, has in pairs], device


def _split(draw: Draw, total: int, count: int, most: int) -> list[int]:
    """Draw `count` counts from 1 to `most` with a sum of `total`."""
    counts = [1] * count
    for _ in range(total - count):
        fitting = [i for i, n in enumerate(counts) if n < most]
        counts[draw.choice(fitting)] += 1
    return counts
