"""Histories that are simpler than one: a turn, a request or a part less, a lower number, a plainer
shape.

What is yielded need not be one that an engine can make; `settled` says so. `size` falls with every
step that is worth taking.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from conformance.core.case import Step
from fuzz.engine import Engine
from fuzz.faults import FAULTS
from fuzz.history import DEVICES, History, HistoryError, Part, Turn
from fuzz.places import places_in

_PLAINEST: dict[str, tuple[Any, ...]] = {
    "dtype": ("bf16", "fp8"),
    "kpe": (0, 64),
    "heads": (16, 1, 64, 65, 128),
    "geo": ("serve", "tiny", "flat", "odd", "pool", "wide", "v32", "glm"),
    "device": DEVICES,
    "force_mqa": (False, True),
}
"""Values of a shape without an order of their own, the plainest first."""

_LEAST = {"slots": 1, "budget": 1, "longest": 64, "drafts": 0, "lag": 0}


def size(history: History) -> tuple[int, ...]:
    """Return how large a history is: turns, requests, parts, and the sum of all numbers in it."""
    turns, shape = history.turns, history.shape
    parts = [part for turn in turns for part in turn.parts]
    arrived = [prompt for turn in turns for prompt in turn.arrive]
    numbers = sum(arrived) + sum(part.queries + part.accepted for part in parts)
    for turn in turns:
        planted = turn.fault
        numbers += len(turn.preempt) + len(turn.finish) + len(turn.device) + turn.drafting
        numbers += turn.graph + turn.padding + (not turn.known)
        numbers += 1 + planted.row + planted.amount if planted else 0
    rank = sum(_rank(name, getattr(shape, name)) for name in _PLAINEST)
    rank += sum(getattr(shape, name) for name in _LEAST) + len(shape.graphs) + sum(shape.graphs)
    return len(turns), len(arrived), len(parts), numbers + rank


def _rank(name: str, value: Any) -> int:
    known = _PLAINEST[name]
    return known.index(value) if value in known else len(known)


def settled(history: History) -> History | None:
    """Return the history with its parts in an engine's order, None where no engine can make it.

    None as well where a fault has no place: what a subject does with it then says nothing of it.
    """
    engine, turns, captured = Engine(history.shape), [], set[int]()
    before: Step | None = None
    try:
        history.check()
        for number, turn in enumerate(history.turns):
            going = [number for number in engine.running if number not in turn.preempt]
            decoding = [number for number in going if engine.requests[number].decoding]
            parts = tuple(sorted(turn.parts, key=lambda part: part.request not in decoding))
            decodes = sum(part.request in decoding for part in parts)
            device = turn.device if len(turn.device) == decodes else ()
            turns.append(replace(turn, parts=parts, device=device))
            frames = engine.take(turns[-1])
            step, last = frames[0].step, number == len(history.turns) - 1
            places = places_in(turns[-1], step, history.shape, captured, before, last=last)
            if turn.fault and turn.fault.kind not in places:
                return None
            refused = turn.fault and FAULTS[turn.fault.kind].error
            before = None if refused else frames[-1].step
            if turn.graph and not turn.fault:
                captured.add(step.padded_rows)
    except HistoryError:
        return None
    return replace(history, turns=tuple(turns))


def fewer_turns(history: History) -> Iterator[History]:
    """Take out runs of turns, long ones first; requests that came in there come with the next."""
    turns = history.turns
    length = max(len(turns) // 2, 1)
    while length and len(turns) > 1:
        for first in reversed(range(0, len(turns), length)):
            gone, rest = turns[first : first + length], turns[first + length :]
            if rest:
                early = tuple(prompt for turn in gone for prompt in turn.arrive)
                rest = (replace(rest[0], arrive=early + rest[0].arrive), *rest[1:])
            if turns[:first] + rest:
                yield replace(history, turns=turns[:first] + rest)
        length //= 2


def fewer_requests(history: History) -> Iterator[History]:
    """Take out a request with all its parts; those behind it move up."""
    for gone in reversed(range(sum(len(turn.arrive) for turn in history.turns))):
        turns, arrived = [], 0
        for turn in history.turns:
            last = arrived + len(turn.arrive)
            kept = tuple(p for n, p in enumerate(turn.arrive, arrived) if n != gone)
            arrived = last
            turns.append(
                replace(
                    turn,
                    arrive=kept,
                    parts=tuple(
                        replace(part, request=_moved(part.request, gone))
                        for part in turn.parts if part.request != gone
                    ),
                    device=_without(turn, gone),
                    preempt=tuple(_moved(n, gone) for n in turn.preempt if n != gone),
                    finish=tuple(_moved(n, gone) for n in turn.finish if n != gone),
                )
            )  # fmt: skip
        yield replace(history, turns=tuple(turns))


def _moved(number: int, gone: int) -> int:
    return number - (number > gone)


def _without(turn: Turn, gone: int) -> tuple[int, ...]:
    """Return the device's counts without a request's, where it has one among them."""
    place = next((n for n, part in enumerate(turn.parts) if part.request == gone), len(turn.parts))
    return turn.device[:place] + turn.device[place + 1 :]


def fewer_parts(history: History) -> Iterator[History]:
    """Take out one part."""
    for number, turn in enumerate(history.turns):
        for place in range(len(turn.parts)):
            parts = turn.parts[:place] + turn.parts[place + 1 :]
            request = turn.parts[place].request
            yield _with(history, number, parts=parts, device=_without(turn, request))


def joined_parts(history: History) -> Iterator[History]:
    """Let a part have the queries of the request's next one as well, which goes."""
    for number, turn in enumerate(history.turns):
        for place, part in enumerate(turn.parts):
            for behind in range(number + 1, len(history.turns)):
                others = history.turns[behind].parts
                at = next((n for n, p in enumerate(others) if p.request == part.request), None)
                if at is not None:
                    whole = replace(part, queries=part.queries + others[at].queries)
                    left = _with(history, behind, parts=others[:at] + others[at + 1 :])
                    joined = _part(left, number, place, whole)
                    rows = sum(part.queries for part in joined.turns[number].parts)
                    budget = max(rows, history.shape.budget)
                    yield replace(joined, shape=replace(history.shape, budget=budget))
                    break


def shorter_prompts(history: History) -> Iterator[History]:
    """Lower a prompt, or leave it; the first part that computes it takes all of it, others go."""
    number = 0
    for arrival, turn in enumerate(history.turns):
        for place, prompt in enumerate(turn.arrive):
            for lower in (*_lower(prompt, 1), prompt):
                arrive = (*turn.arrive[:place], lower, *turn.arrive[place + 1 :])
                known = _with(history, arrival, arrive=arrive)
                yield _in_one(known, number, _chunks(history, number, prompt), lower)
                yield known
            number += 1


def _chunks(history: History, number: int, prompt: int) -> list[int]:
    """Return the turns that compute a request's prompt for the first time."""
    turns, done = [], 0
    for place, turn in enumerate(history.turns):
        count = sum(part.queries for part in turn.parts if part.request == number)
        if count and done < prompt:
            turns.append(place)
            done += count
    return turns


def _in_one(history: History, number: int, turns: Sequence[int], prompt: int) -> History:
    """Let the first of some turns compute all of a request's prompt, the others none of it."""
    for place, turn in enumerate(turns):
        own = () if place else (Part(number, prompt),)
        others = tuple(part for part in history.turns[turn].parts if part.request != number)
        history = _with(history, turn, parts=others + own)
    return history


def lower_numbers(history: History) -> Iterator[History]:
    """Take what a turn has beside its parts out of it, and lower what its parts have."""
    plain = Turn()
    for number, turn in enumerate(history.turns):
        for name in (
            "fault",
            "finish",
            "preempt",
            "device",
            "drafting",
            "graph",
            "padding",
            "known",
        ):
            if getattr(turn, name) != getattr(plain, name):
                yield _with(history, number, **{name: getattr(plain, name)})
        for name in ("drafting", "padding"):
            for lower in _lower(getattr(turn, name), 1):
                yield _with(history, number, **{name: lower})
        if turn.fault:
            yield _with(history, number, fault=replace(turn.fault, row=0, amount=0))
            yield _with(history, number, fault=replace(turn.fault, row=0))
            yield _with(history, number, fault=replace(turn.fault, amount=0))
        for place, part in enumerate(turn.parts):
            for accepted in _lower(part.accepted, 0):
                yield _part(history, number, place, replace(part, accepted=accepted))
            for queries in _lower(part.queries, 1):
                accepted = min(part.accepted, queries - 1)
                yield _part(
                    history, number, place, replace(part, queries=queries, accepted=accepted)
                )


def plainer_shapes(history: History) -> Iterator[History]:
    """Take plainer values and lower limits."""
    shape = history.shape
    for name, values in _PLAINEST.items():
        for value in values[: _rank(name, getattr(shape, name))]:
            yield replace(history, shape=replace(shape, **{name: value}))
    for place in range(len(shape.graphs)):
        graphs = shape.graphs[:place] + shape.graphs[place + 1 :]
        yield replace(history, shape=replace(shape, graphs=graphs))
    for place, rows in enumerate(shape.graphs):
        for lower in _lower(rows, 1):
            graphs = tuple(sorted({*shape.graphs[:place], lower, *shape.graphs[place + 1 :]}))
            yield replace(history, shape=replace(shape, graphs=graphs))
    for name, least in _LEAST.items():
        for lower in _lower(getattr(shape, name), least):
            limit: dict[str, Any] = {name: lower}
            yield replace(history, shape=replace(shape, **limit))


def _lower(value: int, least: int) -> list[int]:
    """Return lower values to try: the least, the middle, one less."""
    tried = (least, (least + value) // 2, value - 1)
    return list(dict.fromkeys(n for n in tried if least <= n < value))


def _with(history: History, number: int, **changes: Any) -> History:
    turns: Sequence[Turn] = history.turns
    changed = replace(turns[number], **changes)
    return replace(history, turns=(*turns[:number], changed, *turns[number + 1 :]))


def _part(history: History, number: int, place: int, part: Part) -> History:
    parts = history.turns[number].parts
    return _with(history, number, parts=(*parts[:place], part, *parts[place + 1 :]))


Move = Callable[[History], Iterator[History]]

MOVES: tuple[Move, ...] = (
    fewer_turns, fewer_requests, fewer_parts, joined_parts, shorter_prompts, lower_numbers,
    plainer_shapes,
)  # fmt: skip
"""In the order in which they take the most away."""
