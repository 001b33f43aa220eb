"""What judges compared is told in a line for each title and tier, and changes no verdict."""

from io import StringIO
from pathlib import Path

from rich.console import Console

from conformance.core.request import Request
from conformance.core.run import run
from conformance.core.verdict import Verdict
from conformance.report.figures import figure_lines
from conformance.report.terminal import show
from conformance.subjects import DEFAULT, SUBJECTS
from conformance.tests.house.test_report import record


def figures(**named: float) -> dict[str, object]:
    return {"history": {"figures": {"error": named}}}


def test_figures_are_told_by_name_with_their_range() -> None:
    records = [
        record(0, **figures(one=0.5, two=4.0)),
        record(1, **figures(one=0.25, two=2.0)),
        record(2, **figures(one=0.125, two=8.0)),
        record(3, history={"turns": 7}),
        record(4),
    ]
    id, tier = records[0].requirement, records[0].tier
    assert figure_lines(records) == [
        f"{id} on {tier}: error: one 1.2e-01 to 5.0e-01, median 2.5e-01 (3 cases); "
        "two 2.0e+00 to 8.0e+00, median 4.0e+00 (3 cases)"
    ]
    assert figure_lines(records[3:]) == []
    out = StringIO()
    show(Verdict(records, [tier]), "x", Console(file=out, width=200))
    assert "error: one 1.2e-01 to 5.0e-01" in out.getvalue()


def test_group_scales_and_one_scale_are_told_beside_each_other(tmp_path: Path) -> None:
    case = "NUM-10/dtype=fp8g,heads=16,geo=flat,width=small,kpe=64,how=write-attend/11"
    subject = SUBJECTS[DEFAULT]
    request = Request(subject, "twin", cases=[case], workers="0", report=tmp_path, kernels="torch")
    done = run(request)
    history = done.records[0].history or {}
    (compared,) = history["figures"].values()
    assert 0 < compared["group scales"] < 0.75 * compared["one scale per tensor"]
    (line,) = figure_lines(done.records)
    assert line.startswith("NUM-10 on twin: ") and "one scale per tensor" in line
