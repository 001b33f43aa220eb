"""The page is one file that fetches nothing and trusts no text; the Markdown is short."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from conformance.core.record import Outcome, Record
from conformance.report import page as page_module
from conformance.report.gather import Model, model_of
from conformance.report.markdown import markdown
from conformance.report.page import MOST_CASES, MOST_DRAWINGS, page
from conformance.report.sources import Source
from conformance.tests.house.test_report import COMMIT, record

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "<img src=x onerror=alert(1)>",
    "\"'&`{{ 7 * 7 }}{% raw %}",
    "\u2028\u2029\x00\ud800",
]
ITEM = {
    "cluster": 0, "row": 0, "q_start": 0, "kv_start": 0, "planned_end": 9, "end": 5, "load_end": 9,
    "valid": 5, "touched": [0, 8],
}  # fmt: skip
SCHEDULE = {"clusters": 4, "touches": True, "truncated": False, "items": [ITEM]}


def model(*records: Record, **environment: Any) -> Model:
    header = {"commit": COMMIT, "gpu": None, "python": "3.11", **environment}
    return model_of([Source(Path("records"), header, records)])


def failing(number: int = 0, **changes: Any) -> Record:
    values = {"outcome": Outcome.FAIL, "message": "wrong", "ratio": 2.0, "schedule": SCHEDULE}
    return record(number, **{**values, **changes})


class Elements(HTMLParser):
    """Every element with its attributes, and the embedded data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.data: Any = None
        self._data = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._data = ("id", "data") in attrs

    def handle_data(self, data: str) -> None:
        if self._data:
            self.data, self._data = json.loads(data), False


def test_the_page_refers_to_nothing_outside_of_it() -> None:
    text = page(model(record(0), failing(1)))
    names = {
        "src",
        "href",
        "srcset",
        "poster",
        "action",
        "background",
        "data",
        "ping",
        "formaction",
    }
    for tag, attributes in Elements(text).found:
        assert not names & set(attributes), f"{tag} {attributes}"
        assert tag not in ("link", "iframe", "object", "embed", "base", "img", "audio", "video")
    namespaces = text.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"\bhttps?:|//[a-z]|@import|url\((?!#)", namespaces), "a reference"


def test_the_policy_names_the_page_s_own_style_and_script() -> None:
    text = page(model(record()))
    (policy,) = [
        str(found["content"])
        for tag, found in Elements(text).found
        if tag == "meta" and found.get("http-equiv") == "Content-Security-Policy"
    ]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    for tag, kind in (("style", "style-src"), ("script", "script-src")):
        inside = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert len(inside) == 1, tag
        assert f"{kind} '{page_module._digest(inside[0])}'" in policy


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_of_a_record_becomes_markup(text: str) -> None:
    plain = [tag for tag, _ in Elements(page(model(failing()))).found]
    hostile = failing(
        message=text, subject=text, subject_version=text, flashinfer=text, repro=text,
        expected=text, case=text,
    )  # fmt: skip
    found = Elements(page(model(hostile, commit=text, torch=text, gpu={"name": text})))
    assert [tag for tag, _ in found.found] == plain, "other elements"
    assert not [a for _, attributes in found.found for a in attributes if a.startswith("on")]
    (cell,) = [cell for cell in found.data["cells"].values() if "cases" in cell]
    (case,) = cell["cases"]
    assert (case["message"], case["repro"], case["case"]) == (text, text, text), "as it was said"


def test_numbers_that_json_does_not_have_are_words() -> None:
    text = page(model(failing(0, ratio=float("inf"), error=float("nan")), failing(1, ratio=None)))
    (cell,) = Elements(text).data["cells"].values()
    assert [(c["ratio"], c["error"]) for c in cell["cases"]] == [("∞", "NaN"), (None, 0.001)]


def test_a_cell_shows_so_many_cases_and_says_how_many_more() -> None:
    many = [failing(number) for number in range(MOST_CASES + 7)]
    (cell,) = Elements(page(model(*many))).data["cells"].values()
    assert (len(cell["cases"]), cell["more"]) == (MOST_CASES, 7)
    assert sum(case["schedule"] is not None for case in cell["cases"]) == MOST_DRAWINGS


@pytest.mark.parametrize(
    ("numbers", "together", "shared"),
    [((0, 0), "2/2", False), ((0, 1), "2/2", True)],
    ids=["each version runs each case", "versions share the cases"],
)
def test_versions_together_count_every_case_that_passed(
    numbers: tuple[int, int], together: str, shared: bool
) -> None:
    runs = [record(n, flashinfer=v) for n, v in zip(numbers, ("0.7.0", "0.7.4"), strict=True)]
    text = page(model(*runs))
    assert [f"{passed}/{total}" for passed, total in re.findall(r">.{0,3}(\d+)/(\d+)<", text)] == [
        together, "1/1", "1/1",
    ]  # fmt: skip
    assert ("a share of the cases each" in text) is shared


def test_the_repro_line_is_shown_once() -> None:
    repro = "python -m conformance run --case 'PLAN-4/geo=tiny/0'"
    said = f"PLAN-4/geo=tiny/0: wrong\n  got      1\n  repro    {repro}"
    (cell,) = Elements(page(model(failing(message=said, repro=repro)))).data["cells"].values()
    assert cell["cases"][0]["message"] == "PLAN-4/geo=tiny/0: wrong\n  got      1"


def test_every_outcome_has_a_sign_beside_its_colour() -> None:
    fates = {
        Outcome.FAIL: "✘", Outcome.CRASH: "✘", Outcome.HANG: "✘", Outcome.XPASS: "✘",
        Outcome.PASS: "✔", Outcome.XFAIL: "≈", Outcome.SKIPPED: "○", Outcome.UNOBSERVABLE: "○",
        Outcome.REFUSED: "○",
    }  # fmt: skip
    assert set(fates) == set(Outcome)
    for outcome, sign in fates.items():
        # Two versions: what is short of its least is told in the column of all of them.
        versions = [record(n, outcome=outcome, flashinfer=f"0.7.{n}") for n in range(2)]
        cells = re.findall(r"<td class=.*?</td>", page(model(*versions)), re.DOTALL)
        assert len(cells) == 3 and all(sign in cell for cell in cells[1:]), f"{outcome}: {cells}"
        assert ("✘" if sign == "✘" else "◐") in cells[0], f"{outcome}: {cells[0]}"


def test_a_page_by_another_commit_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    note = "made by another state"
    own = {"commit": "f" * 40, "sources": "aaa"}
    monkeypatch.setattr(page_module, "describe", lambda: own)
    assert note in page(model(record()))
    assert note in page(model(record(), sources="bbb"))
    assert note not in page(model(record(), sources="aaa")), "the same files under another commit"


def test_the_markdown_lists_what_is_not_green_and_no_more() -> None:
    good = [record(n, case=f"MHA-2/{n}", requirement="MHA-2") for n in range(12)]
    gpu = {"name": "NVIDIA H200", "driver": "1.2"}
    text = markdown(model(*good, failing(), record(3, outcome=Outcome.XFAIL), gpu=gpu))
    rows = [line for line in text.splitlines() if line.startswith("| **")]
    assert len(rows) == 1 and rows[0].startswith("| **PLAN-4**") and "1 fail, 1 xfail" in rows[0]
    assert "❌ **smla** does not conform" in text
    assert "NVIDIA H200 (driver 1.2)" in text and COMMIT in text


@pytest.mark.parametrize("text", [*HOSTILE, "a|b", "a\nb", "[x](y)", "*_~`#"])
def test_no_text_of_a_record_becomes_markdown(text: str) -> None:
    lines = markdown(model(failing(subject=text, subject_version=text))).splitlines()
    expected = markdown(model(failing(subject="plain"))).splitlines()
    assert len(lines) == len(expected)
    (row,) = [line for line in lines if line.startswith("| **")]
    assert len(re.findall(r"(?<!\\)\|", row)) == 6, row
    assert not re.search(r"(?<!\\)[<`\[~]", row), row
