"""What a run says last: the verdict, known deviations counted apart, and what did not run."""

import re
from dataclasses import replace

import pytest
from rich.console import Console

from conformance import cli
from conformance.core.record import Outcome, Record
from conformance.core.verdict import Verdict

PASSED = Record(
    "NUM-1/heads=16/0", "NUM-1", "twin", "vllm", Outcome.PASS, 0.1, 0.5, True, "", "again"
)
WAITS = "fail (upstream): plan() reads back"
READS = "crash (by-design): it reads the whole tile"


def known(number: int, expected: str) -> Record:
    case = f"NUM-1/heads=16/{number}"
    outcome = Outcome(expected.partition(" ")[0])
    return replace(PASSED, case=case, expected=expected).but(outcome, f"{case}: seen")


def line(*records: Record, **how: object) -> str:
    verdict = Verdict([PASSED, *records], ["twin"], **how)  # type: ignore[arg-type]
    return cli.last_line(verdict, "vllm==0.33.0")


@pytest.mark.parametrize(
    ("expected", "says"),
    [
        ([], "conforms on twin: 1 pass;"),
        ([WAITS], "conforms except for 1 known deviation on twin: 1 pass, 1 xfail;"),
        ([WAITS, WAITS], "conforms except for 1 known deviation on twin: 1 pass, 2 xfail;"),
        ([WAITS, READS], "conforms except for 1 known deviation and 1 by design on twin:"),
        ([READS], "conforms except for 1 by design on twin: 1 pass, 1 xfail;"),
        ([WAITS, WAITS.replace("back", "far back")], "conforms except for 2 known deviations on"),
    ],
)
def test_known_deviations_are_no_part_of_conforming(expected: list[str], says: str) -> None:
    said = line(*(known(n, text) for n, text in enumerate(expected, 1)))
    assert said.startswith(f"vllm==0.33.0 {says}") and "not run: hopper" in said, said


def test_a_selection_says_so_and_names_them_too() -> None:
    said = line(known(1, WAITS), selection=True)
    assert "passes this selection except for 1 known deviation, which is no verdict" in said


def test_an_unexpected_pass_and_a_stale_entry_do_not_conform() -> None:
    passes = replace(PASSED, case="NUM-1/heads=16/1", expected=WAITS).but(Outcome.PASS, "")
    assert "does not conform on twin: 1 pass, 1 xpass" in line(passes)
    assert "does not conform" in line(stale=["vllm.toml, deviation 2: no case of it ran"])


def test_what_is_known_and_what_is_stale_is_shown() -> None:
    console = Console(record=True, width=200)
    verdict = Verdict([PASSED, known(1, WAITS)], ["twin"], stale=["vllm.toml, deviation 2: idle"])
    cli.show(verdict, "vllm", console)
    text = console.export_text()
    assert f"known deviation: {WAITS} [1 cases, NUM-1/heads=16/1 the first]" in text, text
    assert "stale: vllm.toml, deviation 2: idle" in text
    assert re.search(r"1 \+ 1 known / 240", text), text
