"""`list` tells what a full run makes, `explain` what every requirement means; neither lags."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from conformance import explain, listing
from conformance.core.case import parse
from conformance.core.catalogue import REQUIREMENTS
from conformance.core.run import JUDGES, SuiteError

ROOT = Path(__file__).parents[3]


def said(command: object, *arguments: str) -> str:
    result = CliRunner().invoke(command, [*arguments])  # type: ignore[arg-type]
    assert result.exit_code == 0, f"{arguments}: {result.output}{result.exception!r}"
    return result.output


def test_every_requirement_has_an_explanation_and_no_other() -> None:
    texts = set(explain.explanations())
    assert texts == set(REQUIREMENTS), (
        f"without an explanation: {sorted(set(REQUIREMENTS) - texts)}; explained but not in the "
        f"catalogue: {sorted(texts - set(REQUIREMENTS))}"
    )


def test_every_requirement_has_a_judge() -> None:
    judged = {judge.requirement for judge in listing.judges()}
    assert judged == set(REQUIREMENTS)


@pytest.mark.parametrize("id", sorted(explain.explanations()))
def test_an_explanation_is_whole(id: str) -> None:
    text = explain.explanations()[id]
    for part in (text.how, text.failure, text.next):
        assert len(part) > 40 and part.endswith("."), f"{id}: not a sentence: {part!r}"
    strange = set(text.detectors) - set(explain.detectors())
    assert text.detectors and not strange, f"{id}: no such detectors: {strange}"
    absent = [name for name in text.files if not (ROOT / name).is_file()]
    assert text.files and not absent, f"{id}: no such files: {absent}"


def test_every_detector_is_used() -> None:
    used = {name for text in explain.explanations().values() for name in text.detectors}
    assert used == set(explain.detectors())


@pytest.mark.parametrize("id", sorted(REQUIREMENTS))
def test_explain_says_all_of_it(id: str) -> None:
    shown = " ".join(said(explain.explain_command, id).split())
    text = explain.explanations().get(id)
    if text is None:
        pytest.fail(f"no explanation of {id}")
    for part in (REQUIREMENTS[id].sentence, text.how, text.failure, text.next, *text.files):
        assert " ".join(part.split()) in shown, f"{id}: not shown: {part}"
    assert f"--requirement {id}" in shown, "a command to run it"


def test_explain_takes_a_case() -> None:
    case = listing.case_ids(["twin"], ["NUM-1"])[3]
    shown = said(explain.explain_command, case)
    assert REQUIREMENTS["NUM-1"].sentence in shown and f"--case '{case}'" in shown
    assert "by a full run on twin and hopper" in shown
    for name, value in parse(case).values.items():
        assert f"{name} = {value}" in shown


@pytest.mark.parametrize("id", ["NUM-99", "NUM-99/dtype=bf16/1", "NUM-1/colour=red/1"])
def test_explain_refuses_what_is_unknown(id: str) -> None:
    problem = CliRunner().invoke(explain.explain_command, [id]).exception
    assert problem is not None and not isinstance(problem, SystemExit), problem
    assert re.search("allowed|known", str(problem)), f"no remedy: {problem}"


def test_list_gives_each_id_once_and_as_many_as_needed() -> None:
    ids = said(listing.list_command, "--tier", "twin").split()
    assert len(ids) == len(set(ids))
    for id, requirement in REQUIREMENTS.items():
        count = sum(parse(case).requirement == id for case in ids)
        assert count >= requirement.twin, f"{id}: {count} cases of at least {requirement.twin}"


def test_list_takes_requirements_and_tiers() -> None:
    ids = said(listing.list_command, "--requirement", "LEN-1", "--requirement", "NUM-9").split()
    assert {parse(id).requirement for id in ids} == {"LEN-1", "NUM-9"}
    assert said(listing.list_command, "--tier", "hopper", "--requirement", "TWIN-2") == ""
    with pytest.raises(SuiteError, match="NUM-1,"):
        listing.known("NUM-99")


def test_list_counts() -> None:
    table = said(listing.list_command, "--count", "--requirement", "TWIN-1")
    for part in ("TWIN-1", REQUIREMENTS["TWIN-1"].sentence[:30], "25", "50", "1 requirements"):
        assert part in table, table


def test_a_full_run_makes_what_list_says(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", *map(str, JUDGES), "--collect-only", "-q", "-n", "0"]
    command += ["-p", "conformance.core.plugin", "-p", "no:cacheprovider", "-c", os.devnull]
    command += ["--rootdir", str(ROOT), "--tier", "twin", "--subject", "none:none"]
    command += ["--report", str(tmp_path)]
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    made = re.findall(r"^\S+::\w+\[(.+)\]$", done.stdout, re.M)
    assert made, done.stdout[-2000:] + done.stderr[-2000:]
    assert sorted(made) == sorted(listing.case_ids(["twin"]))
