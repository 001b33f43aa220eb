"""Alternation: two packages asked in turn, the order turned around each round, and its figures.

What drifts on a machine (clocks, heat, neighbours) falls on both sides alike, and what it does to a
ratio is told as the spread.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from conformance.gate.model import Figure

SIDES = ("baseline", "candidate")
ROUNDS = 7

T = TypeVar("T")


def alternate(ask: Callable[[str], T], rounds: int = ROUNDS) -> list[dict[str, T]]:
    """Ask both sides `rounds` times; return each round's answers by side.

    Even rounds ask the baseline first, odd ones the candidate. One more round goes before and does
    not count: it warms up. What `ask` raises ends all of it.
    """
    if rounds < 1:
        raise ValueError(f"rounds: found {rounds}; allowed: 1 or more")
    answers = []
    for number in range(-1, rounds):
        order = SIDES if number % 2 == 0 else SIDES[::-1]
        round_ = {side: ask(side) for side in order}
        if number >= 0:
            answers.append(round_)
    return answers


def figure(name: str, kind: str, where: str, rounds: Sequence[Mapping[str, float]]) -> Figure:
    """Return the figure of rounds' medians, microseconds by side; see `Figure` for the words."""
    ratios = [round_["candidate"] / round_["baseline"] for round_ in rounds]
    before, after = (statistics.median(round_[side] for round_ in rounds) for side in SIDES)
    return Figure(
        name=name,
        kind=kind,
        where=where,
        baseline_us=before,
        candidate_us=after,
        ratio=statistics.median(ratios),
        spread=max(ratios) - min(ratios),
        rounds=len(ratios),
        low=statistics.quantiles(ratios, n=4, method="inclusive")[0] if ratios[1:] else ratios[0],
    )
