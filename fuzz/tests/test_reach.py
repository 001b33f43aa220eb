"""Histories reach all pairs of values but a few, and none that is said to be infeasible."""

from collections import Counter

from fuzz.engine import Engine
from fuzz.reach import DIMENSIONS, INFEASIBLE, Pair, pairs, possible, values
from fuzz.serving import drawn

HISTORIES = 1500


def reached() -> Counter[Pair]:
    found: Counter[Pair] = Counter()
    for seed in range(HISTORIES):
        history = drawn(seed)
        engine, frames = Engine(history.shape), []
        for turn in history.turns:
            for frame in engine.take(turn):
                own = not frame.drafting
                fault = turn.fault.kind if turn.fault and own else "none"
                graph = turn.graph and own
                frames.append(values(history.shape, frame, graph=graph, fault=fault))
        found.update(pairs(frames))
    return found


def test_nearly_all_pairs_are_drawn_and_no_infeasible_one() -> None:
    found, wanted = set(reached()), possible()
    assert found <= wanted, sorted(found - wanted)
    assert len(found) >= 0.98 * len(wanted), sorted(wanted - found)


def test_what_is_infeasible_is_of_values_that_there_are() -> None:
    for pair, reason in INFEASIBLE.items():
        assert reason
        for name, value in pair:
            assert value in DIMENSIONS[name], pair
        names = [name for name, _ in pair]
        assert [name for name in DIMENSIONS if name in names] == names, f"{pair}: order"
