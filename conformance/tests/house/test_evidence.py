"""What a GPU proved is kept as records beside the docs; cases and ledger still agree with it.

No GPU here: the records are read, and what they say is held against this state of the suite.
"""

import json
import tarfile
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from conformance.core.ledger import Situation, match
from conformance.core.record import Expected
from conformance.ledger.files import ledger_of
from conformance.listing import case_ids

EVIDENCE = Path(__file__).parents[3] / "docs" / "evidence"
BOTH, SMLA = EVIDENCE / "h200.tar.xz", EVIDENCE / "h200-smla.tar.xz"
"""Of both subjects; and a newer one, of smla alone."""
NEWER = EVIDENCE / "h200-vllm-newer.tar.xz"
"""Of vLLM's class on one version, with what is newer than the records of both."""

VERSIONS = ("0.6.18", "0.7.0", "0.7.2.post1", "0.7.4")
NOT_SEEN: frozenset[str] = frozenset()
"""Requirements of which some case is newer than smla's records: to be run on a GPU, and the
README's 'Not seen' says so."""
NOT_SEEN_OF_BOTH = frozenset({"GRAPH-7", "HIST-1", "NUM-10", "NUM-11", "ROB-6"})
"""The same of the records of both, and of the twin's beside them."""
NOT_SEEN_OF_TWIN = frozenset({"SUITE-3", "SUITE-5", "TWIN-3"})
"""Requirements of the twin alone of which some case is newer than its records."""

Table = dict[str, Any]


@cache
def files(archive: Path, tier: str = "hopper") -> list[tuple[Table, list[Table]]]:
    """Return each record file's environment and records, of a tier."""
    found = []
    with tarfile.open(archive) as opened:
        for member in opened:
            if not member.name.endswith(".jsonl"):
                continue
            content = opened.extractfile(member)
            assert content is not None
            lines = [json.loads(line) for line in content.read().splitlines()]
            assert [line["kind"] for line in (lines[0], lines[-1])] == ["header", "footer"]
            records = [line for line in lines if line["kind"] == "record"]
            if records and records[0]["tier"] == tier:
                found.append((lines[0]["environment"], records))
    return found


def seen(archive: Path, subject: str, version: str) -> list[Table]:
    """Return an archive's records of a subject on a FlashInfer version."""
    return [
        record
        for _, records in files(archive)
        for record in records
        if record["subject"].partition("@")[0] == subject and record["flashinfer"] == version
    ]


@pytest.mark.parametrize("archive", [BOTH, SMLA, NEWER], ids=["both", "smla", "newer"])
def test_the_records_are_of_one_suite_on_a_hopper_gpu(archive: Path) -> None:
    found = files(archive)
    assert {tuple(e["gpu"]["capability"]) for e, _ in found} == {(9, 0)}
    assert len({(e["commit"], e["sources"], e["gpu"]["name"]) for e, _ in found}) == 1
    for environment, records in found:
        assert {record["flashinfer"] for record in records} == {environment["flashinfer"]}


def test_the_twin_s_records_are_of_the_same_suite_and_all_pass() -> None:
    found = files(BOTH, "twin")
    assert {e["sources"] for e, _ in found} == {e["sources"] for e, _ in files(BOTH)}
    assert {record["outcome"] for _, records in found for record in records} == {"pass"}
    cases = {record["case"] for _, records in found for record in records}
    newer = {case.partition("/")[0] for case in set(case_ids(["twin"])) - cases}
    assert newer <= NOT_SEEN_OF_BOTH | NOT_SEEN_OF_TWIN


@pytest.mark.parametrize("version", VERSIONS)
def test_the_backend_passed_every_case(version: str) -> None:
    outcomes = defaultdict(set)
    for record in seen(SMLA, "smla", version):
        outcomes[record["case"]].add(record["outcome"])
    assert {case: found for case, found in outcomes.items() if found != {"pass"}} == {}
    newer = {case.partition("/")[0] for case in set(case_ids(["hopper"])) - set(outcomes)}
    assert newer == NOT_SEEN


def test_the_ledger_says_what_was_seen_of_vllm_and_nothing_else() -> None:
    ledger = ledger_of(subjects={"vllm"})
    used = set()
    for version in ("0.7.2.post1", "0.7.4"):
        records = seen(BOTH, "vllm", version)
        newer = {case.partition("/")[0] for case in case_ids(["hopper"])}
        newer = newer - {record["requirement"] for record in records}
        assert newer <= NOT_SEEN_OF_BOTH
        for record in records:
            own = record["subject_version"]
            entry = match(ledger, Situation(record["case"], "hopper", "vllm", own, version))
            used.add(entry)
            expected = Expected.read(record["expected"])
            assert (entry and entry.outcome) == (expected and expected.outcome), record["case"]
            assert (record["outcome"] == "xfail") == (entry is not None), record["case"]
    for record in seen(NEWER, "vllm", "0.7.2.post1"):
        if record["requirement"] in NOT_SEEN_OF_BOTH:
            own, outcome = record["subject_version"], record["outcome"]
            entry = match(ledger, Situation(record["case"], "hopper", "vllm", own, "0.7.2.post1"))
            used.add(entry)
            judged = outcome if outcome not in ("xfail", "unobservable", "pass") else ""
            if judged:  # the entry was written of this record
                assert entry and entry.outcome == judged, record["case"]
            elif outcome == "pass":
                assert entry is None, record["case"]
    assert {entry for entry in ledger if entry.tier == "hopper"} == used - {None}
