"""The engine model: what follows from decisions, and which decisions cannot be."""

from dataclasses import replace
from typing import Any

import pytest

from conformance.core.case import GEOMETRIES
from fuzz.engine import Engine, Frame
from fuzz.history import HistoryError, Part, Shape, Turn
from fuzz.serving import drawn

SHAPE = Shape(
    dtype="bf16", kpe=0, heads=16, geo="serve", width="small", slots=3, budget=64, longest=200,
    drafts=3, lag=1, graphs=(4, 12), force_mqa=False, device="at once",
)  # fmt: skip


def taken(*turns: Turn, **changes: Any) -> list[list[Frame]]:
    engine = Engine(replace(SHAPE, **changes))
    return [engine.take(turn) for turn in turns]


def lengths(frames: list[list[Frame]]) -> list[tuple[tuple[int, ...], tuple[int, ...] | None]]:
    return [(frame.step.seq_lens, frame.step.bounds) for own in frames for frame in own]


def test_the_host_learns_of_rejected_drafts_a_lag_later() -> None:
    turns = [Turn((10,), parts=(Part(0, 10),))]
    turns += [Turn(parts=(Part(0, 4, accepted),)) for accepted in (0, 3, 1, 1)]
    # Ten of the prompt; then 1, 4, 2 and 2 tokens stay of four.
    true = [10, 14, 15, 19, 21]
    assert lengths(taken(*turns, lag=0)) == [((n,), (n,)) for n in true]
    late = [10, 14, 18, 19, 23]  # one turn late, the newest rejections are not known
    assert lengths(taken(*turns, lag=1)) == [((n,), (b,)) for n, b in zip(true, late, strict=True)]
    later = [10, 14, 18, 22, 23]
    assert lengths(taken(*turns, lag=2)) == [((n,), (b,)) for n, b in zip(true, later, strict=True)]


def test_a_prompt_is_computed_in_chunks_and_then_decodes() -> None:
    parts = [Part(0, 4), Part(0, 5), Part(0, 1)]
    frames = taken(Turn((9,), parts=(parts[0],)), *(Turn(parts=(p,)) for p in parts[1:]))
    assert lengths(frames) == [((4,), (4,)), ((9,), (9,)), ((10,), (10,))]
    with pytest.raises(HistoryError, match="1 to 5 queries"):
        taken(Turn((9,), parts=(Part(0, 4),)), Turn(parts=(Part(0, 6),)))


def test_a_preempted_request_is_computed_again_in_other_blocks() -> None:
    turns = [
        Turn((70, 70), parts=(Part(0, 30), Part(1, 30))),
        Turn(parts=(Part(0, 30), Part(1, 30))),
        Turn(parts=(Part(0, 10), Part(1, 10))),
        Turn(parts=(Part(0, 4, 3), Part(1, 1))),
        Turn(preempt=(0,), parts=(Part(1, 1),)),
        Turn((1,), parts=(Part(1, 1), Part(2, 1), Part(0, 40))),
        Turn(parts=(Part(0, 35),)),
    ]
    frames = taken(*turns)
    first, again = frames[0][0], frames[5][0]
    assert again.step.seq_lens[2] == 40, "from its first token on"
    assert again.table[1][0] == first.table[0][0], "what is given up goes out at once, to another"
    assert first.table[0][0] != again.table[2][0]
    assert frames[6][0].step.seq_lens == (75,), "its four accepted tokens are computed again too"


def test_draft_steps_follow_their_turn() -> None:
    turns = [Turn((10,), parts=(Part(0, 10),)), Turn(parts=(Part(0, 4, 1),), drafting=2)]
    own, one, two = taken(*turns)[1]
    assert (own.step.seq_lens, own.step.bounds) == ((14,), (14,))
    assert (one.step.seq_lens, one.step.bounds, one.drafting) == ((13,), (15,), 1)
    assert (two.step.seq_lens, two.step.bounds, two.drafting) == ((14,), (16,), 2)


def test_a_moved_split_keeps_the_sum_and_its_bounds_keep_all_drafts() -> None:
    prompts = Turn((5, 5), parts=(Part(0, 5), Part(1, 5)))
    moved = Turn(parts=(Part(0, 2, 3), Part(1, 2, 0)), device=(4, 0))
    with pytest.raises(HistoryError, match="queries"):
        taken(prompts, moved)
    moved = Turn(parts=(Part(0, 2, 2), Part(1, 2, 0)), device=(3, 1))
    step = taken(prompts, moved)[1][0].step
    assert (step.q_lens, step.device_q_lens) == ((2, 2), (3, 1))
    assert (step.seq_lens, step.bounds) == ((8, 6), (9, 9))
    with pytest.raises(HistoryError, match="1 query or more"):
        taken(prompts, Turn(parts=(Part(0, -1), Part(1, 3)), device=(1, 1)))
    with pytest.raises(HistoryError, match="with the host's sum"):
        taken(prompts, replace(moved, device=(3, 2)))


def test_a_graph_is_the_smallest_that_fits() -> None:
    assert taken(Turn((4,), parts=(Part(0, 4),), graph=True))[0][0].step.padded_rows == 4
    assert taken(Turn((5,), parts=(Part(0, 5),), graph=True))[0][0].step.padded_rows == 12
    with pytest.raises(HistoryError, match="13 rows"):
        taken(Turn((13,), parts=(Part(0, 13),), graph=True))


@pytest.mark.parametrize(
    ("turn", "says"),
    [
        (Turn((0,)), "arrive: found 0"),
        (Turn(preempt=(1,)), "preempt: found request 1"),
        (Turn(finish=(1,)), "finish: found request 1"),
        (Turn(parts=(Part(0, 1), Part(0, 1))), "each request once"),
        (Turn((9,), parts=(Part(1, 9), Part(0, 1))), "decodes first"),
        (Turn(parts=(Part(0, 5),)), "1 to 4 queries"),
        (Turn(parts=(Part(0, 2, 2),)), "fewer than the device's queries"),
        (Turn((64,), parts=(Part(0, 1), Part(1, 64))), "at most 64"),
    ],
)
def test_what_no_engine_can_decide_is_refused(turn: Turn, says: str) -> None:
    with pytest.raises(HistoryError, match=says):
        taken(Turn((3,), parts=(Part(0, 3),)), turn)


@pytest.mark.parametrize("seed", range(60))
def test_drawn_histories_hold_what_every_engine_holds(seed: int) -> None:
    history = drawn(seed)
    shape, engine = history.shape, Engine(history.shape)
    size = GEOMETRIES[shape.geo].block_size
    for turn in history.turns:
        for frame in engine.take(turn):
            step = frame.step
            assert step.rows <= shape.budget and step.padded_rows >= step.rows
            if step.bounds is not None:
                pairs = zip(step.bounds, step.seq_lens, strict=True)
                assert all(bound >= length for bound, length in pairs)
            used = [
                block
                for row, length in zip(frame.table, step.seq_lens, strict=True)
                for block in row[: -(-length // size)]
            ]
            assert len(used) == len(set(used)), "two requests in one block"
        held = [block for n in engine.running for block in engine.requests[n].blocks]
        assert len(held) == len(set(held))
