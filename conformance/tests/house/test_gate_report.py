"""What a gate found reads the same as JSON, Markdown, a page and a row of the matrix."""

import json
import re
import tokenize
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from conformance.gate import store, telling
from conformance.gate.markdown import markdown
from conformance.gate.model import (
    SCHEMA,
    Change,
    Figure,
    Finding,
    GateResult,
    Side,
    Status,
    Weight,
    not_run,
    ran,
)
from conformance.gate.page import page
from conformance.gate.store import StoreError
from conformance.gate.versions import versions_command

GATE = Path(store.__file__).parent
VERSION = re.compile(r"\b0\.[5-9]\.\d+")
HOSTILE = "<script>alert(1)</script> | `x` [link](http://x) \n& more"


def finding(key: str, change: Change, weight: Weight, **more: str) -> Finding:
    return Finding(key, change, weight, f"what of {key}", **more)


WAITS = finding("wrapper/waits/replan", Change.CHANGED, Weight.OBJECTION, cause="mla/x.py: plan")
SAME = finding("static/layout/plan-info", Change.UNCHANGED, Weight.NOTE)
READ_IT = finding("static/region/kernel", Change.CHANGED, Weight.REVIEW)
GONE = finding("static/name/plan", Change.DELETED, Weight.OBJECTION, before=HOSTILE)
NEW = finding("wrapper/probe/new", Change.ADDED, Weight.NOTE)
FIGURE = Figure("a plan, 64 rows", "plan", "some CPU", 1500.0, 3000.0, 2.0, 0.25, 5, 1.9)


def result(
    verdict: str = "NO-GO", *, candidate: str = "9.10.0", subject: str = "mine"
) -> GateResult:
    return GateResult(
        subject,
        "1.2",
        Side("9.2.0", "9.2.0", "a" * 64),
        Side(candidate, candidate, "b" * 64),
        (
            ran("static", (SAME, READ_IT, GONE), facts={"files": 3}),
            ran("wrapper", (NEW, WAITS), (FIGURE,)),
            ran("planner", (SAME,)),
            ran("twin", ()),
            not_run("hopper", "no Hopper GPU is visible", "python -m conformance gate A B"),
        ),
        verdict,
        {"python": "3.12", "gpu": None},
    )


def test_results_survive_their_file(tmp_path: Path) -> None:
    given = [result(), result("INCOMPLETE", subject="other")]
    store.write_text(tmp_path / "new" / store.JSON, store.dumps(given))
    assert store.read(tmp_path / "new" / store.JSON) == given


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no gate results"),
        ("[]", "no gate results"),
        ('{"schema": "smla-gate/0", "results": []}', "smla-gate/0"),
        (json.dumps({"schema": SCHEMA, "results": [{"subject": "x"}]}), "not whole"),
        (store.dumps([result()])[:-200], "no gate results"),
        (store.dumps([result()]).replace('"changed"', '"altered"', 1), "not whole"),
    ],
)
def test_a_file_that_is_not_whole_is_refused(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / store.JSON
    path.write_text(text)
    with pytest.raises(StoreError, match=told):
        store.read(path)


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "gate.json"
    path.write_text("old")
    with pytest.raises(StoreError, match="allowed: a file that can be written"):
        store.write_text(path / "under-a-file", "new")
    with pytest.raises(TypeError):
        store.write_text(path, 3)  # type: ignore[arg-type]
    assert path.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["gate.json"]


def test_an_objection_fails_its_tier_and_a_tolerated_one_does_not() -> None:
    assert ran("static", (SAME, READ_IT)).status is Status.PASS
    assert ran("static", (SAME, GONE)).status is Status.FAIL
    assert ran("static", (replace(GONE, tolerated="known"),)).status is Status.PASS


def test_both_texts_tell_every_finding_and_what_did_not_run() -> None:
    given = result()
    for text in (markdown([given], ["Do not."]), page([given], ["Do not."])):
        assert "NO-GO" in text and "Do not." in text
        for tier in given.tiers:
            for found in tier.findings:
                assert found.what.replace("_", "\\_") in text or found.what in text, found.key
        for told in ("mla/x.py: plan", "no Hopper GPU is visible", "gate A B", "3 ms", "2.00"):
            assert told in text, told


def test_no_text_of_a_package_becomes_markup() -> None:
    given = result()
    html = page([given], [HOSTILE])
    assert "<script" not in html and "&lt;script&gt;" in html
    plain = markdown([given], [HOSTILE])
    assert "<script>" not in plain.replace("\\<script\\>", "")
    row = next(line for line in plain.splitlines() if "static/name/plan" in line)
    assert len(re.findall(r"(?<!\\)\|", row)) == 8, "a text of a cell began another one"


def test_rows_are_told_by_change_with_objections_first() -> None:
    given = result()
    order = [row.finding.key for row in telling.of_change(given, Change.CHANGED)]
    assert order == [WAITS.key, READ_IT.key]
    assert [row.finding.key for row in telling.objections(given)] == [GONE.key, WAITS.key]
    text = markdown([given], [""])
    heads = re.findall(r"^## (Added|Deleted|Changed|Unchanged)", text, re.MULTILINE)
    assert heads == ["Added", "Deleted", "Changed", "Unchanged"]


def test_the_matrix_has_a_linked_cell_for_each_tier_and_version(tmp_path: Path) -> None:
    for version in ("9.10.0", "9.9.0"):
        given = [
            result(candidate=version),
            result("INCOMPLETE", candidate=version, subject="other"),
        ]
        file = tmp_path / "evidence" / f"{version}.json"
        store.write_text(file, store.dumps(given))
        store.write_text(file.with_suffix(".md"), markdown(given, ["", ""]))
    files = sorted(str(path) for path in (tmp_path / "evidence").glob("*.json"))
    out = tmp_path / "versions.md"
    done = CliRunner().invoke(versions_command, [*files, "--out", str(out)])
    assert done.exit_code == 0, done.output
    text = out.read_text()
    rows = [line for line in text.splitlines() if line.startswith("| 9.")]
    assert [row.split("|")[1].strip() for row in rows] == ["9.9.0", "9.10.0"] * 2
    for target, place in re.findall(r"\]\(([^)#]+)#([^)]+)\)", text):
        assert f'<a id="{place}"></a>' in (tmp_path / target).read_text(), f"{target}#{place}"
    assert len(re.findall(r"\]\(", text)) == 4 * 6
    assert text.count("❌ NO-GO") == 2 and text.count("⚠️ INCOMPLETE") == 2


def test_the_matrix_needs_the_page_that_a_cell_links_to(tmp_path: Path) -> None:
    file = tmp_path / "one.json"
    store.write_text(file, store.dumps([result()]))
    done = CliRunner().invoke(versions_command, [str(file), "--out", str(tmp_path / "v.md")])
    assert isinstance(done.exception, StoreError), done.output
    assert not (tmp_path / "v.md").exists()


def test_the_gate_knows_no_version() -> None:
    """Causes are found in the packages; a version in code or data would be a verdict written in."""
    found = []
    for path in sorted(GATE.rglob("*")):
        if path.suffix == ".py":
            with path.open("rb") as file:
                for token in tokenize.tokenize(file.readline):
                    documents = token.type == tokenize.COMMENT or token.string.startswith('"""')
                    if VERSION.search(token.string) and not documents:
                        found.append(f"{path.name}:{token.start[0]}: {token.string}")
        elif path.is_file() and path.suffix != ".pyc" and VERSION.search(path.read_text()):
            found.append(path.name)
    assert not found, found
