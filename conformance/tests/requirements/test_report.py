"""SUITE-4: drawn records, counted a second time, against the page, the Markdown and the merge."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from conformance.core.catalogue import REQUIREMENTS
from conformance.core.lab import Lab
from conformance.core.record import SCHEMA, Outcome, Record
from conformance.core.requirement import requirement
from conformance.core.verdict import Exit
from conformance.report.gather import Cell, Model, gather, model_of
from conformance.report.judged import of_column, of_group, of_subjects
from conformance.report.markdown import markdown
from conformance.report.merge import merge
from conformance.report.page import MOST_CASES, page
from conformance.report.sources import ReportError, Source
from conformance.tests.requirements.recorded import (
    COMMITS,
    GRAVITY,
    HOSTILE,
    Page,
    drawn,
    write,
    written,
)

Key = tuple[str, str, str, str, str]
"""Requirement, subject, its version, tier, FlashInfer version."""


@requirement("SUITE-4", how=("counts", "page", "verdict", "merge", "mixed", "broken"))
def test_a_report_shows_what_the_records_say(lab: Lab, tmp_path: Path) -> None:
    how, records = lab.case["how"], drawn(lab)
    folders = written(records, tmp_path)
    if how == "counts":
        the_model_counts(lab, gather(folders), records)
    elif how == "page":
        the_page_shows(lab, gather(folders), records)
    elif how == "verdict":
        the_verdict_is_the_worst(lab, records)
    elif how == "merge":
        a_merge_is_the_union(lab, folders, records, tmp_path)
    elif how == "mixed":
        two_suites_are_refused(lab, folders, tmp_path)
    else:
        half_a_file_is_refused(lab, folders, tmp_path)


def counted(records: Sequence[Record]) -> dict[Key, dict[str, str]]:
    """Return what became of each case of each cell, from the records alone."""
    cells: dict[Key, dict[str, str]] = defaultdict(dict)
    for r in records:
        cell = cells[r.requirement, r.subject, r.subject_version, r.tier, r.flashinfer]
        known = cell.get(r.case, "pass")
        cell[r.case] = min(known, str(r.outcome), key=GRAVITY.index)
    return cells


def shown(model: Model) -> dict[Key, dict[str, str]]:
    """Return the same as the model has it."""
    cells = {}
    for (id, column), cell in model.cells.items():
        group = column.group
        key = (id, group.subject, group.subject_version, group.tier, column.flashinfer)
        cases = {case: "pass" for case in cell.passed}
        cells[key] = cases | {seen.record.case: str(seen.record.outcome) for seen in cell.cases}
    return cells


def differences(model: Model, expected: dict[Key, dict[str, str]]) -> list[Any]:
    """Return cell, case, and what became of it by the model and by the records."""
    got = shown(model)
    return [
        (key, case, here.get(case), there.get(case))
        for key in sorted({*got, *expected})
        for here, there in [(got.get(key, {}), expected.get(key, {}))]
        for case in sorted({*here, *there})
        if here.get(case) != there.get(case)
    ]


def the_model_counts(lab: Lab, model: Model, records: Sequence[Record]) -> None:
    expected = counted(records)
    lab.expect(differences(model, expected), [], "cells that are not as recorded")
    for (id, column), cell in model.cells.items():
        group = column.group
        key = (id, group.subject, group.subject_version, group.tier, column.flashinfer)
        outcomes = list(expected[key].values())
        counts = {Outcome(name): outcomes.count(name) for name in set(outcomes)}
        lab.expect(dict(cell.counts), counts, f"counts of {key}")
        ratios = [r.ratio for r in records if key == _key(r)]
        lab.expect(cell.ratio, max(ratios), f"worst ratio of {key}")  # type: ignore[type-var]
    for group in model.groups:
        for id in model.rows:
            mine = [r for r in records if r.requirement == id and _group(r) == group_key(group)]
            passed = {r.case for r in mine} - {r.case for r in mine if r.outcome != Outcome.PASS}
            cell_ = model.together(id, model.of(group))
            lab.expect(cell_.passed if cell_ else set(), passed, f"{id} passed on all versions")


def _key(record: Record) -> Key:
    return (record.requirement, *_group(record), record.flashinfer)


def _group(record: Record) -> tuple[str, str, str]:
    return record.subject, record.subject_version, record.tier


def group_key(group: Any) -> tuple[str, str, str]:
    return group.subject, group.subject_version, group.tier


def the_page_shows(lab: Lab, model: Model, records: Sequence[Record]) -> None:
    text, expected = page(model), counted(records)
    try:
        found = Page(text)
    except ValueError as problem:
        lab.check(False, "the page's data", got=str(problem), expected="JSON")
        return
    lab.expect(found.elements.count("img"), 0, "elements of a message")
    lab.expect(found.elements.count("script"), 2, "scripts of the page")
    for number, group in enumerate(model.groups):
        for column in model.of(group):
            for id in model.rows:
                key = (id, *group_key(group), column.flashinfer)
                cases = {c: o for c, o in expected.get(key, {}).items() if o != "pass"}
                cell = found.data["cells"].get(f"{id}/{number}/{column.flashinfer}")
                lab.expect(bool(cell), bool(cases), f"whether {key} opens")
                if cell is None:
                    continue
                listed = {one["case"]: one["outcome"] for one in cell["cases"]}
                worst = sorted(cases.values(), key=GRAVITY.index)[:MOST_CASES]
                lab.expect(sorted(listed.values(), key=GRAVITY.index), worst, f"cases of {key}")
                lab.check(listed.items() <= cases.items(), "cases", got=listed, expected=cases)
                lab.expect(len(listed) + cell["more"], len(cases), f"all cases of {key}")
                message = all(HOSTILE in one["message"] for one in cell["cases"] if one["message"])
                lab.expect(message, True, f"messages of {key}")
    families = [id.partition("-")[0] for id in model.rows]
    texts = [
        _text(model.together(id, columns))
        for id in sorted(model.rows, key=lambda id: families.index(id.partition("-")[0]))
        for group in model.groups
        for columns in ([model.of(group)] if len(model.of(group)) > 1 else [])
        + [(column,) for column in model.of(group)]
    ]
    lab.expect([_counts(text) for text in found.cells], texts, "numbers in the table")
    lines = [line for line in markdown(model).splitlines() if line.startswith("| **")]
    bad = {(key[0], key[1:4]) for key, cases in expected.items() if set(cases.values()) != {"pass"}}
    lab.check(len(lines) >= len(bad), "lines of Markdown", got=len(lines), expected=len(bad))


def _text(cell: Cell | None) -> str:
    return "" if cell is None else f"{cell.counts.get(Outcome.PASS, 0)}/{cell.total}"


def _counts(text: str) -> str:
    return next((word for word in text.split() if "/" in word), "")


def passing(like: Record, tier: str) -> list[Record]:
    """Return a tier's records, each requirement at its least and passed."""
    return [
        replace(
            like,
            case=f"{id}/geo=tiny/{number}",
            requirement=id,
            tier=tier,
            subject="smla",
            subject_version="",
            outcome=Outcome.PASS,
            interpreted=tier == "twin" and number % 10 == 0,
            flashinfer="0.7.4",
        )
        for id, known in REQUIREMENTS.items()
        for number in range(known.minimum(tier))
    ]


def the_verdict_is_the_worst(lab: Lab, records: Sequence[Record]) -> None:
    """A tier whose cases all pass conforms, and one bad outcome among them is enough."""
    draw = lab.case.draw.fork("verdict")
    whole = passing(records[0], "twin")
    at = draw.randint(0, len(whole))
    bad = draw.choice(("fail", "crash", "hang", "xpass"))
    open_ = draw.choice(("refused", "unobservable", "skipped"))
    known = REQUIREMENTS[whole[at].requirement]
    alone = bool(known.tool) and known.twin == 1  # all of its cases are skipped then
    fates = {
        "pass": Exit.CONFORMS,
        "xfail": Exit.CONFORMS,
        bad: Exit.DOES_NOT,
        open_: Exit.CONFORMS if alone and open_ == "skipped" else Exit.INCOMPLETE,
    }
    for outcome, expected in fates.items():
        changed = [*whole]
        changed[at] = replace(whole[at], outcome=Outcome(outcome))
        model = model_of([Source(Path("drawn"), {"commit": COMMITS[0]}, tuple(changed))])
        (group,) = model.groups
        lab.expect(of_group(model, group).exit, expected, f"verdict with one {outcome}")
        lab.expect(of_column(model, model.columns[0]).exit, expected, f"{outcome}, one version")
        overall = of_subjects(model)[0]
        lab.expect(overall.exit, expected, f"verdict on the subject with one {outcome}")
        lab.expect("hopper: not run" in " ".join(overall.reasons), True, "what did not run is told")
    hopper = passing(records[0], "hopper")
    model = model_of([Source(Path("drawn"), {"commit": COMMITS[0]}, tuple(hopper))])
    (group,) = model.groups
    lab.expect(of_group(model, group).exit, Exit.CONFORMS, "verdict on the hopper tier")
    lab.expect(of_subjects(model)[0].exit, Exit.INCOMPLETE, "verdict without the twin tier")
    torch = [replace(r, interpreted=False) for r in whole]
    model = model_of([Source(Path("drawn"), {"commit": COMMITS[0]}, tuple(torch))])
    lab.expect(of_subjects(model)[0].exit, Exit.INCOMPLETE, "verdict without interpreted kernels")


def a_merge_is_the_union(
    lab: Lab, folders: list[Path], records: Sequence[Record], root: Path
) -> None:
    merge([*folders, folders[0]], root / "merged")
    union = gather([root / "merged"])
    lab.expect(differences(union, counted(records)), [], "cells of the merged folder")
    lab.expect(union.cells.keys(), gather(folders).cells.keys(), "cells of the merged folder")
    times = [seen.times for cell in union.cells.values() for seen in cell.cases]
    before = [seen.times for cell in gather(folders).cells.values() for seen in cell.cases]
    lab.expect(sorted(times), sorted(before), "records per case")


def two_suites_are_refused(lab: Lab, folders: list[Path], root: Path) -> None:
    """Another commit, another digest of the sources, another schema: each named, none merged."""
    first = folders[0]
    record = drawn(lab)[0]
    other = root / "other"
    changes: dict[str, tuple[str, str]] = {
        "commit": (COMMITS[0], COMMITS[1]),
        "schema": (SCHEMA, "smla-records/2"),
    }
    for what, (one, another) in changes.items():
        path = other / what / "records-twin-1-main.jsonl"
        write(path, [record], COMMITS[1] if what == "commit" else COMMITS[0])
        if what == "schema":
            path.write_text(path.read_text().replace(one, another, 1))
        refused(lab, [first, path.parent], root / "merged", (one, another), what)
    both = [root / "digest-1", root / "digest-2"]
    for number, folder in enumerate(both):
        write(folder / "records-twin-1-main.jsonl", [record], COMMITS[0], sources=f"digest{number}")
    refused(lab, both, root / "merged", ("digest0", "digest1"), "sources")


def refused(lab: Lab, folders: list[Path], target: Path, names: Sequence[str], what: str) -> None:
    for does in (lambda: gather(folders), lambda: merge(folders, target)):
        try:
            does()
        except ReportError as problem:
            said = [name for name in names if name in str(problem)]
            lab.expect(said, list(names), f"what the refusal of another {what} names")
        else:
            lab.check(False, f"another {what}", got="taken", expected="refused")
    lab.expect(target.exists(), False, f"the merged folder after another {what}")
    rests = [path.name for path in target.parent.glob(".merge-*")]
    lab.expect(rests, [], f"what is left after another {what}")


def half_a_file_is_refused(lab: Lab, folders: list[Path], root: Path) -> None:
    """A file cut anywhere behind its header is refused, with its name, and nothing is merged."""
    path = sorted(folders[0].glob("records-*.jsonl"))[0]
    whole = path.read_bytes()
    start = whole.index(b"\n") + 1
    cut = lab.case.draw.fork("cut").randint(start, len(whole) - 2)
    path.write_bytes(whole[:cut])
    refused(lab, folders, root / "merged", (path.name,), "half-written file")
