"""The process that plans with a library of unknown origin, and what it hands back.

Run as a module, its arguments are library, inputs (JSON) and results. What was planned is on disk
before the next input starts, so a planner that ends its process loses one input, and which one can
be told.
"""

from __future__ import annotations

import json
import resource
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from conformance.twin.binding import Binding

STAGING_BYTES = 8 << 20
"""Of the int workspace, as FlashInfer's wrapper has it: room for more than today's layout."""

BACKGROUND = 0xA5
_WORD = np.array([BACKGROUND] * 4, np.uint8).view(np.int32)[0]


@dataclass(frozen=True)
class Plan:
    """What became of one input.

    info, staged: as planned. places, words: the int32 words of the staging that no longer hold the
    background, by index; a word written with the background's own value reads the same.
    refused: the planner's text where it threw. died: how its process ended over this input.
    """

    info: tuple[int, ...] = ()
    staged: int = 0
    places: NDArray[np.int32] | None = None
    words: NDArray[np.int32] | None = None
    refused: str = ""
    died: str = ""

    def same(self, other: Plan) -> bool:
        """Whether every byte is the same; of a refusal only that it is one."""
        if self.died or other.died or self.refused or other.refused:
            return self.died == other.died and bool(self.refused) == bool(other.refused)
        return (self.info, self.staged) == (other.info, other.staged) and all(
            np.array_equal(a, b)  # type: ignore[arg-type]
            for a, b in ((self.places, other.places), (self.words, other.words))
        )

    def memory(self) -> NDArray[np.int32]:
        """The whole staging as int32 words, the background where nothing was written."""
        words = fresh()
        if self.places is not None and self.words is not None:
            words[self.places] = self.words
        return words


def fresh() -> NDArray[np.int32]:
    """Staging that holds the background alone."""
    return np.full(STAGING_BYTES // 4, _WORD, np.int32)


def written(info: tuple[int, ...], staged: int, memory: NDArray[np.int32]) -> Plan:
    """The plan that stands in `memory`."""
    places = np.flatnonzero(memory != _WORD).astype(np.int32)
    return Plan(info, staged, places, memory[places])


def erase(plan: Plan, memory: NDArray[np.int32]) -> None:
    """Put the background back where a plan stands."""
    if plan.places is not None:
        memory[plan.places] = _WORD


def read_plans(path: Path) -> tuple[dict[int, Plan], int | None]:
    """What a child has written: plans by index of their input, and the one it was at, if any."""
    plans: dict[int, Plan] = {}
    at: int | None = None
    with path.open("rb") as file:
        while True:
            try:
                started = int(_array(file)[0])
                at = started
                head, text, info, places, words = (_array(file) for _ in range(5))
            except (ValueError, EOFError):
                return plans, at
            plans[started] = Plan(
                tuple(info.tolist()), int(head[0]), places, words, text.tobytes().decode()
            )
            at = None


def _array(file: IO[bytes]) -> NDArray[np.int32]:
    array: NDArray[np.int32] = np.load(file, allow_pickle=False)
    return array


def main(library: Path, inputs: Path, results: Path) -> None:
    """Plan every input that the file names, in order."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a planner that dies leaves no core
    binding = Binding(library)
    memory = fresh()
    with results.open("wb") as file:
        for index, tensors, sizes, float_bytes in json.loads(inputs.read_text()):
            np.save(file, np.array([index]))
            file.flush()
            starts, kv_starts, lengths = tensors
            heads, dim, sms = sizes
            done = binding.plan(
                starts, kv_starts, lengths, heads, dim, sms, memory.view(np.uint8), float_bytes
            )
            plan = written(done.info, done.staged, memory)
            assert plan.places is not None
            text = np.frombuffer(done.refused.encode(), np.uint8)
            for array in (np.array([done.staged]), text, np.array(done.info, np.int64)):
                np.save(file, array)
            np.save(file, plan.places)
            np.save(file, plan.words)  # type: ignore[arg-type]
            file.flush()
            erase(plan, memory)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
