"""A model of a serving engine: from its decisions to what the host knew and what the device had.

It schedules asynchronously: what became of a turn's drafts the host learns `lag` turns later, and
until then its bounds hold for the best that can have come of them. Blocks go back to the pool the
moment the host gives a request up, and to others at once. Nothing here knows a backend.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from conformance.core.case import GEOMETRIES, Step
from fuzz.history import HistoryError, Part, Shape, Turn


@dataclass(frozen=True)
class Frame:
    """A step of the device. requests: of each row of the batch, by number.

    table: blocks of each of them, numbers of the pool; what stands behind a request's own is
    others'. turn: its place in the history. decodes: how many of its requests decode, the first
    ones. drafting: which draft step it is, 0 the turn's own.
    """

    step: Step
    requests: tuple[int, ...]
    table: tuple[tuple[int, ...], ...]
    turn: int
    decodes: int
    drafting: int = 0


@dataclass
class _Request:
    """tokens: that it has, of which `done` are in the cache. hoped: at least `done`, as the host
    believes. open: what the host will learn, as (turn, tokens that it hoped for in vain)."""

    tokens: int
    done: int = 0
    hoped: int = 0
    open: deque[tuple[int, int]] = field(default_factory=deque)
    blocks: list[int] = field(default_factory=list)

    @property
    def decoding(self) -> bool:
        """Whether all but its newest token are in the cache."""
        return self.done > 0 and self.tokens - self.done == 1


class Engine:
    """The requests of one history. turns: how many it has taken; arrived: requests so far."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.turns = 0
        self.requests: dict[int, _Request] = {}
        self.arrived = 0
        self._block = GEOMETRIES[shape.geo].block_size
        self._row = -(-shape.longest // self._block)
        self._free = list(range(shape.slots * self._row))

    @property
    def running(self) -> list[int]:
        """Numbers of the requests that hold blocks."""
        return [number for number, request in self.requests.items() if request.blocks]

    def take(self, turn: Turn) -> list[Frame]:
        """Return the frames of a turn; raise HistoryError where no engine can make it."""
        self._learn()
        for prompt in turn.arrive:
            self._expect(1 <= prompt <= self.shape.longest, "arrive", prompt, "1 to longest")
            self.requests[self.arrived] = _Request(prompt)
            self.arrived += 1
        for number in turn.preempt:
            self._give_up(self._known(number, "preempt"))
        frames = [self._own(turn)]
        ended = set(turn.finish)
        for number in turn.finish:
            self._give_up(self._known(number, "finish"))
            del self.requests[number]
        going = [p.request for p in turn.parts if p.request not in ended]
        going = [number for number in going if self.requests[number].decoding]
        frames += [self._draft(going, ahead) for ahead in range(1, turn.drafting + 1) if going]
        self.turns += 1
        return frames

    def _learn(self) -> None:
        for request in self.requests.values():
            while request.open and request.open[0][0] + self.shape.lag < self.turns:
                request.hoped -= request.open.popleft()[1]

    def _give_up(self, request: _Request) -> None:
        self._free += reversed(request.blocks)
        request.blocks, request.done, request.hoped = [], 0, 0
        request.open.clear()

    def _own(self, turn: Turn) -> Frame:
        shape = self.shape
        parts = [(part, self._known(part.request, "parts")) for part in turn.parts]
        decoding = [request.decoding for _, request in parts]
        named = len({part.request for part in turn.parts})
        self._expect(named == len(parts) <= shape.slots, "parts", named, "each request once")
        self._expect(decoding == sorted(decoding, reverse=True), "parts", decoding, "decodes first")
        decodes = sum(decoding)
        counts = [part.queries for part in turn.parts]
        device = [*turn.device, *counts[decodes:]] if turn.device else counts
        if turn.device:
            fits = len(turn.device) == decodes and sum(device) == sum(counts)
            self._expect(fits, "device", turn.device, f"{decodes} counts with the host's sum")
        lengths, bounds = [], []
        for (part, request), count, is_decode in zip(parts, device, decoding, strict=True):
            most = 1 + shape.drafts if is_decode else request.tokens - request.done
            self._expect(1 <= count <= most, "parts", count, f"1 to {most} queries")
            self._expect(part.queries >= 1, "parts", part.queries, "1 query or more")
            self._expect(0 <= part.accepted < count or not is_decode, "accepted", part.accepted,
                         "fewer than the device's queries")  # fmt: skip
            hope = most if turn.device and is_decode else count
            lengths.append(request.done + count)
            bounds.append(request.hoped + hope)
            self._move(part, request, count, hope, is_decode, turn.drafting)
        rows = sum(counts)
        self._expect(rows <= shape.budget, "parts", f"{rows} rows", f"at most {shape.budget}")
        padded = rows + turn.padding
        if turn.graph:
            fitting = [size for size in shape.graphs if size >= padded]
            self._expect(bool(fitting), "graph", f"{padded} rows", f"up to {shape.graphs}")
            padded = min(fitting)
        step = Step(
            tuple(counts) or (0,), tuple(lengths) or (0,), tuple(bounds) or (0,), padded,
            tuple(device) if turn.device else None,
        )  # fmt: skip
        step = step if turn.known else replace(step, bounds=None)
        numbers = tuple(part.request for part in turn.parts)
        return Frame(step, numbers, self._table(numbers), self.turns, decodes)

    def _move(
        self, part: Part, request: _Request, count: int, hope: int, is_decode: bool, drafting: int
    ) -> None:
        """Let a request have its share of a turn."""
        gained = part.accepted + 1 if is_decode else count
        needed = request.done + count + drafting + 1
        self._expect(needed <= self.shape.longest, "parts", f"{needed} tokens", "at most longest")
        while len(request.blocks) * self._block < needed:
            self._expect(len(self._free) > 0, "parts", "no free block", "fewer running requests")
            request.blocks.append(self._free.pop())
        request.done += gained
        if is_decode or request.done == request.tokens:
            request.tokens = request.done + 1  # one is sampled, of a prompt once it is whole
        request.hoped += hope
        if hope > gained:
            request.open.append((self.turns, hope - gained))

    def _draft(self, numbers: Sequence[int], ahead: int) -> Frame:
        requests = [self.requests[number] for number in numbers]
        step = Step(
            (1,) * len(requests),
            tuple(request.done + ahead for request in requests),
            tuple(request.hoped + ahead for request in requests),
            len(requests),
        )
        table, count = self._table(numbers), len(numbers)
        return Frame(step, tuple(numbers), table, self.turns, count, ahead)

    def _table(self, numbers: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        pool = self.shape.slots * self._row
        rows = []
        for place, number in enumerate(numbers):
            own = self.requests[number].blocks
            others = [(7 * place + 3 * n) % pool for n in range(self._row - len(own))]
            rows.append((*own, *others))
        return tuple(rows) or ((0,) * self._row,)

    def _known(self, number: int, where: str) -> _Request:
        self._expect(number in self.requests, where, f"request {number}", str([*self.requests]))
        return self.requests[number]

    def _expect(self, holds: bool, where: str, found: object, allowed: str) -> None:
        if not holds:
            raise HistoryError(
                f"turn {self.turns}, {where}",
                found=found,
                allowed=allowed,
                remedy="correct the turn, or one before it",
            )
