"""Commands `report` and `merge`: what they refuse and why, and that a merge is whole or nothing."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance import cli, ownership
from conformance.clean import clean_report
from conformance.core.catalogue import REQUIREMENTS
from conformance.core.environment import describe
from conformance.core.record import SCHEMA, Outcome, Record
from conformance.report import merge as merging
from conformance.report.gather import Column, Group, Model, gather
from conformance.report.judged import of_column
from conformance.report.merge import merge
from conformance.report.sources import ReportError
from conformance.tests.requirements.recorded import write

COMMIT, OTHER = "1" * 40, "2" * 40


def record(number: int = 0, **changes: Any) -> Record:
    values: dict[str, Any] = {
        "case": f"PLAN-4/geo=tiny/{number}",
        "requirement": "PLAN-4",
        "tier": "twin",
        "subject": "smla",
        "outcome": Outcome.PASS,
        "error": 0.001,
        "ratio": 0.5,
        "interpreted": False,
        "message": "",
        "repro": f"python -m conformance run --case 'PLAN-4/geo=tiny/{number}'",
        "flashinfer": "0.7.4",
    }
    return Record(**{**values, **changes})


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """Make a report folder of some records."""

    def make(name: str, *records: Record, commit: str | None = COMMIT, **more: Any) -> Path:
        path = tmp_path / name / "records-twin-1-main.jsonl"
        write(path, records or [record()], commit, **more)
        return path.parent

    return make


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run a command line; return its exit code and what it wrote to each stream."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SMLA_")]:
        monkeypatch.delenv(name)

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["conformance", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.entry()
        said = capsys.readouterr()
        assert isinstance(stop.value.code, int)
        return stop.value.code, said.out, said.err

    return run


def refusal(does: Callable[[], object], *named: object) -> str:
    with pytest.raises(ReportError) as problem:
        does()
    said = str(problem.value)
    missing = [
        str(name) for name in (*named, "found", "allowed", "to fix") if str(name) not in said
    ]
    assert not missing, f"{missing} not in: {said}"
    return said


def test_a_case_of_several_files_counts_once_with_the_worst(folder: Callable[..., Path]) -> None:
    one = folder("one", record(0), record(1))
    two = folder("two", record(0, outcome=Outcome.FAIL, ratio=1.5), record(2))
    (cell,) = gather([one, two, one]).cells.values()
    assert dict(cell.counts) == {Outcome.PASS: 2, Outcome.FAIL: 1} and cell.ratio == 1.5
    assert [(seen.record.case, seen.times) for seen in cell.cases] == [("PLAN-4/geo=tiny/0", 2)]


def test_versions_stand_in_their_order_and_subjects_apart(folder: Callable[..., Path]) -> None:
    records = [
        record(n, flashinfer=v) for n, v in enumerate(("0.7.10", "", "0.7.2.post1", "0.7.4"))
    ]
    other = [record(0, subject="vllm", subject_version=v) for v in ("0.33.0", "0.4.0")]
    folders = [folder(f"vllm-{n}", r) for n, r in enumerate(other)]
    model = gather([folder("smla", *records), *folders])
    smla = Group("smla", "", "twin")
    versions = [column.flashinfer for column in model.of(smla)]
    assert versions == ["", "0.7.2.post1", "0.7.4", "0.7.10"]
    assert [group.label for group in model.groups] == ["smla", "vllm 0.4.0", "vllm 0.33.0"]


@pytest.mark.parametrize("shape", ["absent", "file", "empty"])
def test_what_is_no_report_folder_is_named(
    shape: str, tmp_path: Path, folder: Callable[..., Path]
) -> None:
    path = tmp_path / "here"
    if shape == "file":
        path.touch()
    elif shape == "empty":
        path.mkdir()
    refusal(lambda: gather([folder("whole"), path]), path)
    refusal(lambda: merge([folder("whole"), path], tmp_path / "merged"), path)
    assert not (tmp_path / "merged").exists()


BROKEN: dict[str, Callable[[str], str]] = {
    "no footer": lambda text: text[: text.rindex('{"kind": "footer"')],
    "half a line": lambda text: text[:-7],
    "a record less": lambda text: "".join(
        line for n, line in enumerate(text.splitlines(keepends=True)) if n != 2
    ),
    "an open case": lambda text: text.replace('"kind": "record"', '"kind": "started"').replace(
        '"records": 1', '"records": 0'
    ),
    "no JSON": lambda text: text.replace('"kind"', "kind", 2),
    "no header": lambda text: text.partition("\n")[2],
    "a list": lambda text: f"[]\n{text}",
    "an unknown outcome": lambda text: text.replace('"pass"', '"passed"'),
    "an unknown field": lambda text: text.replace('"case":', '"cases":'),
    "nothing": lambda text: "",
    "bytes": lambda text: f"\udcff{text}",
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_file_that_is_not_whole_is_refused(
    how: str, tmp_path: Path, folder: Callable[..., Path]
) -> None:
    broken = folder("broken")
    path = broken / "records-twin-1-main.jsonl"
    before = path.read_text()
    after = BROKEN[how](before)
    assert after != before, "the test breaks nothing"
    path.write_bytes(after.encode(errors="surrogateescape"))
    said = refusal(lambda: gather([broken]), path)
    assert "\n" not in said.strip(), "one file, one line"
    refusal(lambda: merge([folder("whole"), broken], tmp_path / "merged"), path)
    assert not (tmp_path / "merged").exists()


def test_every_broken_file_is_named_at_once(folder: Callable[..., Path]) -> None:
    folders = [folder("one"), folder("two"), folder("three")]
    for broken in folders[::2]:
        path = broken / "records-twin-1-main.jsonl"
        path.write_text(BROKEN["no footer"](path.read_text()))
    said = refusal(lambda: gather(folders), folders[0], folders[2])
    assert str(folders[1]) not in said


def test_another_schema_is_refused_and_both_are_named(folder: Callable[..., Path]) -> None:
    old = folder("old")
    path = old / "records-twin-1-main.jsonl"
    path.write_text(path.read_text().replace(SCHEMA, "smla-records/2", 1))
    refusal(lambda: gather([folder("new"), old]), path, SCHEMA, "smla-records/2")


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        ({"commit": COMMIT}, {"commit": OTHER}, (COMMIT, OTHER)),
        (
            {"commit": COMMIT, "sources": "aaa"},
            {"commit": COMMIT, "sources": "bbb"},
            ("aaa", "bbb"),
        ),
        ({"commit": None}, {"commit": None}, ("no commit",)),
        ({"commit": None}, {"commit": COMMIT}, ("no commit",)),
        ({"commit": None, "sources": "aaa"}, {"commit": COMMIT, "sources": "bbb"}, ("aaa", "bbb")),
    ],
    ids=["commits", "changes", "unknown", "half known", "digests"],
)
def test_two_suites_are_not_added_up(
    first: Any, second: Any, named: Any, tmp_path: Path, folder: Callable[..., Path]
) -> None:
    folders = [folder("one", **first), folder("two", **second)]
    refusal(lambda: gather(folders), *named)
    refusal(lambda: merge(folders, tmp_path / "merged"), *named)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"], "nothing is left"


def test_a_digest_stands_in_for_a_commit_that_is_not_known(folder: Callable[..., Path]) -> None:
    model = gather([folder("gpu", commit=None, sources="aaa"), folder("cpu", sources="aaa")])
    assert model.commit == COMMIT
    assert gather([folder("alone", commit=None)]).commit is None


def test_the_environment_tells_the_suites_files(tmp_path: Path) -> None:
    digest = describe()["sources"]
    assert len(digest) == 16 and digest == describe()["sources"]


def test_a_version_that_shares_the_cases_conforms_only_with_all_of_them(
    folder: Callable[..., Path],
) -> None:
    def words(left_out: str = "", version: str = "") -> list[str]:
        records = [
            record(
                n, case=f"{id}/{n}", requirement=id, interpreted=n == 0, flashinfer=f"0.7.{n % 2}"
            )
            for id, known in REQUIREMENTS.items()
            for n in range(known.twin)
            if (id, f"0.7.{n % 2}") != (left_out, version)
        ]
        model = gather([folder(f"all-{left_out}", *records)])
        return [of_column(model, column).word for column in model.columns]

    assert words() == ["conforms", "conforms"]
    assert words("LEN-1", "0.7.1") == ["incomplete", "incomplete"], "its least is not reached"


def test_merged_files_are_the_union_and_the_folder_is_the_suites(
    tmp_path: Path, folder: Callable[..., Path]
) -> None:
    folders = [folder("one", record(0)), folder("two", record(1)), folder("three", record(2))]
    target = tmp_path / "deep" / "merged"
    files = merge([*folders, folders[0]], target)
    found = sorted(target.glob("records-*.jsonl"))
    assert files == found and len(found) == 3
    before = sorted((f / "records-twin-1-main.jsonl").read_bytes() for f in folders)
    assert sorted(path.read_bytes() for path in found) == before, "byte for byte"
    assert ownership.REPORT.owns(target) and (target.stat().st_mode & 0o777) == 0o755
    (again,) = merge([target, folder("four", record(0))], tmp_path / "again")[:1]
    assert again.name.startswith("records-twin-")
    assert len(list((tmp_path / "again").glob("*.jsonl"))) == 3, "the same file is there once"
    assert clean_report(target) == [] and not target.exists()


@pytest.mark.parametrize("how", ["full", "file"])
def test_a_merge_writes_over_nothing(how: str, tmp_path: Path, folder: Callable[..., Path]) -> None:
    target = tmp_path / "target"
    kept = target if how == "file" else target / "kept"
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("precious")
    refusal(lambda: merge([folder("one")], target), target)
    assert kept.read_text() == "precious"


def test_a_merge_into_an_empty_folder(tmp_path: Path, folder: Callable[..., Path]) -> None:
    (tmp_path / "target").mkdir()
    assert len(merge([folder("one")], tmp_path / "target")) == 1


@pytest.mark.parametrize("target", ["/proc/merged", "{one}/records-twin-1-main.jsonl/merged"])
def test_a_merge_into_a_place_that_cannot_be_written(
    target: str, folder: Callable[..., Path]
) -> None:
    one = folder("one")
    path = Path(target.format(one=one))
    refusal(lambda: merge([one], path), path)
    assert sorted(p.name for p in one.iterdir()) == ["records-twin-1-main.jsonl"]


def test_a_merge_that_stops_half_way_leaves_nothing(
    tmp_path: Path, folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [folder("one", record(0)), folder("two", record(1))]
    copy = merging._copy
    copied: list[Any] = []

    def full(source: Any, into: Path) -> str:
        if copied:
            raise OSError(28, "No space left on device")
        copied.append(source)
        return copy(source, into)

    monkeypatch.setattr(merging, "_copy", full)
    refusal(lambda: merge(folders, tmp_path / "merged"), "No space left")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_the_commands(
    command: Callable[..., tuple[int, str, str]], tmp_path: Path, folder: Callable[..., Path]
) -> None:
    bad = record(1, outcome=Outcome.FAIL, message="wrong", ratio=3.0)
    one, two = folder("one", record(0)), folder("two", bad)
    code, out, _ = command("merge", one, two, "--into", tmp_path / "both")
    assert code == 0 and "merged 2 record files" in out
    code, out, err = command("report", tmp_path / "both", "--markdown", "-")
    assert code == 0 and out.startswith("# Conformance") and "does not conform" in err
    assert (tmp_path / "both" / "report.html").read_text().startswith("<!doctype html>")
    code, out, _ = command("report", one, two, "--html", "new/x.html", "--markdown", "new/x.md")
    assert code == 0 and "smla does not conform" in out and "new/x.html" in out
    assert "PLAN-4" in Path("new/x.md").read_text() and Path("new/x.html").is_file()
    for wrong in (["report"], ["report", "nowhere"], ["merge", "--into", "x"], ["merge", one]):
        code, _, err = command(*wrong)
        assert code == 3 and err, wrong
    code, _, err = command("report", one, "--html", "/proc/x.html")
    assert code == 3 and "/proc/x.html" in err
    assert command("merge", one, two, "--into", tmp_path / "both")[0] == 3, "it holds records"


def test_the_default_folder_is_the_settings(
    command: Callable[..., tuple[int, str, str]], folder: Callable[..., Path]
) -> None:
    folder("conformance-report")
    code, out, _ = command("report")
    assert code == 0 and Path("conformance-report/report.html").is_file() and "report.html" in out
    lines = Path("conformance-report/records-twin-1-main.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["kind"] == "header"
    model: Model = gather([Path("conformance-report")])
    assert model.columns == (Column(Group("smla", "", "twin"), "0.7.4"),)
