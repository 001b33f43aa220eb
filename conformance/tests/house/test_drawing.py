"""Drawings of schedules: what they hold, what they leave out, and that they hide no failure."""

import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.core import lab as lab_module
from conformance.core.case import parse
from conformance.core.drawing import MOST_ITEMS, draw
from conformance.core.lab import CheckFailed, Lab
from conformance.core.record import Outcome, read_records
from conformance.core.request import Request
from conformance.core.run import run
from conformance.core.schedule import Work
from conformance.core.subject import Unobservable
from conformance.core.worker import load_subject
from conformance.tests.requirements import test_plan, test_read
from conformance.tiers import tier

UPSTREAM = "conformance.subjects.upstream"
TOUCHES = test_read.test_nothing_behind_the_valid_prefix_is_touched
TILING = test_plan.test_after_the_clamp_work_items_tile_the_valid_range
NO_CANARY: Any = None


def failed(subject: str, judge: Any, case: str, **more: Any) -> tuple[Lab, Any]:
    """Run a judge that must fail; return its lab, and what was drawn while the bench was alive."""
    lab = Lab(parse(case), load_subject(f"{UPSTREAM}:{subject}"), tier("twin"), "torch")
    try:
        judge(lab, **more)
    except CheckFailed:
        return lab, lab.drawing()
    raise AssertionError(f"{case} passes")


def case_of(judge: Any, *parts: str) -> str:
    cases: list[str] = judge.judge.cases("twin")
    return next(id for id in cases if all(part in id for part in parts))


def test_a_clamp_of_kv_end_alone_shows_as_touches_behind_the_valid_entries() -> None:
    case = case_of(TOUCHES, "geo=pool", "lens=mixed", "loss=far")
    lab, drawing = failed("ClampsKvEnd", TOUCHES, case, canary=NO_CANARY)
    assert drawing is not None and drawing["touches"] and not drawing["truncated"]
    log, items = lab.tier.log, drawing["items"]
    for item in items:
        assert 0 <= item["cluster"] < drawing["clusters"]
        assert item["kv_start"] <= item["end"] <= item["planned_end"]
        assert item["end"] <= max(item["valid"], item["kv_start"]), "clamped"
    for row in {item["row"] for item in items}:
        mine = [item for item in items if item["row"] == row]
        last = max((item["touched"][1] for item in mine if item["touched"]), default=-1)
        assert last == max(log.touched_positions(row), default=-1), f"row {row}: the log says so"
        assert max(item["load_end"] for item in mine) == max(i["planned_end"] for i in mine)
    behind = [i for i in items if i["touched"] and i["touched"][1] >= i["valid"]]
    assert behind, "what the requirement complains of can be seen"


def test_a_schedule_without_a_clamp_shows_as_ends_behind_the_valid_entries() -> None:
    _, drawing = failed("StalePlan", TILING, case_of(TILING, "loss=draft"))
    assert drawing is not None
    assert any(item["end"] > item["valid"] for item in drawing["items"])


class Schedule:
    """Pieces by cluster, as the reader of a workspace gives them."""

    def __init__(self, clusters: list[list[Work]]) -> None:
        self.clusters = len(clusters)
        ends = torch.tensor([0, *(len(works) for works in clusters)]).cumsum(0)
        self.work_indptr = ends.to(torch.int32)
        self._works = [work for works in clusters for work in works]

    def works(self) -> list[Work]:
        return self._works


def piece(row: int, start: int, end: int, kv_len: int) -> Work:
    return Work(row, 0, 0, kv_len, start, end, 0)


class Log:
    def __init__(self, spans: dict[int, list[tuple[int, int]]]) -> None:
        self._spans = spans

    def spans(self, rows: Any = None) -> Mapping[int, list[tuple[int, int]]]:
        return {row: s for row, s in self._spans.items() if rows is None or row in rows}


def drawn(clusters: list[list[Work]], offsets: list[int], valid: list[int], **more: Any) -> Any:
    return draw(Schedule(clusters), offsets, valid, **more)  # type: ignore[arg-type]


def test_pieces_end_where_the_next_one_was_planned() -> None:
    split = [[piece(0, 0, 64, 150)], [piece(0, 128, 130, 150), piece(0, 64, 128, 150)]]
    log = Log({0: [(0, 64), (128, 150), (64, 128)]})
    drawing = drawn(split, [0, 170], [130], log=log)
    found = {
        i["kv_start"]: (i["cluster"], i["planned_end"], i["touched"]) for i in drawing["items"]
    }
    assert found == {
        0: (0, 64, [0, 63]),
        64: (1, 128, [64, 127]),
        128: (1, 170, [128, 149]),
    }, "the last piece's plan ends with the row's"
    assert [item["load_end"] for item in drawing["items"]] == [150] * 3


def test_without_a_log_nothing_is_said_of_touches() -> None:
    drawing = drawn([[piece(0, 0, 5, 9)]], [0, 9], [5])
    assert drawing["touches"] is False and drawing["items"][0]["touched"] is None


def test_rows_that_are_not_live_have_no_valid_entries() -> None:
    (item,) = drawn([[piece(7, 0, 5, 9)]], [0, 9], [5])["items"]
    assert (item["valid"], item["planned_end"]) == (0, 9)


def test_what_is_left_out_is_not_what_is_wrong() -> None:
    rows = 3 * MOST_ITEMS
    works = [piece(row, 0, 4, 4) for row in range(rows)]
    works[rows - 2] = piece(rows - 2, 0, 9, 9)  # beyond its valid entries
    drawing = drawn([works], [], [4] * rows, failing=[rows - 1])
    kept = {item["row"] for item in drawing["items"]}
    assert drawing["truncated"] and len(kept) == MOST_ITEMS
    assert {rows - 1, rows - 2} <= kept


def test_garbage_in_a_workspace_costs_neither_memory_nor_an_error() -> None:
    schedule: Any = Schedule([[piece(0, 0, 5, 9)]])
    schedule.work_indptr = torch.tensor([-(2**31), 2**31 - 1], dtype=torch.int32)
    assert len(draw(schedule, [0, 9], [5])["items"]) == 1


@pytest.mark.parametrize("problem", [Unobservable("plan_info"), RuntimeError("dead"), KeyError(3)])
def test_a_drawing_that_fails_hides_nothing(
    problem: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Exception] = []

    def broken(*_: Any, **__: Any) -> None:
        asked.append(problem)
        raise problem

    monkeypatch.setattr(lab_module, "draw", broken)
    _, drawing = failed("StalePlan", TILING, case_of(TILING, "loss=draft"))
    assert drawing is None and asked, "asked for, and no more than left out"


def test_a_judge_whose_bench_is_gone_gets_no_drawing() -> None:
    lab = Lab(parse(case_of(TILING)), load_subject(f"{UPSTREAM}:Sound"), tier("twin"), "torch")
    assert lab.drawing() is None
    TILING(lab)
    gc.collect()
    assert lab.drawing() is None, "a lab keeps no bench alive"


def test_the_record_of_a_failed_check_carries_it_and_no_other_does(tmp_path: Path) -> None:
    cases = [case_of(TOUCHES, "lens=mixed", "loss=far"), case_of(TILING)]
    run(
        Request(
            subject=f"{UPSTREAM}:ClampsKvEnd",
            tier="twin",
            cases=cases,
            workers="0",
            report=tmp_path / "report",
        )
    )
    records = {record.case: record for record in read_records(tmp_path / "report")}
    wrong, right = (records[case] for case in cases)
    assert (wrong.outcome, right.outcome) == (Outcome.FAIL, Outcome.PASS)
    assert right.schedule is None
    assert wrong.schedule is not None and wrong.schedule["items"]
