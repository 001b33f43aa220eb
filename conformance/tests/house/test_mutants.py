"""Mutants fit the sources and reach every room; the matrix says which requirement is first."""

from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from conformance.core.catalogue import ALIVE, REQUIREMENTS
from conformance.core.request import Request
from conformance.core.run import run
from conformance.core.verdict import Exit
from conformance.mutants.cli import OWN, mutants_command
from conformance.mutants.hunt import Fate, Finding, provable, without_kill
from conformance.mutants.matrix import Row, merged, proven, read_matrix, sample, write_matrix
from conformance.mutants.model import Mutant, MutantError, read_mutants
from conformance.mutants.show import matrix_lines

ROOT = Path(__file__).parents[3]
MUTANTS = read_mutants([OWN])
ROOMS = {
    "lengths": ("smla/lengths.py", 3),
    "bounds": ("smla/builder.py", 3),
    "reuse": ("smla/plan_state.py", 6),
    "clamp": ("smla/kernels/clamp.py", 5),
    "pack": ("smla/kernels/pack.py", 2),
    "convert": ("smla/kernels/convert.py", 6),
    "builder": ("smla/builder.py", 6),
    "routing": ("smla/builder.py", 6),
    "compatibility": ("smla/engines/flashinfer/compat.py", 2),
    "staging": ("smla/device_schedule.py", 4),
    "graphs": ("smla/captures.py", 1),
    "twin planner": ("conformance/twin/planner.py", 6),
    "twin kernel": ("conformance/twin/kernel.py", 3),
    "golden": ("golden/oracle.py", 4),
    "draws": ("golden/draw.py", 4),
    "tolerance": ("golden/tolerance.py", 6),
    "scale": ("smla/scale.py", 3),
    "admission": ("smla/admission.py", 2),
    "canaries": ("conformance/canary/planting.py", 2),
}
"""By room: the file that it stands for, and how many mutants of it there are at least."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_a_mutant_fits_the_sources_and_says_what_is_lost(mutant: Mutant) -> None:
    found = (ROOT / mutant.file).read_text().count(mutant.old)
    assert found == 1, f"its old text stands {found} times in {mutant.file}"
    assert mutant.file.split("/")[:2] != ["conformance", "tests"], "a judge is no mutant's place"
    assert len(mutant.why) > 30 and mutant.why.endswith("."), f"no sentence: {mutant.why!r}"


def test_no_bytecode_of_an_edited_file_is_left(tmp_path: Path) -> None:
    cache = tmp_path / "smla" / "__pycache__"
    cache.mkdir(parents=True)
    (tmp_path / "smla" / "lengths.py").write_text("ONE = 1\n")
    for name in ("lengths.cpython-311.pyc", "lengths.cpython-313-pytest-9.pyc", "scale.pyc"):
        (cache / name).write_bytes(b"")
    Mutant("one", "smla/lengths.py", "= 1", "= 2", "LEN-1", "").apply(tmp_path)
    assert [path.name for path in cache.iterdir()] == ["scale.pyc"]
    assert (tmp_path / "smla" / "lengths.py").read_text() == "ONE = 2\n"


def test_no_edit_counts_twice() -> None:
    edits = Counter((mutant.file, mutant.old, mutant.new) for mutant in MUTANTS)
    assert [edit for edit, count in edits.items() if count > 1] == []
    assert len(MUTANTS) >= 100


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_has_its_mutants(room: str) -> None:
    file, least = ROOMS[room]
    names = [mutant.name for mutant in MUTANTS if mutant.file == file]
    assert len(names) >= least, f"{file}: {names}"


def test_every_requirement_is_named_by_a_mutant() -> None:
    assert set(provable()) == {id for id, r in REQUIREMENTS.items() if r.twin} - {ALIVE}
    named = {mutant.requirement for mutant in MUTANTS}
    assert [id for id in provable() if id not in named] == []


def a_row(name: str, killed: str, broken: str = "", tried: str = "A B C D", **more: object) -> Row:
    fields: dict[str, object] = {
        "mutant": name,
        "digest": "d",
        "requirement": "C",
        "lane": "torch",
        "cases_per_id": 1,
        "tried": tried.split(),
        "killed": {id: f"{id}/0" for id in killed.split()},
        "broken": {id: f"{id}/0" for id in broken.split()},
        "environment": {"commit": "x"},
        **more,
    }
    return Row(**fields)  # type: ignore[arg-type]


def test_the_first_to_notice_is_first_in_the_catalogue() -> None:
    order = "A B C D".split()
    assert a_row("m", "D C").first_killer(order) == "C"
    assert a_row("m", "").first_killer(order) is None
    assert a_row("m", "C", broken="B").first_killer(order) is None, "breaking is noticing"
    assert a_row("m", "C", broken="D").first_killer(order) == "C"
    assert a_row("m", "C", tried="A C D").first_killer(order) is None, "B might have noticed"
    assert a_row("m", "C", tried="A B C").first_killer(order) == "C"
    by = proven([a_row("m", "C D"), a_row("n", "D"), a_row("o", "C")], order)
    assert by == {"A": [], "B": [], "C": ["m", "o"], "D": ["n"]}


def test_the_matrix_shows_each_mark() -> None:
    *_, line, marks, _a, _b, c, _d = matrix_lines(
        [a_row("m", "C D", tried="A B C D".replace("A ", ""))], "A B C D".split()
    )
    assert line == "m  -.xx" and "#" in marks and c.endswith("none")
    shown = list(matrix_lines([a_row("m", "C", broken="D")], "A B C D".split()))
    assert "m  ..#!" in shown and "C: first to notice m" in shown
    assert list(matrix_lines([], ["A"])) == []


def test_a_matrix_file_is_read_as_written_and_merged_by_digest(tmp_path: Path) -> None:
    file, (one, two, *_) = tmp_path / "matrix.json", MUTANTS
    old = a_row(one.name, "C", digest=one.digest)
    stale = a_row(two.name, "C", digest="of another text")
    new = a_row(one.name, "B", digest=one.digest, environment={"commit": "y"})
    write_matrix(file, [old, stale])
    assert read_matrix(file) == [old, stale]
    assert merged(read_matrix(file), [new], MUTANTS) == [new], "the newer one; stale ones go"
    write_matrix(file, [new])
    assert read_matrix(file) == [new]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "smla-kill-matrix/0", "rows": []}'])
def test_another_matrix_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(MutantError, match=r"m\.json"):
        read_matrix(tmp_path / "m.json")


def test_a_sample_has_all_of_the_named_and_some_of_the_others() -> None:
    ids = ["LEN-1", "PLAN-1", "NUM-9"]
    counts = Counter(case.split("/")[0] for case in sample(2, [ALIVE, "PLAN-1"], ids))
    assert counts == {ALIVE: 8, "LEN-1": 2, "PLAN-1": 24, "NUM-9": 2}
    counts = Counter(case.split("/")[0] for case in sample(0, [ALIVE], ids))
    assert counts == {ALIVE: 8, "LEN-1": 60, "PLAN-1": 24, "NUM-9": 60}


def test_an_id_is_proven_by_a_kill_and_nothing_less() -> None:
    by = {mutant.requirement: mutant for mutant in MUTANTS}
    findings = [Finding(by[id], Fate.KILLED, "", "") for id in provable()]
    assert without_kill(findings) == []
    for fate in (Fate.SURVIVED, Fate.INVALID, Fate.NOT_RUN):
        assert without_kill([*findings[:-1], Finding(by[provable()[-1]], fate, "", "")]) == [
            provable()[-1]
        ]
    assert without_kill([]) == provable()


def said(*arguments: str) -> Result:
    return CliRunner().invoke(mutants_command, [*arguments])


TABLE = """
[[mutant]]
name = "{name}"
file = "smla/lengths.py"
old = "{old}"
new = "b"
requirement = "{requirement}"
why = "c"
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no mutant"),
        ("[[mutant]]\nname = 'x'", "needs the strings"),
        ("[[mutant", "Expected"),
        (TABLE.format(name="x", old="a", requirement="NUM-99"), "NUM-99"),
        (TABLE.format(name="x", old="a", requirement=ALIVE), ALIVE),
        (TABLE.format(name="x", old="b", requirement="LEN-1"), "changes nothing"),
        (TABLE.format(name="x", old="a", requirement="LEN-1") * 2, "two mutants of one name: x"),
        (TABLE.format(name="x", old="no such text", requirement="LEN-1"), "stands 0 times"),
    ],
)
def test_a_file_that_is_not_sound_is_the_suites_failure(
    tmp_path: Path, text: str, words: str
) -> None:
    file = tmp_path / "some.toml"
    file.write_text(text)
    result = said("--mutants", str(file), "--matrix", "-n", "1")
    assert result.exit_code == Exit.SUITE_FAILED and words in result.output, result.output


def test_strangers_files_and_folders_add_up_and_may_not_clash(tmp_path: Path) -> None:
    for name in "yx":
        (tmp_path / f"{name}.toml").write_text(
            TABLE.format(name=name, old="a", requirement="LEN-1")
        )
    assert [m.name for m in read_mutants([tmp_path])] == ["x", "y"]
    with pytest.raises(MutantError, match="two mutants of one name: x"):
        read_mutants([tmp_path, tmp_path / "x.toml"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--name", "no-such-mutant"], "no-such-mutant"),
        (["--matrix-file", "x.json"], "--matrix"),
        (["--merge", "x.json"], "--matrix-file"),
        (["--mutants", "absent.toml"], "absent.toml"),
    ],
)
def test_a_wrong_question_is_the_suites_failure(arguments: list[str], words: str) -> None:
    result = said(*arguments)
    assert result.exit_code == Exit.SUITE_FAILED and words in result.output, result.output


def test_files_of_parts_merge_and_what_is_missing_is_said(tmp_path: Path) -> None:
    parts = tmp_path / "a.json", tmp_path / "b.json"
    rows = [
        a_row(m.name, m.requirement, requirement=m.requirement, digest=m.digest,
              tried=" ".join(provable()))
        for m in MUTANTS
    ]  # fmt: skip
    write_matrix(parts[0], rows[::2])
    write_matrix(parts[1], rows[1::2])
    whole = tmp_path / "whole.json"
    merge = [argument for part in parts for argument in ("--merge", str(part))]
    result = said(*merge, "--matrix-file", str(whole))
    assert result.exit_code == Exit.CONFORMS, result.output
    assert read_matrix(whole) == rows
    half = said("--merge", str(parts[0]), "--matrix-file", str(tmp_path / "half.json"))
    assert half.exit_code != Exit.CONFORMS and f"without a row: {MUTANTS[1].name}" in half.output
    write_matrix(whole, [row for row in rows if row.requirement != "NUM-9"])
    result = said("--merge", str(whole), "--matrix-file", str(tmp_path / "less.json"))
    assert result.exit_code == Exit.DOES_NOT and "unproven: NUM-9" in result.output


def test_one_failure_of_each_requirement_is_enough_where_asked(tmp_path: Path) -> None:
    request = Request(
        subject="conformance.subjects.upstream:StalePlan",
        tier="twin",
        requirements=["PLAN-14", "LEN-1"],
        kernels="torch",
        workers="0",
        report=tmp_path,
        first_failure_each=True,
    )
    records = run(request).records
    of = {
        id: Counter(str(r.outcome) for r in records if r.requirement == id)
        for id in ("PLAN-14", "LEN-1")
    }
    assert of["PLAN-14"]["fail"] == 1 and of["PLAN-14"]["skipped"] >= 30, of
    assert of["LEN-1"] == {"pass": 60}
    why = {r.message for r in records if r.outcome == "skipped"}
    assert why == {"a check of PLAN-14 has failed before"}
