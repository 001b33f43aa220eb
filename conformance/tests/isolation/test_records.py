"""Record files of processes that died: closed by the driver when known dead, else an error."""

import json
from pathlib import Path

import pytest

from conformance.core.aftermath import settle
from conformance.core.process import Ended, Process
from conformance.core.record import (
    Outcome,
    Record,
    RecordError,
    RecordWriter,
    close_dead,
    load,
    read_records,
)
from conformance.core.request import Request

NAME = "records-twin-1-gw0.jsonl"


def _record(number: int, outcome: Outcome = Outcome.PASS) -> Record:
    return Record(f"X/a=b/{number}", "X", "twin", "s", outcome, None, None, False, "", "again")


def _writer(folder: Path, *done: int) -> RecordWriter:
    writer = RecordWriter(folder / NAME, {})
    for number in done:
        writer.start(_record(number, Outcome.CRASH))
        assert writer.add(_record(number))
    return writer


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    _writer(tmp_path, 0, 1).close()
    assert read_records(tmp_path) == [_record(0), _record(1)]
    assert read_records(tmp_path, "hopper-*") == []


def test_a_file_without_footer_is_an_error(tmp_path: Path) -> None:
    _writer(tmp_path, 0)
    with pytest.raises(RecordError, match="no footer"):
        read_records(tmp_path)


def test_a_case_without_record_is_an_error(tmp_path: Path) -> None:
    writer = _writer(tmp_path, 0)
    writer.start(_record(1))
    writer.close()
    with pytest.raises(RecordError, match="X/a=b/1 started and has no record"):
        read_records(tmp_path)


def test_the_case_under_way_is_blamed(tmp_path: Path) -> None:
    _writer(tmp_path, 0).start(_record(1))
    close_dead(tmp_path / NAME, Outcome.HANG, "gone")
    assert read_records(tmp_path) == [_record(0), _record(1).but(Outcome.HANG, "gone")]
    assert load(tmp_path / NAME).left == "died: gone"


def test_between_cases_the_one_before_is_blamed(tmp_path: Path) -> None:
    _writer(tmp_path, 0, 1)
    blamed = close_dead(tmp_path / NAME, Outcome.CRASH, "gone")
    assert blamed is not None and blamed.case == "X/a=b/1"
    assert [r.outcome for r in read_records(tmp_path)] == [Outcome.PASS, Outcome.CRASH]


def test_half_a_line_is_no_line(tmp_path: Path) -> None:
    _writer(tmp_path, 0).start(_record(1))
    with (tmp_path / NAME).open("a") as file:
        file.write('{"kind": "record", "case": "X/a=b/1", "requ')
    close_dead(tmp_path / NAME, Outcome.CRASH, "gone")
    assert [r.outcome for r in read_records(tmp_path)] == [Outcome.PASS, Outcome.CRASH]


def test_whoever_comes_first_decides(tmp_path: Path) -> None:
    writer = _writer(tmp_path)
    writer.start(_record(0))
    assert writer.leave(_record(0, Outcome.HANG), "a test hung")
    assert not writer.add(_record(0))
    writer.start(_record(1))
    writer.close()
    assert read_records(tmp_path) == [_record(0, Outcome.HANG)]


@pytest.mark.parametrize(
    ("lost", "closed", "faults"),
    [
        (None, True, 1),
        (frozenset({"gw0"}), True, 1),
        (frozenset({"gw1"}), False, 1),  # lost before it wrote anything
        (frozenset(), False, 0),
    ],
)
def test_only_known_dead_are_closed(
    tmp_path: Path, lost: frozenset[str] | None, closed: bool, faults: int
) -> None:
    _writer(tmp_path, 0).start(_record(1))
    process = Process(Request("s", report=tmp_path), "twin", 1)
    assert settle(process, Ended(1, False, lost)) == faults
    assert load(tmp_path / NAME).whole is closed


@pytest.mark.parametrize(("trace", "blamed"), [("", False), ("Fatal Python error: ...", True)])
def test_who_goes_with_the_controller_is_not_to_blame(
    tmp_path: Path, trace: str, blamed: bool
) -> None:
    _writer(tmp_path, 0).start(_record(1))
    process = Process(Request("s", report=tmp_path), "twin", 1)
    process.notes.mkdir(parents=True)
    (process.notes / "faults-gw0.txt").write_text(trace)
    assert settle(process, Ended(-9, False, None)) == 1
    assert len(read_records(tmp_path)) == 1 + blamed


def test_a_file_of_the_schema_before_is_read(tmp_path: Path) -> None:
    _writer(tmp_path, 0).close()
    path = tmp_path / NAME
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["schema"] = "smla-records/3"
    for line in lines[1:-1]:
        del line["history"]  # what /4 added
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_records(tmp_path) == [_record(0)]


def test_whoever_listens_hears_the_file(tmp_path: Path) -> None:
    heard: list[str] = []
    writer = RecordWriter(tmp_path / NAME, {"a": 1}, heard.append)
    writer.start(_record(0, Outcome.CRASH))
    assert load(tmp_path / NAME).open and "".join(heard) == (tmp_path / NAME).read_text()
    writer.add(_record(0))
    writer.close()
    assert "".join(heard) == (tmp_path / NAME).read_text()


def test_a_worker_that_left_no_file_is_a_fault(tmp_path: Path) -> None:
    _writer(tmp_path, 0).close()
    process = Process(Request("s", report=tmp_path), "twin", 1)
    assert settle(process, Ended(1, False, frozenset({"gw1"}))) == 1
    assert settle(process, Ended(0, False, frozenset())) == 0
