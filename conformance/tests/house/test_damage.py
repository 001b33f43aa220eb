"""Damaged or unwritable files: an error that says which and what to do, and nothing is lost."""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conformance.core import run as run_module
from conformance.core.record import Outcome, Record, RecordError, RecordWriter, read_records
from conformance.core.request import Identity, Request, SuiteError
from conformance.core.run import run
from conformance.tests.house.test_cli import ends_with, home, requests

__all__ = ["home", "requests"]

NAME = "records-twin-1-main.jsonl"
PASSED = Record("SMOKE/heads=16/0", "SMOKE", "twin", "s", Outcome.PASS, None, None, False, "", "r")


def written(folder: Path) -> Path:
    """Return a whole record file in a report folder."""
    writer = RecordWriter(folder / NAME, {})
    writer.start(PASSED)
    writer.add(PASSED)
    writer.close()
    return folder / NAME


def with_record(**changed: object) -> str:
    values = json.loads(json.dumps({"kind": "record", **PASSED.__dict__}))
    return json.dumps({k: v for k, v in {**values, **changed}.items() if v != "-"})


DAMAGE = {
    "empty": ("", "no header"),
    "half a header": ('{"kind": "hea', "no header"),
    "another schema": ('{"schema": "smla-records/1"}\n', "schema smla-records/1"),
    "no schema": ('{"kind": "header"}\n', "schema None"),
    "no JSON": ("{HEADER}\nno JSON\n", "no JSON in line 2"),
    "no object": ("{HEADER}\n3\n", "no JSON object in line 2"),
    "no header line": ("3\n", "no JSON object in line 1"),
    "unknown kind": ('{HEADER}\n{"kind": "guess"}\n', "line 2 of unknown kind 'guess'"),
    "a key too many": ("{HEADER}\n{MORE}\n", "no record in line 2"),
    "a key missing": ("{HEADER}\n{LESS}\n", "no record in line 2"),
    "unknown outcome": ("{HEADER}\n{LUCK}\n", "no record in line 2"),
    "no outcome": ("{HEADER}\n{NONE}\n", "no record in line 2"),
    "no footer": ("{HEADER}\n{RECORD}\n", "no footer"),
    "half a footer": ('{HEADER}\n{RECORD}\n{"kind": "foot', "no footer"),
    "a footer of more": ('{HEADER}\n{RECORD}\n{"kind": "footer", "records": 2}\n', "no footer"),
    "a line behind": ("{HEADER}\n{FOOTER}\n{RECORD}\n", "no footer"),
}
LINES = {
    "{RECORD}": with_record(),
    "{MORE}": with_record(luck=1),
    "{LESS}": with_record(case="-"),
    "{LUCK}": with_record(outcome="luck"),
    "{NONE}": with_record(outcome="-"),
    "{FOOTER}": '{"kind": "footer", "records": 0, "left": ""}',
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_result_file_is_named_with_a_remedy(damage: str, tmp_path: Path) -> None:
    path = written(tmp_path)
    lines = {**LINES, "{HEADER}": path.read_text().splitlines()[0]}
    text, says = DAMAGE[damage]
    for mark, line in lines.items():
        text = text.replace(mark, line)
    path.write_text(text)
    with pytest.raises(RecordError, match=re.escape(says)) as problem:
        read_records(tmp_path)
    for part in (str(path), "allowed", "to fix"):
        assert part in str(problem.value), problem.value


def test_a_result_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecordError, match="no text") as problem:
        read_records(tmp_path)
    assert str(path) in str(problem.value)


@contextmanager
def nobody() -> Iterator[None]:
    """Be a user whom permissions bind."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that any user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="smla-damage-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


ASKED = Request("x:y", tier="twin", identity=Identity("x", ""))


def refused(request: Request, says: str) -> None:
    with pytest.raises(SuiteError, match=says) as problem:
        run(request)
    assert "allowed" in str(problem.value) and "to fix" in str(problem.value), problem.value


def test_a_report_folder_that_is_only_to_be_read_keeps_its_records(open_folder: Path) -> None:
    path = written(open_folder)
    open_folder.chmod(0o555)
    with nobody():
        refused(_into(open_folder), f"report folder {open_folder}: found Permission denied")
    assert read_records(open_folder) == [PASSED] and path.exists()


def test_records_stay_where_junit_cannot_be_written(open_folder: Path) -> None:
    report, locked = open_folder / "report", open_folder / "locked"
    written(report)
    locked.mkdir()
    locked.chmod(0o555)
    report.chmod(0o777)
    with nobody():
        refused(_into(report, junit=locked / "x.xml"), "JUnit's folder .*: found Permission denied")
    assert read_records(report) == [PASSED]
    refused(_into(report, junit=report / NAME / "x.xml"), "JUnit's folder")
    refused(_into(report, junit=locked), "found a folder")
    assert read_records(report) == [PASSED]


def test_a_junit_file_that_fails_late_loses_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_tier(request: Request, *_: object) -> tuple[list[Record], list[str]]:
        written(request.report)
        return read_records(request.report), []

    monkeypatch.setattr(run_module, "run_tier", run_tier)
    (tmp_path / "x-twin.xml").mkdir()
    refused(_into(tmp_path / "report", junit=tmp_path / "x.xml"), "x-twin.xml: Is a directory")
    assert read_records(tmp_path / "report") == [PASSED]


def test_an_earlier_run_s_records_go_when_this_one_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[list[Path]] = []

    def run_tier(request: Request, *_: object) -> tuple[list[Record], list[str]]:
        left.append(sorted(request.report.iterdir()))
        return [PASSED], []

    monkeypatch.setattr(run_module, "run_tier", run_tier)
    written(tmp_path)
    (tmp_path / "processes").mkdir()
    (tmp_path / "mine.txt").touch()
    run(_into(tmp_path))
    assert left == [[tmp_path / "mine.txt"]]


def _into(report: Path, junit: Path | None = None) -> Request:
    return Request(ASKED.subject, tier="twin", identity=ASKED.identity, report=report, junit=junit)


def test_a_malformed_ledger_ends_with_3_and_runs_nothing(
    requests: list[Request],
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (home / "mine.toml").write_text("[[deviation]]\ncases = 'PLAN-8/*'\n")
    assert ends_with(monkeypatch, "run", "--ledger", "mine.toml") == 3
    said = capsys.readouterr().err
    assert requests == [] and "mine.toml, deviation 1: found keys missing" in said, said
    assert ends_with(monkeypatch, "ledger", "check", "mine.toml") == 3
    assert ends_with(monkeypatch, "run", "--no-ledger") == 0
    assert [list(request.ledger) for request in requests] == [[]]
