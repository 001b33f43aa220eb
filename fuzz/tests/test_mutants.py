"""History mutants: no single step shows them, drawn histories do, and the figures are today's."""

import itertools
import json
import statistics
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from conformance.listing import case_ids
from conformance.mutants.cli import OWN as SINGLE_STEP_MUTANTS
from conformance.mutants.model import Mutant, MutantError, read_mutants
from fuzz.mutants import hunt, lane, single, table
from fuzz.mutants.cli import OWN
from fuzz.mutants.counting import Counting
from fuzz.mutants.lane import Lane, walk
from fuzz.mutants.table import LEAST, MOST, STARTS, Row
from fuzz.tests.blind import REAL, Faulty, Instance, TrustsBounds

ROOT = Path(__file__).parents[2]
MUTANTS = read_mutants([OWN])
ROWS = table.read_table()
SINGLE = single.read_single()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_a_mutant_fits_and_is_measured(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text().count(mutant.old) == 1
    assert mutant.file.startswith("smla/"), "the fuzzer must find what is wrong in the backend"
    assert len(mutant.why) > 40 and mutant.why.endswith("."), f"no sentence: {mutant.why!r}"
    row = ROWS[mutant.name]
    assert row.current(mutant), "edit or drawing changed: python -m fuzz mutants --all-seeds"
    assert row.median <= MOST
    for start, found in zip(STARTS, row.lanes, strict=True):
        assert found.start == start and found.histories <= MOST
        assert found.found or found.histories == MOST, "a lane goes on until a finding"
    assert SINGLE.has(mutant), "edit or cases changed: python -m fuzz mutants --single-step"


def test_there_are_enough_of_many_kinds() -> None:
    edits = Counter(
        (m.file, m.old, m.new) for m in [*MUTANTS, *read_mutants([SINGLE_STEP_MUTANTS])]
    )
    assert [edit for edit, count in edits.items() if count > 1] == []
    assert len(MUTANTS) >= 20
    files = Counter(mutant.file for mutant in MUTANTS)
    assert len(files) >= 4 and max(files.values()) <= 2 / 3 * len(MUTANTS), files
    assert len({(mutant.file, mutant.old) for mutant in MUTANTS}) >= 20, "places of the sources"


def test_the_same_seeds_find_nothing_without_a_mutant() -> None:
    row, most = ROWS[""], hunt.needed({m.name: ROWS[m.name] for m in MUTANTS})
    assert row.current(None)
    for found in row.lanes:
        assert (found.found, found.crashes) == ("", 0)
        assert found.histories >= max(LEAST, most[found.start])


def test_seeds_lie_far_apart() -> None:
    assert len(STARTS) == 10
    assert min(b - a for a, b in itertools.pairwise(STARTS)) > 10 * MOST


def test_the_cases_are_those_of_today() -> None:
    cases = case_ids(["twin"])
    assert Counter(map(SINGLE.uses, cases)).keys() == {0, 1, 2}
    listed = [len(n) for part in (SINGLE.none, SINGLE.one, SINGLE.many) for n in part.values()]
    assert sum(listed) == len(cases), "a case in the list is no more"
    assert len(SINGLE.cases()) > 2000


def test_cases_are_told_apart_by_counting() -> None:
    first: dict[tuple[str, int], str] = {}
    for case in case_ids(["twin"]):
        first.setdefault((case.partition("/")[0], SINGLE.uses(case)), case)
    chosen = [case for (id, _), case in first.items() if id.partition("-")[0] != "SUITE"][::6]
    # A construction that tries one batch and then another is two steps.
    chosen += [case for (id, _), case in first.items() if id == "ADMIT-4"]
    assert {SINGLE.uses(case) for case in chosen} == {0, 1, 2} and SINGLE.uses(chosen[-1]) == 2
    most = single.uses([word for case in chosen for word in ("--case", case)])
    assert {case: min(count, 2) for case, count in most.items()} == {
        case: SINGLE.uses(case) for case in chosen
    }


def test_a_case_that_is_not_listed_is_told_of() -> None:
    with pytest.raises(MutantError, match="--count"):
        SINGLE.uses("LEN-1/geo=tiny,lens=mixed,loss=draft/99999")


def test_what_passed_is_forgotten_when_edit_or_cases_change() -> None:
    mutant = MUTANTS[0]
    assert not SINGLE.has(replace(mutant, new=mutant.new + "# "))
    fewer = replace(SINGLE, one={**SINGLE.one, "LEN-1": SINGLE.one["LEN-1"][1:]},
                    many={**SINGLE.many, "LEN-1": [SINGLE.one["LEN-1"][0]]})  # fmt: skip
    assert not fewer.has(mutant) and fewer.with_passed([mutant], MUTANTS).has(mutant)


def test_a_row_is_stale_once_edit_drawing_or_seeds_change() -> None:
    mutant = MUTANTS[0]
    row = Row(mutant.name, mutant.digest, table.drawing(), [lane_of(s, 7) for s in STARTS])
    assert row.current(mutant)
    assert not row.current(replace(mutant, new=mutant.new + "# "))
    assert not replace(row, drawing="of another day").current(mutant)
    assert not replace(row, lanes=row.lanes[1:]).current(mutant)


def lane_of(start: int, histories: int, found: str = "no fault: x") -> Lane:
    return Lane(start, histories, found, 0, 0.1)


def test_a_lane_without_a_finding_counts_as_more_than_the_most() -> None:
    counts = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    lanes = [*map(lane_of, STARTS, counts), lane_of(STARTS[9], MOST, "")]
    row = Row("m", "d", "", lanes)
    assert row.median == statistics.median([*counts, MOST + 1]) == 5.5 and row.largest == MOST
    half = Row("m", "d", "", [lane_of(s, MOST, "") for s in STARTS[:6]] + lanes[6:])
    assert half.median > MOST
    assert hunt.needed({"m": row, "": half})[STARTS[0]] == LEAST
    assert hunt.needed({"m": row})[STARTS[9]] == MOST


def test_a_table_is_read_as_written(tmp_path: Path) -> None:
    file, (one, two, *_) = tmp_path / "table.json", MUTANTS
    rows = [Row(m.name, m.digest, "x", [lane_of(1, 2), lane_of(2, 3, "")]) for m in (two, one)]
    bare = Row("", "", "x", [lane_of(1, 30, "")])
    table.write_table(file, [bare, *rows, replace(bare, mutant="gone")], MUTANTS)
    assert list(table.read_table(file).values()) == [rows[1], rows[0], bare]
    file.write_text(json.dumps({"schema": "another", "rows": []}))
    with pytest.raises(MutantError, match="--all-seeds"):
        table.read_table(file)


class Breaks(Instance):
    """Raises what no check raises."""

    def build(self, batch: Any) -> Any:
        raise RuntimeError("no batch is served")


def test_a_lane_ends_at_a_finding_and_no_exception_is_one() -> None:
    subject = Faulty(TrustsBounds)
    found = walk(0, 40, subject, lane.twin)
    assert found.found and found.until == found.histories
    before = walk(0, found.histories - 1, subject, lane.twin)
    assert before.until is None and before.histories == found.histories - 1
    broken = walk(0, 3, Faulty(Breaks), lane.twin)
    assert asdict(broken) | {"seconds": 0} == asdict(Lane(0, 3, "", 3, 0))
    assert hunt.Hunted(MUTANTS[0], broken).fate is hunt.Fate.SURVIVED


def test_uses_are_counted_for_the_case_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "x.py::test_y[NUM-1/geo=tiny/3] (call)")
    file = tmp_path / "events.tsv"
    counting = Counting(f"{REAL},{file}")
    runtime = type("Runtime", (), {"capture": lambda self: None})
    real = type("Real", (), {"runtime": runtime(), "build": lambda self, batch: batch})
    counting._real = type("Subject", (), {"construct": lambda self: real()})()
    one, two = counting.construct(), counting.construct()
    assert [one.build(1), two.build(2), two.build(3)] == [1, 2, 3]
    lines = [line.split("\t") for line in file.read_text().splitlines()]
    assert {case for case, *_ in lines} == {"NUM-1/geo=tiny/3"}
    assert [event for *_, event in lines] == ["construct", "construct", "build", "build", "build"]
    assert len({instance for _, instance, _ in lines}) == 2


def mutants(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fuzz", "mutants", "-n", "1", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_mutant_is_planted_and_killed() -> None:
    done = mutants("--name", "planned-values-saved-at-every-clamp")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed planned-values-saved-at-every-clamp in" in done.stdout
    assert "1 of 1 mutants killed" in done.stdout


HARMLESS = """
[[mutant]]
name = "{name}"
file = "smla/plan_state.py"
old = "{old}"
new = "{new}"
requirement = "PLAN-3"
why = "None, for a test."
"""


@pytest.fixture
def harmless(tmp_path: Path) -> Mutant:
    text = HARMLESS.format(
        name="harmless", old="self.stats.reuses += 1", new="self.stats.reuses += 2"
    )
    (tmp_path / "m.toml").write_text(text)
    (mutant,) = read_mutants([tmp_path / "m.toml"])
    return mutant


def test_a_survivor_is_told_of(tmp_path: Path, harmless: Mutant) -> None:
    file = tmp_path / "table.json"
    row = Row(harmless.name, harmless.digest, table.drawing(), [lane_of(s, 1) for s in STARTS])
    table.write_table(file, [row], [harmless])
    done = mutants("--mutants", tmp_path / "m.toml", "--table", file)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"survived harmless in {LEAST} histories" in done.stdout
    assert "0 of 1 mutants killed" in done.stdout


def test_what_is_asked_wrongly(tmp_path: Path) -> None:
    done = mutants("--name", "nobody")
    assert done.returncode == 3 and "no mutant named nobody" in done.stdout
    (tmp_path / "m.toml").write_text(HARMLESS.format(name="x", old="is not there", new="y"))
    done = mutants("--mutants", tmp_path / "m.toml")
    assert done.returncode == 3 and "stands 0 times" in done.stdout


def test_a_mutant_that_one_step_shows_is_none(tmp_path: Path, harmless: Mutant) -> None:
    few = {case for case in SINGLE.cases() if case.startswith("PLAN-4/")}
    kept = {"PLAN-4": [int(case.rpartition("/")[2]) for case in sorted(few)[:2]]}
    rest: dict[str, list[int]] = {}
    for case in case_ids(["twin"]):
        id, number = case.partition("/")[0], int(case.rpartition("/")[2])
        if number not in kept.get(id, []):
            rest.setdefault(id, []).append(number)
    file = tmp_path / "cases.json"
    single.Single(kept, {}, rest).write(file)
    shown = HARMLESS.format(
        name="no-clamp", old="        elif rows:\\n", new="        elif False:\\n"
    )
    (tmp_path / "m.toml").write_text((tmp_path / "m.toml").read_text() + shown)
    done = mutants("--mutants", tmp_path / "m.toml", "--single-step", "--cases", file)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "no-clamp is no history mutant: PLAN-4/" in done.stdout
    assert "passed by harmless" in done.stdout
    assert "1 of 2 mutants pass every single-step case" in done.stdout
    again = single.read_single(file)
    assert again.has(harmless) and [*again.passed] == ["harmless"]
