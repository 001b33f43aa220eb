"""What is added up, and what is said of it while it runs and at its end."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.core.record import Outcome, Record
from conformance.core.request import SuiteError
from fuzz.findings import JOINT, seen_of
from fuzz.history import History
from fuzz.lane.asked import Asked
from fuzz.lane.progress import Histories
from fuzz.lane.shards import Shard
from fuzz.player import Finding, Played
from fuzz.reach import DIMENSIONS, pairs
from fuzz.serving import Profile, drawn
from fuzz.tally import Tally

PLAINEST = {name: values[0] for name, values in DIMENSIONS.items()}
OTHER = {name: values[-1] for name, values in DIMENSIONS.items()}


def record(seed: int, outcome: Outcome = Outcome.PASS, **changes: object) -> Record:
    made = Record(
        f"FUZZ//{seed}", "FUZZ", "twin", "s", outcome, None, 0.25, False, "", "again", seconds=2.0
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def seen(history: History, *frames: dict[str, str], finding: Finding | None = None) -> Played:
    return Played(len(frames), 8, 4, 1, 0.25, finding, list(frames))


def test_records_add_up_to_what_the_histories_reached() -> None:
    history, tally = drawn(0), Tally()
    for seed, frames in enumerate([[PLAINEST, OTHER], [PLAINEST, PLAINEST]]):
        tally.add(record(seed, history=seen_of(history, seen(history, *frames))))
    assert (tally.histories, tally.frames, tally.rows, tally.plans) == (2, 4, 16, 2)
    assert tally.reached == pairs([PLAINEST, OTHER, PLAINEST, PLAINEST])
    assert tally.values["dtype", "bf16"] == 3 and tally.values["dtype", "fp8"] == 1
    assert "2 histories, 4 steps (2.0 a second), 2.0 requests" in tally.line(2.0)
    assert "4 steps (1.0 a second and worker)" in tally.line()
    assert any(line.split() == ["dtype", "bf16", "3,", "fp8", "1"] for line in tally.table())
    assert tally.code == 0 and Tally().code == 2


def test_findings_are_told_apart_by_what_they_say() -> None:
    history, tally = drawn(0), Tally()
    for seed, row in ((1, 5), (2, 6)):
        found = Finding(f"turn {seed}", "low-bound", f"FUZZ//{seed}: row {row} is late")
        told = seen_of(history, seen(history, PLAINEST, finding=found))
        tally.add(record(seed, Outcome.FAIL, history=told))
    for seed in (3, 4):
        tally.add(record(seed, Outcome.CRASH, message=f"its process left with {seed}\nat line 5"))
    assert tally.distinct == {
        "low-bound: row # is late": [1, 2], "crash: its process left with #": [3, 4],
    }  # fmt: skip
    assert tally.code == 1 and tally.histories == 4
    assert "2 x low-bound: row # is late: seeds 1, 2" in tally.notes()


def test_what_is_not_played_is_no_history_and_a_mistake_of_ours_no_finding() -> None:
    tally = Tally()
    tally.add(record(0, Outcome.UNOBSERVABLE, message="capability capture"))
    assert tally.code == 2 and tally.notes() == ["not played: 1 histories (capability capture)"]
    tally.add(record(1, Outcome.CRASH, message="HistoryError: turn 3: found 9"))
    assert tally.code == 3 and not tally.distinct and "turn 3: found 9" in tally.notes()[-1]


TOO_MANY = JOINT.join([*PLAINEST.values(), "more"])
UNKNOWN = JOINT.join(["luck", *list(PLAINEST.values())[1:]])


@pytest.mark.parametrize("joined", ["bf16", TOO_MANY, UNKNOWN])
def test_values_that_there_are_not_are_refused(joined: str) -> None:
    with pytest.raises(SuiteError, match="FUZZ//7: found values"):
        Tally().add(record(7, history={"steps": 1, "reached": {joined: 1}}))


@given(st.integers(0, 50), st.integers(1, 7), st.integers(0, 60), st.integers(1, 9))
def test_shards_share_out_each_seed_once(first: int, count: int, all_of: int, size: int) -> None:
    played: list[int] = []
    for index in range(1, count + 1):
        shard = Shard(index, count)
        lists = [*shard.lists(first, shard.share(all_of), size)]
        assert all(0 < len(seeds) <= size for seeds in lists)
        own = [seed for seeds in lists for seed in seeds]
        assert own == [*range(first + index - 1, first + all_of, count)]
        played += own
    assert sorted(played) == [*range(first, first + all_of)]


def test_without_a_number_of_histories_lists_go_on() -> None:
    lists = Shard(2, 3).lists(10, None, 2)
    assert [[*next(lists)] for _ in range(3)] == [[11, 14], [17, 20], [23, 26]]


def test_what_is_asked_is_one_text() -> None:
    asked = Asked(3, 2, 9, Profile(turns=5, faults=False, shape=(("heads", 8), ("graphs", (1, 4)))))
    assert Asked.loads(asked.dumps()) == asked
    assert [*asked.seeds] == [*range(3, 21, 2)]


def test_progress_says_histories_steps_rate_findings_and_the_time_left() -> None:
    now = [100.0]
    shown = Histories(lambda: now[0], until=160.0)
    shown.expect(1000)
    now[0] += 15
    for number, kind in enumerate(["", "a", "a", "b"]):
        said = {"history": {"steps": 3, "kind": kind}}
        shown.hear(f"t{number}", last=False, failed=bool(kind), known=False)
        shown.hear(f"t{number}", last=True, failed=False, known=False, said=said)
    assert shown.text() == "4 histories, 12 steps, 0.8 a second, 2 distinct findings, 45 s left"
    shown.hear("dead", last=True, failed=True, known=False)
    assert "5 histories" in shown.text() and "3 distinct findings" in shown.text()
    assert shown.share == (15.0, 60.0)
