"""Holds rows of many frames against golden at once: those of like length together.

A frame has a dozen rows of all lengths. Those of several frames, sorted by length, need less
padding, and fewer and fuller calls. Where rows differ their frames are judged again, one by one and
in the order they were played, so that the first wrong one is told of.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from conformance.core.bench import Bench
from conformance.core.inputs import StepInputs
from conformance.core.lab import Lab
from golden import attend

MOST_ROWS = 128
"""Rows that wait, at most, unless a frame alone has more."""
_AT_ONCE = 24
"""Rows of a call: enough for the calls not to count, few enough for a CPU's caches."""


@dataclass(frozen=True)
class Played:
    """Rows of a frame to be judged. where: the frame; fault: what is planted there, or "".

    what: how a failure names them. rows: of the frame, with `owners`, their rows in `table`, int32
    [requests, blocks]. out: their outputs [rows, heads, ckv], on the host. origin: what the player
    knows the frame by.
    """

    where: str
    fault: str
    what: str
    inputs: StepInputs
    table: Tensor
    rows: Sequence[int]
    owners: Sequence[int]
    out: Tensor
    origin: Any = None


class Judge:
    """The frames of one history that wait to be judged. wrong: the first one that failed."""

    def __init__(self, lab: Lab, bench: Bench) -> None:
        self._lab, self._bench = lab, bench
        self._cache = bench.world.paged().decoded()
        self._waiting: list[Played] = []
        self.wrong: Played | None = None

    def add(self, played: Played) -> None:
        """Take a frame's rows; judge what waits once it is enough."""
        self._waiting.append(played)
        if sum(len(played.rows) for played in self._waiting) >= MOST_ROWS:
            self.settle()

    def settle(self) -> None:
        """Judge all that waits; raise CheckFailed for the first frame with a wrong row."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        try:
            self._hold(waiting, "output")
        except Exception:
            for played in waiting:
                self.wrong = played
                self._hold([played], played.what)
            self.wrong = None
            raise

    def _hold(self, frames: Sequence[Played], what: str) -> None:
        """Hold the rows of frames against golden, `_AT_ONCE` of like length at a time."""
        tables = torch.cat([played.table for played in frames])
        lines, first = [], 0
        for place, played in enumerate(frames):
            lines += [
                (len(played.inputs.tokens[row]), place, number, first + owner)
                for number, (row, owner) in enumerate(zip(played.rows, played.owners, strict=True))
            ]
            first += len(played.table)
        if len(frames) > 1:
            lines.sort()
        size = _AT_ONCE if len(frames) > 1 else max(len(lines), 1)
        for start in range(0, len(lines), size):
            some = lines[start : start + size]
            picked = [(frames[place], number) for _, place, number, _ in some]
            q_nope, q_pe, tokens = [], [], []
            for played, number in picked:
                row = played.rows[number]
                q_nope.append(played.inputs.q_nope[row])
                q_pe.append(played.inputs.q_pe[row])
                tokens.append(played.inputs.tokens[row])
            exact = attend(
                torch.stack(q_nope),
                torch.stack(q_pe),
                self._cache,
                tables,
                torch.tensor([owner for *_, owner in some], dtype=torch.int32),
                tokens,
                self._bench.config.sm_scale,
                split=None,
            )
            observed = torch.stack([played.out[number] for played, number in picked])
            self._lab.golden(self._bench, observed, exact, what)
