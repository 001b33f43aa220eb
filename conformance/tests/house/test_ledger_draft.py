"""A drafted ledger speaks of exactly what went wrong, and is none before a person mended it."""

from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from click.testing import CliRunner

from conformance.core.ledger import LedgerError, Situation, match
from conformance.core.ledger_text import parse
from conformance.core.record import Outcome, Record, RecordWriter
from conformance.ledger.cli import ledger_command
from conformance.ledger.draft import OPEN, draft, patterns
from conformance.listing import case_ids

CASES = case_ids(["twin"], ["NUM-4"])
WRONG = {case for case in CASES if "dtype=fp8" in case and "kpe=64" in case}


def record(case: str, outcome: Outcome, message: str = "") -> Record:
    """A record of `me` 2.0 on the twin."""
    return Record(
        case=case, requirement=case.partition("/")[0], tier="twin", subject="me", outcome=outcome,
        error=None, ratio=None, interpreted=False, message=message, repro="", flashinfer="0.7.4",
        subject_version="2.0",
    )  # fmt: skip


def records() -> list[Record]:
    """One kind of failure in WRONG, another one in one case beside."""
    other = next(case for case in CASES if case not in WRONG)
    words = {case: (Outcome.FAIL, f"{case}: off by 3") for case in WRONG}
    words[other] = (Outcome.CRASH, "ValueError: 7 rows")
    return [record(case, *words.get(case, (Outcome.PASS, ""))) for case in CASES]


def test_patterns_match_all_that_went_wrong_and_nothing_else() -> None:
    right = set(CASES) - WRONG
    found = patterns(WRONG, right)
    assert {case for case in CASES for p in found if fnmatchcase(case, p)} == WRONG
    assert len(found) < len(WRONG)


def test_what_no_dimension_tells_apart_is_named_in_full() -> None:
    assert patterns({CASES[0]}, set(CASES[1:])) == [CASES[0]]


def test_a_draft_is_no_ledger_until_mended() -> None:
    text = draft(records(), "me==2.0")
    with pytest.raises(LedgerError, match="kind"):
        parse(text, "draft")
    mended = text.replace(f'kind = "{OPEN}"', 'kind = "ours"')
    mended = mended.replace(f'evidence = "{OPEN}"', 'evidence = "seen in a test of the house"')
    entries = parse(mended.replace(f'why = "{OPEN}"', 'why = "drawn in that way"'), "d")
    for one in records():
        said = match(entries, Situation(one.case, "twin", "me", "2.0", "0.7.4"))
        assert (said.outcome if said else Outcome.PASS) == one.outcome


@pytest.mark.parametrize(
    ("outcome", "message", "sound"),
    [
        (Outcome.CRASH, "ValueError: 7 rows", True),
        (Outcome.CRASH, "mine.errors.NotPlanned: twice", True),
        (Outcome.CRASH, f"{CASES[0]}: the CUDA context is dead: CUDA error: illegal", False),
        (Outcome.CRASH, "its process died of SIGSEGV\nFatal Python error: abort", False),
        (Outcome.FAIL, "ValueError: 7 rows", False),
    ],
)
def test_a_crash_on_a_gpu_is_harmless_where_an_exception_says_so(
    outcome: Outcome, message: str, sound: bool
) -> None:
    on_gpu = replace(record(CASES[0], outcome, message), tier="hopper")
    assert ("harmless = true" in draft([on_gpu], "me")) is sound
    assert "harmless" not in draft([record(CASES[0], outcome, message)], "me")


def test_the_command_drafts_from_a_report(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "records-twin-1-main.jsonl", {})
    for one in records():
        writer.start(one)
        writer.add(one)
    writer.close()
    done = CliRunner().invoke(ledger_command, ["draft", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert done.output == draft(records(), "me==2.0")
