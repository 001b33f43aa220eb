"""Several subjects: a run and a folder for each, all looked at first, the worst exit code last."""

from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from conformance import clean, cli, ownership
from conformance.core.run import Exit, Identity, Request, SuiteError
from conformance.several import folders, run_each, worst
from conformance.tests.house.test_cli import ends_with, home, requests

__all__ = ["home", "requests"]


def test_the_worst_code_stands_for_all() -> None:
    order = [Exit.SUITE_FAILED, Exit.DOES_NOT, Exit.INCOMPLETE, Exit.CONFORMS]
    for place, code in enumerate(order):
        for codes in permutations(order[place:]):
            assert worst(codes) is code


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["smla"], ["r"]),
        (["smla", "vllm==0.33.0"], ["r/smla", "r/vllm==0.33.0"]),
        (["a.b:c", "a.b-c", "A.B-C"], ["r/a.b-c", "r/a.b-c-2", "r/A.B-C-3"]),
        (["../x", "///"], ["r/x", "r/subject"]),
    ],
)
def test_each_has_its_folder(names: list[str], expected: list[str]) -> None:
    assert [str(path) for path in folders(Path("r"), names)] == expected


def test_none_is_run_twice() -> None:
    with pytest.raises(SuiteError, match="found smla more than once"):
        folders(Path("r"), ["smla", "vllm", "smla"])


UPSTREAM = "conformance.subjects.upstream:Sound"
BOTH = ["--subject", "smla", "--subject", UPSTREAM]


def test_each_is_asked_for_by_its_name(
    requests: list[Request],
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--report", "all", "--junit", "x/of.xml"]
    assert ends_with(monkeypatch, "run", *BOTH, *options) == 0
    named = [request.named for request in requests]
    assert named == ["smla", UPSTREAM]
    factories = [request.subject for request in requests]
    assert factories == ["conformance.subjects.smla:SmlaSubject", UPSTREAM]
    slug = "conformance.subjects.upstream-Sound"
    assert [request.report for request in requests] == [home / "all" / n for n in ("smla", slug)]
    assert [str(r.junit) for r in requests] == ["x/of-smla.xml", f"x/of-{slug}.xml"]
    shown = capsys.readouterr().out
    assert "2 subjects:\nsmla was run\n" in shown and f"{UPSTREAM} was run" in shown, shown


def test_one_is_asked_for_as_ever(
    requests: list[Request], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ends_with(monkeypatch, "run", "--junit", "of.xml") == 0
    (request,) = requests
    assert (request.named, request.report.name) == ("smla", "conformance-report")
    assert str(request.junit) == "of.xml"


def test_a_bad_one_is_refused_before_any_runs(
    requests: list[Request], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def identify(factory: str, given: str) -> Identity:
        if given == UPSTREAM:
            raise SuiteError(f"subject {given!r}: it is broken")
        return Identity(given, "")

    monkeypatch.setattr(cli, "identify", identify)
    assert ends_with(monkeypatch, "run", *BOTH) == 3
    assert requests == [] and "it is broken" in capsys.readouterr().err


def test_a_run_that_the_suite_fails_in_keeps_no_other_from_its_own(tmp_path: Path) -> None:
    def run(request: Request) -> Any:
        if request.given == "b":
            raise SuiteError("no luck")
        return SimpleNamespace(exit=Exit.DOES_NOT)

    asked = [Request("x:y", given=n, report=tmp_path / n) for n in "abc"]
    console = Console(record=True, width=200)
    code = run_each(asked, run, lambda *_: None, lambda _, name: f"{name} done", console)
    assert code is Exit.SUITE_FAILED
    text = console.export_text()
    assert text.endswith("3 subjects:\na done\nb: the suite failed\nc done\n"), text
    assert "error: no luck" in text


def test_clean_takes_each_subject_s_folder(tmp_path: Path) -> None:
    report = tmp_path / "report"
    for name in ("", "smla", "vllm==0.33.0"):
        ownership.REPORT.claim(report / name)
        (report / name / "records-twin-1-main.jsonl").touch()
    (report / "mine").mkdir()
    (report / "mine" / "records-x.jsonl").touch()
    assert [path for path, _ in clean.clean_report(report)] == [report / "mine"]
    assert [path.name for path in report.iterdir() if path.is_dir()] == ["mine"]
