"""Every entry of the corpus: its subject still shows it, the backend does not, a run plays it."""

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance.core.case import parse
from conformance.core.catalogue import REQUIREMENTS
from conformance.core.lab import CheckFailed, Lab
from conformance.core.record import Outcome, Record, read_records
from conformance.core.subject import Subject, Unobservable
from conformance.core.worker import load_subject
from conformance.listing import case_ids
from conformance.tiers import VERSIONS, simulated, tier
from fuzz.failure import Finding
from fuzz.findings import kind
from fuzz.history import History, HistoryError
from fuzz.player import play
from fuzz.regressions import CORPUS, CorpusError, Regression, read, regressions
from fuzz.requirements.test_history import test_a_history_that_was_a_finding_is_none as judge
from fuzz.simpler import fewer_parts, fewer_requests, fewer_turns, settled
from fuzz.tests import blind

ROOT = Path(__file__).parents[2]
LEAST = 20
"""Entries on record; none may be dropped."""
ENTRIES = [pytest.param(entry, id=name) for name, entry in regressions().items()]


def found(history: History, subject: str, version: str) -> Finding | None:
    return play(history, load_subject(subject), tier("twin", version)).finding


@pytest.mark.parametrize("entry", ENTRIES)
def test_its_subject_shows_it_on_the_versions_that_it_names_and_no_other(entry: Regression) -> None:
    seen = {version: found(entry.history, entry.subject, version) for version in VERSIONS}
    showing = [v for v, finding in seen.items() if finding and kind(finding) == entry.kind]
    assert showing == list(entry.versions), seen
    for version in showing:
        finding = seen[version]
        assert finding is not None
        assert (finding.requirement, finding.fault) == (entry.requirement, entry.fault)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("entry", ENTRIES)
def test_the_backend_plays_it_without_a_finding(entry: Regression, version: str) -> None:
    seen = play(entry.history, load_subject(blind.REAL), tier("twin", version))
    assert seen.finding is None and seen.frames >= len(entry.history.turns)


@pytest.mark.parametrize("entry", ENTRIES)
def test_it_is_minimal(entry: Regression) -> None:
    """No turn, request or part can go, as long as each turn computes something."""
    whole = all(turn.parts for turn in entry.history.turns)
    assert settled(entry.history) == entry.history
    for move in (fewer_turns, fewer_requests, fewer_parts):
        for other in filter(None, map(settled, move(entry.history))):
            if whole and not all(turn.parts for turn in other.turns):
                continue
            finding = found(other, entry.subject, entry.versions[0])
            assert not finding or kind(finding) != entry.kind, f"{move.__name__}: {other}"


def test_the_corpus_is_of_many_mechanisms() -> None:
    entries = regressions().values()
    assert len(entries) >= LEAST
    assert len({(entry.subject, entry.kind) for entry in entries}) == len(entries)
    assert len({entry.history for entry in entries}) == len(entries)
    assert len({entry.requirement for entry in entries}) >= 8
    assert sum(entry.subject.startswith("conformance.") for entry in entries) >= 7


def test_hazards_are_known_ones() -> None:
    table = tomllib.loads((ROOT / "conformance" / "hazards.toml").read_text())
    known = {hazard["name"] for hazard in table["hazard"]}
    named = {entry.hazard for entry in regressions().values()} - {""}
    assert named <= known and len(named) >= 8


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_file_is_as_it_would_be_written(entry: Regression) -> None:
    assert (CORPUS / f"{entry.name}.json").read_text() == entry.dumps()


def test_the_suite_has_a_case_for_each_on_both_tiers() -> None:
    requirement = REQUIREMENTS["HIST-1"]
    assert requirement.twin == requirement.hopper == len(regressions()), (
        "to fix: HIST-1's minima in conformance/core/catalogue.py"
    )
    for name in ("twin", "hopper"):
        cases = [parse(case) for case in case_ids([name], ["HIST-1"])]
        assert sorted(case["how"] for case in cases) == sorted(regressions())
        for case in cases:  # where its finding could not be seen, its case would prove little
            assert simulated(case.number, "auto") in regressions()[case["how"]].versions


def lab(name: str, subject: Subject, kernels: str = "torch") -> Lab:
    return Lab(parse(f"HIST-1/how={name}/0"), subject, tier("twin"), kernels)


@pytest.mark.parametrize("name", ["kv-end-alone", "padded-rows-refused", "low-bound-unflagged"])
def test_the_judge_fails_with_the_finding(name: str) -> None:
    entry = regressions()[name]
    with pytest.raises(CheckFailed) as problem:
        judge(lab(name, load_subject(entry.subject)))
    text = str(problem.value)
    assert text.startswith(f"HIST-1/how={name}/0: turn ")
    for part in (entry.requirement, entry.history.case, f"--case 'HIST-1/how={name}/0'"):
        assert part in text, text


def test_the_judge_passes_the_backend_and_remembers_how_near() -> None:
    given = lab("bounds-after-late-rejections", load_subject(blind.REAL))
    judge(given)
    assert given.ratio is not None and 0 < given.ratio < 1


def test_what_a_subject_cannot_play_is_no_pass() -> None:
    subject = blind.faulty("Instance")
    subject.capabilities = subject.capabilities - {"capture"}
    with pytest.raises(Unobservable, match="capture"):
        judge(lab("grid-flips-with-padding", subject))
    with pytest.raises(Unobservable, match="flags"):
        judge(lab("low-bound-unflagged", blind.faulty("ShowsNoFlags")))
    with pytest.raises(Unobservable, match="scale-check"):
        judge(lab("other-scale-unflagged", load_subject("conformance.subjects.upstream:Sound")))


def conformance(folder: Path, *options: str) -> tuple[int, dict[str, Record]]:
    """Run HIST-1 on the twin; return the exit code and the records by entry."""
    command = [sys.executable, "-m", "conformance", "run", "--tier", "twin", "-n", "0"]
    command += ["--report", str(folder), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, {parse(r.case)["how"]: r for r in read_records(folder)}


def test_a_conformance_run_plays_the_corpus(tmp_path: Path) -> None:
    subject = "conformance.subjects.upstream:ClampsKvEnd"
    code, records = conformance(tmp_path, "--requirement", "HIST-1", "--subject", subject)
    assert code == 1
    assert set(records) == set(regressions())
    wrong = records["kv-end-alone"]
    assert wrong.outcome is Outcome.FAIL and "reads behind the valid entries" in wrong.message
    assert wrong.repro in wrong.message


def test_interpreted_kernels_play_the_corpus_too(tmp_path: Path) -> None:
    name = "host-split-on-the-device"
    code, records = conformance(tmp_path, "--kernels=interpret", f"--case=HIST-1/how={name}/0")
    assert (code, records[name].outcome, records[name].interpreted) == (0, Outcome.PASS, True)


def changed(change: Callable[[dict[str, Any]], Any]) -> str:
    table = json.loads((CORPUS / "kv-end-alone.json").read_text())
    change(table)
    return json.dumps(table)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "no JSON"),
        ("[]", "found list"),
        (changed(lambda t: t.pop("shows")), "an object of fault, hazard"),
        (changed(lambda t: t.update(more=1)), "more"),
        (changed(lambda t: t.update(schema="smla-corpus/0")), "'smla-corpus/1'"),
        (changed(lambda t: t.update(shows="")), "a sentence"),
        (changed(lambda t: t.update(subject=3)), "a string"),
        (changed(lambda t: t.update(subject="vllm")), "package.module:factory"),
        (changed(lambda t: t.update(versions=[])), "some of 0.6.18"),
        (changed(lambda t: t.update(versions=["0.7.4", "0.6.18"])), "in this order"),
        (changed(lambda t: t.update(versions=["9"])), "some of 0.6.18"),
        (changed(lambda t: t.update(requirement="READ-Z")), "an id of the catalogue"),
        (changed(lambda t: t.update(fault="low-bound")), "what is planted"),
        (changed(lambda t: t["history"].update(schema="x")), "smla-history/1"),
        (changed(lambda t: t["history"]["shape"].update(heads=0)), "heads"),
    ],
)
def test_a_file_that_is_no_entry_is_refused(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "kv-end-alone.json"
    path.write_text(text)
    with pytest.raises((CorpusError, HistoryError)) as problem:
        read(path)
    told = str(problem.value)
    assert says in told and str(path) in told and "allowed" in told and "to fix" in told


def test_a_name_is_part_of_a_case(tmp_path: Path) -> None:
    path = tmp_path / "a,b.json"
    path.write_text((CORPUS / "kv-end-alone.json").read_text())
    with pytest.raises(CorpusError, match="rename the file"):
        read(path)
    with pytest.raises(CorpusError, match="no JSON"):
        read(tmp_path / "absent.json")
