"""A ledger is sound or refused, and says what it says of exactly the cases that it names."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from conformance.core.ledger import Deviation, LedgerError, Situation, lint, match, stale
from conformance.core.ledger_text import KEYS, parse
from conformance.core.record import Expected, Outcome, Record, settled
from conformance.ledger.cli import ledger_command
from conformance.ledger.files import HERE, ledger_of
from conformance.tiers import VERSIONS

SOUND = {
    "cases": "PLAN-8/*",
    "subject": "vllm==0.33.0",
    "flashinfer": "==0.7.4",
    "tier": "twin",
    "outcome": "fail",
    "kind": "upstream",
    "evidence": "24 of 24 cases fail: run --subject vllm on a CPU, 2026-11-30",
    "why": "plan() reads the extreme indices back from the device",
}
CASES = {
    "twin": ["PLAN-8/how=plan/0", "PLAN-8/how=idle/1", "NUM-1/dtype=bf16/0"],
    "hopper": ["PLAN-8/how=plan/0"],
}


def toml(**changed: object) -> str:
    table = {**SOUND, **changed}
    lines = [f"{key} = {value!r}" for key, value in table.items() if value is not None]
    return "\n".join(["[[deviation]]", *lines, ""])


def entry(**changed: object) -> Deviation:
    (read,) = parse(toml(**changed), "x.toml")
    return read


def there(**changed: str) -> Situation:
    plain = Situation("PLAN-8/how=plan/0", "twin", "vllm", "0.33.0", "0.7.4")
    return replace(plain, **changed)


def test_a_sound_entry_is_read() -> None:
    got = entry()
    assert (got.subject, got.versions, got.cases) == ("vllm", "==0.33.0", ("PLAN-8/*",))
    assert entry(cases=["PLAN-8/*", "NUM-?/*"]).cases == ("PLAN-8/*", "NUM-?/*")
    assert Deviation.from_table(got.table()) == got
    own = entry(subject="my.package:factory >= 2, < 3")
    assert (own.subject, own.versions) == ("my.package:factory", ">= 2, < 3")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[deviation]\n", "no TOML"),
        ("deviation = 3\n", "the keys"),
        ("[other]\nx = 1\n", "the keys"),
        ("deviation = [3]\n", "keys missing"),
        (toml(when="today"), r"keys unknown \['when'\]"),
        (toml(evidence=None), r"keys missing \['evidence'\]"),
        (toml(cases=[]), "cases: found"),
        (toml(cases=3), "cases: found 3"),
        (toml(cases="PLAN-99/*"), "the requirement 'PLAN-99'"),
        (toml(cases=["PLAN-8/*", "XYZ"]), "the requirement 'XYZ'"),
        (toml(subject="vllm=0.33"), "subject: found"),
        (toml(subject="==0.33"), "subject: found"),
        (toml(subject="vllm==x.y"), "subject: found"),
        (toml(subject="vllm===0.33.0"), "subject: found"),
        (toml(flashinfer="0.7.4"), "flashinfer: found"),
        (toml(tier="moon"), "tier: found 'moon'"),
        (toml(outcome="pass"), "outcome: found 'pass'"),
        (toml(kind="theirs"), "kind: found 'theirs'"),
        (toml(evidence=""), "evidence: found"),
        (toml(evidence="seen it"), "evidence: found"),
        (toml(evidence="TODO: run it on a GPU and say what was seen there"), "evidence: found"),
        (toml(evidence="what was seen, with which command, where, when"), "evidence: found"),
        (toml(why="broken"), "why: found"),
        (toml(tier=3), "tier: found 3"),
        (toml(outcome="crash") + "harmless = 1\n", "harmless: found 1"),
        (toml(outcome="crash") + 'harmless = "no"\n', "harmless: found 'no'"),
        (toml(outcome="hang") + "harmless = true\n", "harmless: found True of a hang"),
    ],
)
def test_a_malformed_ledger_is_refused(text: str, says: str) -> None:
    with pytest.raises(LedgerError, match=says) as problem:
        parse(text, "mine.toml")
    for part in ("mine.toml", "found", "allowed", "to fix"):
        assert part in str(problem.value), problem.value


def test_the_second_entry_is_named() -> None:
    with pytest.raises(LedgerError, match=r"mine.toml, deviation 2, kind"):
        parse(toml() + toml(kind="x"), "mine.toml")


@pytest.mark.parametrize(
    ("pattern", "tier"), [("PLAN-8/how=walk/*", "any"), ("NUM-1/*", "hopper"), ("SMOKE/*", "any")]
)
def test_an_entry_without_a_case_is_refused(pattern: str, tier: str) -> None:
    with pytest.raises(LedgerError, match="matches no case"):
        lint([entry(cases=pattern, tier=tier)], CASES)
    with pytest.raises(LedgerError, match="matches no case"):
        lint([entry(cases=["PLAN-8/*", pattern], tier=tier)], CASES)


def test_an_entry_for_a_version_that_the_twin_has_not_is_refused() -> None:
    with pytest.raises(LedgerError, match="no version that the twin simulates"):
        lint([entry(flashinfer="==0.7.3")], CASES, VERSIONS)
    lint([entry(flashinfer="==0.7.3", tier="hopper"), entry(flashinfer=">0.7")], CASES, VERSIONS)


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"cases": "PLAN-8/how=plan/*"},
        {"tier": "any", "outcome": "hang"},
        {"subject": "vllm"},
        {"subject": "vllm>=0.30,<1"},
        {"flashinfer": ""},
        {"flashinfer": ">0.7.2"},
        {"flashinfer": "~=0.7.0"},
        {"flashinfer": "==0.7.*"},
    ],
    ids=str,
)
def test_two_entries_for_one_case_are_refused(other: dict[str, str]) -> None:
    ledger = parse(toml() + toml(**other), "x.toml")
    with pytest.raises(LedgerError, match=r"x.toml, deviation 2 .* x.toml, deviation 1"):
        lint(ledger, CASES)


@pytest.mark.parametrize(
    "other",
    [
        {"cases": "NUM-1/*"},
        {"tier": "hopper"},
        {"subject": "vllm<0.33"},
        {"subject": "another"},
        {"flashinfer": "!=0.7.4"},
        {"flashinfer": "<0.7.4"},
        {"flashinfer": ">0.7.4"},
    ],
    ids=str,
)
def test_two_entries_for_different_cases_are_sound(other: dict[str, str]) -> None:
    lint(parse(toml() + toml(**other), "x.toml"), CASES)


def test_ranges_that_share_no_named_version_overlap() -> None:
    ledger = parse(toml(flashinfer=">0.6,<0.8") + toml(flashinfer=">0.7,<0.9"), "x.toml")
    with pytest.raises(LedgerError, match="the case"):
        lint(ledger, CASES)


@pytest.mark.parametrize(
    ("elsewhere", "found"),
    [
        ({}, True),
        ({"case": "PLAN-9/how=4/0"}, False),
        ({"tier": "hopper"}, False),
        ({"subject": "smla"}, False),
        ({"version": "0.33.1"}, False),
        ({"version": ""}, False),
        ({"version": "0.33.0+cu130"}, True),
        ({"version": "of today"}, False),
        ({"flashinfer": "0.7.2.post1"}, False),
        ({"flashinfer": ""}, False),
    ],
    ids=str,
)
def test_it_speaks_of_its_own_situation_alone(elsewhere: dict[str, str], found: bool) -> None:
    assert (match([entry()], there(**elsewhere)) is not None) is found


def test_a_name_alone_is_any_version() -> None:
    wide = entry(subject="vllm", flashinfer="", tier="any")
    for version in ("", "of today", "0.33.0rc1"):
        assert wide.speaks_of(there(version=version, flashinfer=version, tier="hopper"))


def test_only_its_very_word_is_excused() -> None:
    known = entry().expected
    assert Expected.read(known) == Expected("fail", "upstream", SOUND["why"])
    for outcome in Outcome:
        assert settled(outcome, "") is outcome
    changed = {Outcome.FAIL: Outcome.XFAIL, Outcome.PASS: Outcome.XPASS}
    for outcome in Outcome:
        assert settled(outcome, known) is changed.get(outcome, outcome)


@pytest.mark.parametrize(
    ("outcome", "tier", "harms"),
    [
        ("hang", "twin", True),
        ("hang", "hopper", True),
        ("crash", "twin", False),
        ("crash", "hopper", True),
        ("fail", "hopper", False),
        ("refused", "hopper", False),
    ],
)
def test_what_harms_others(outcome: str, tier: str, harms: bool) -> None:
    assert entry(outcome=outcome, tier="any").endangers(tier) is harms


def test_a_crash_that_leaves_the_gpu_sound_may_share_its_process() -> None:
    text = toml(outcome="crash", tier="any") + "harmless = true\n"
    (read,) = parse(text, "x.toml")
    assert not read.endangers("hopper")
    assert Deviation.from_table(read.table()) == read


def record(case: str, outcome: Outcome, flashinfer: str = "0.7.4", tier: str = "twin") -> Record:
    return Record(
        case, case.partition("/")[0], tier, "vllm==0.33.0", outcome, None, None, False, "", "again",
        flashinfer=flashinfer,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("records", "is_stale"),
    [
        ([record("PLAN-8/how=plan/0", Outcome.XFAIL)], False),
        ([record("PLAN-8/how=plan/0", Outcome.CRASH)], False),
        ([record("NUM-1/dtype=bf16/0", Outcome.PASS)], True),
        ([record("PLAN-8/how=plan/0", Outcome.SKIPPED)], True),
        ([record("PLAN-8/how=plan/0", Outcome.UNOBSERVABLE)], True),
        ([record("PLAN-8/how=plan/0", Outcome.PASS, "0.7.0")], False),
        ([record("PLAN-8/how=plan/0", Outcome.PASS, tier="hopper")], False),
        (
            [
                record("PLAN-8/how=plan/0", Outcome.PASS, "0.7.0"),
                record("NUM-1/dtype=bf16/0", Outcome.PASS),
            ],
            True,
        ),
        ([], False),
    ],
)
def test_an_entry_for_what_ran_needs_a_case_that_ran(records: list[Record], is_stale: bool) -> None:
    assert bool(stale([entry()], records, "vllm", "0.33.0")) is is_stale
    assert stale([entry()], records, "vllm", "0.32.0") == []


def test_the_committed_ledger_is_sound() -> None:
    for found in ledger_of():
        assert Path(found.source).stem == found.subject, f"{found.where}: a file per subject"
    assert {path.suffix for path in HERE.iterdir()} <= {".toml", ".py", ""}


def test_a_caller_s_own_is_checked_beside_it(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(toml(subject="my.package:factory", cases="PLAN-8/*"))
    shown = CliRunner().invoke(ledger_command, ["check", str(mine)])
    assert shown.exit_code == 0 and "the ledger is sound" in shown.output, shown.output
    cells = "".join(re.findall(r"^│ (\S+) ", shown.output, re.M))
    assert "my.package:factory" in cells, shown.output
    with pytest.raises(LedgerError, match="of which"):
        ledger_of([mine, mine])
    mine.write_bytes(b"\xff\xfe")
    with pytest.raises(LedgerError, match="no readable file"):
        ledger_of([mine])


def test_every_key_is_needed() -> None:
    assert set(SOUND) == set(KEYS)
