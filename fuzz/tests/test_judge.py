"""Rows of many frames judged at once: the first wrong frame is the finding, none gets away."""

from dataclasses import replace

import pytest
import torch

from conformance.tiers import tier
from fuzz import judge
from fuzz.history import History, Part, Shape, Turn
from fuzz.player import Finding, play
from fuzz.tests import blind

SHAPE = Shape(
    dtype="bf16", kpe=64, heads=16, geo="serve", width="small", slots=2, budget=64, longest=200,
    drafts=3, lag=1, graphs=(), force_mqa=True, device="at once",
)  # fmt: skip
FRAMES = 12


def history(dtype: str = "bf16") -> History:
    """Two requests: a prefill each, then decodes; 7 rows to a frame after the first."""
    turns = (
        Turn(arrive=(30, 90), parts=(Part(0, 30), Part(1, 30))),
        *(Turn(parts=(Part(0, 1 + n % 4), Part(1, 6))) for n in range(FRAMES - 2)),
        Turn(parts=(Part(0, 2),)),
    )
    return History(7, replace(SHAPE, dtype=dtype), turns)


def finding(*spoiled: int, breaks: int | None = None, dtype: str = "bf16") -> Finding | None:
    subject = blind.spoiling(*spoiled, breaks=breaks)
    return play(history(dtype), subject, tier("twin", "0.7.4")).finding


@pytest.mark.parametrize("most", [1, 40, 10_000])
@pytest.mark.parametrize("frame", [0, 1, 5, FRAMES - 1])
def test_a_wrong_row_is_found_in_its_frame(
    most: int, frame: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge, "MOST_ROWS", most)
    found = finding(frame)
    assert found and not found.crash and found.frame == f"turn {frame}"
    assert f"turn {frame} (row 0 of request" in found.message
    # One element of one row is wrong; rows are numbered in the frame, not among all that waited.
    parts = history().turns[frame].parts
    assert f"row {sum(part.queries for part in parts) - 1} head 0 dim 0" in found.message
    assert "1 of " in found.message


def test_the_first_of_two_wrong_frames_is_the_finding() -> None:
    found = finding(4, 2)
    assert found and found.frame == "turn 2"


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_a_wrong_frame_comes_before_a_later_breakdown(dtype: str) -> None:
    found = finding(3, breaks=5, dtype=dtype)
    assert found and found.frame == "turn 3" and not found.crash
    found = finding(breaks=5, dtype=dtype)
    assert found and found.frame == "turn 5" and found.crash


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_every_live_row_reaches_golden_once(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever waits together: the queries that golden is given are all of the history's."""
    given: list[torch.Tensor] = []
    real = judge.attend

    def noted(q_nope: torch.Tensor, *args: object, **options: object) -> object:
        given.extend(q_nope)
        return real(q_nope, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(judge, "attend", noted)
    seen = play(history(dtype), blind.spoiling(), tier("twin", "0.7.4"))
    assert seen.finding is None and seen.frames == FRAMES
    assert (
        len(given)
        == seen.rows
        == sum(part.queries for turn in history().turns for part in turn.parts)
    )
    assert len({row.view(torch.int16).numpy().tobytes() for row in given}) == len(given)
