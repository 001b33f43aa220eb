"""Record files of processes that died: closed by the driver when known dead, else an error."""

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
    ("lost", "closed"),
    [(None, True), (frozenset({"gw0"}), True), (frozenset({"gw1"}), False), (frozenset(), False)],
)
def test_only_known_dead_are_closed(
    tmp_path: Path, lost: frozenset[str] | None, closed: bool
) -> None:
    _writer(tmp_path, 0).start(_record(1))
    process = Process(Request("s", report=tmp_path), "twin", 1)
    assert settle(process, Ended(1, False, lost)) == closed
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
