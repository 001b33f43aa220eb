"""A finding for people: the text that commands print and that lies beside a kept history."""

import textwrap

from conformance.core.catalogue import REQUIREMENTS
from fuzz.failure import Finding, Schedule
from fuzz.faults import FAULTS
from fuzz.history import History

_MOST_ITEMS = 6
_MOST_WORST = 2
_WIDTH = 120


def told(history: History, finding: Finding) -> str:
    """Return what a finding is, for people: about fifteen lines, the first one in short."""
    first = finding.message.partition("\n")[0].removeprefix(f"{history.case}: ")
    lines = [f"{finding.frame}: {first}", f"  case     {_case(history)}"]
    if finding.fault:
        lines.append(f"  fault    {finding.fault}: {FAULTS[finding.fault].sentence}")
    else:
        lines.append("  fault    none")
    if finding.requirement:
        sentence = REQUIREMENTS[finding.requirement].sentence
        lines.append(f"  speaks for {finding.requirement}: {sentence}")
    lines.append(f"  where    {_place(finding.row, finding.request)}")
    lines += [f"  got      {finding.got}", f"  expected {finding.expected}"]
    lines += [
        f"  worst    {_place(e.row, e.request)}, head {e.head} dim {e.dim}: got {e.got:.9g}, "
        f"expected {e.expected:.9g}, bound {e.bound:.3g}"
        for e in finding.worst[:_MOST_WORST]
    ]
    lines += _schedule(finding.schedule, finding.row)
    return "\n".join([*lines, f"  repro    {finding.repro}"])


def _case(history: History) -> str:
    requests = sum(len(turn.arrive) for turn in history.turns)
    return f"{history.case}, {len(history.turns)} turns, {requests} requests"


def _place(row: int | None, request: int | None) -> str:
    if row is None:
        return "the whole frame"
    return f"row {row} of {'no request' if request is None else f'request {request}'}"


def _schedule(schedule: Schedule | None, row: int | None) -> list[str]:
    if schedule is None:
        return ["  schedule not shown"]
    words = ", ".join(f"{name} {value}" for name, value in schedule.info)
    lines = textwrap.wrap(
        f"after {schedule.after}: {words}", _WIDTH, initial_indent="  plan     ",
        subsequent_indent=" " * 11, break_on_hyphens=False,
    )  # fmt: skip
    if row is None:
        return lines
    counted = "" if schedule.valid is None else f", {schedule.valid} valid entries"
    lines.append(f"  row {row}    {len(schedule.items)} work items{counted}")
    lines += [
        f"           cluster {i.cluster}: q [{i.q[0]}, {i.q[1]}), kv [{i.kv[0]}, {i.kv[1]}), "
        f"planned to {i.planned_end}, loads to {i.load_end}"
        + (f", touched {i.touched[0]} to {i.touched[1]}" if i.touched else "")
        for i in schedule.items[:_MOST_ITEMS]
    ]
    more = len(schedule.items) - _MOST_ITEMS
    return [*lines, *([f"           and {more} more"] if more > 0 else [])]
