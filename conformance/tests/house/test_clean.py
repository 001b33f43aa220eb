"""`clean` deletes what this suite made, asks first, and leaves everything else."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from conformance import ownership
from conformance.cache import Cache
from conformance.clean import claim_report, clean_command


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SMLA_CACHE_ROOT", str(tmp_path / "cache"))
    return tmp_path


def clean(*arguments: str, says: str | None = None) -> Result:
    return CliRunner().invoke(clean_command, [*arguments], input=says)


def fill(home: Path, name: str = "conformance-report") -> Path:
    Cache(home / "cache").entry("kind", {}, lambda folder: None)
    report = home / name
    claim_report(report)
    (report / "records-twin-main.jsonl").touch()
    (report / "traces").mkdir()
    (report / "traces/one.json").touch()
    return report


def test_what_a_run_left_is_gone(home: Path) -> None:
    report = fill(home)
    result = clean("--yes")
    assert result.exit_code == 0 and "1 cache entries" in result.output, result.output
    assert not report.exists() and not (home / "cache").exists()
    assert "nothing to clean" in clean("--yes").output


@pytest.mark.parametrize(("answer", "gone"), [("n\n", False), ("", False), ("y\n", True)])
def test_it_asks_first(home: Path, answer: str, gone: bool) -> None:
    report = fill(home)
    result = clean(says=answer)
    assert str(home / "cache") in result.output and str(report.name) in result.output
    assert report.exists() is not gone and (home / "cache").exists() is not gone


def test_a_folder_without_marker_is_left(home: Path) -> None:
    report = home / "conformance-report"
    report.mkdir()
    (report / "records-mine.jsonl").touch()
    claim_report(report)
    assert not ownership.REPORT.owns(report), "a folder that held files never becomes ours"
    result = clean("--yes")
    assert (report / "records-mine.jsonl").exists()
    assert "left: " in result.output and ownership.REPORT.name in result.output


def test_a_stranger_s_file_in_a_report_is_left(home: Path) -> None:
    report = fill(home)
    (report / "notes.txt").touch()
    result = clean("--yes")
    assert [path.name for path in sorted(report.iterdir())] == [ownership.REPORT.name, "notes.txt"]
    assert "notes.txt: not made by this suite" in result.output


def test_named_reports_are_cleaned(home: Path) -> None:
    first, second = fill(home, "first"), fill(home, "second")
    assert clean("--yes", "--report", str(first), "--report", str(second)).exit_code == 0
    assert not first.exists() and not second.exists()


def test_a_link_is_not_followed(home: Path) -> None:
    report = fill(home)
    (home / "elsewhere").mkdir()
    (home / "elsewhere/file").touch()
    (report / "traces/one.json").unlink()
    (report / "traces").rmdir()
    (report / "traces").symlink_to(home / "elsewhere")
    clean("--yes")
    assert (home / "elsewhere/file").exists()
