"""The report as Markdown: the verdicts and what is not plainly green, for a CI's summary."""

import re
from collections.abc import Iterable

from conformance.core.catalogue import REQUIREMENTS
from conformance.core.record import Outcome
from conformance.core.verdict import Exit
from conformance.report.gather import Cell, Model
from conformance.report.judged import of_group, of_subjects, short

SIGNS = {Exit.CONFORMS: "✅", Exit.DOES_NOT: "❌", Exit.INCOMPLETE: "⚠️"}
_MOST_REASONS = 5
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~&])")


def markdown(model: Model) -> str:
    """Return the summary: a line per subject, requirements that are not green, the environment."""
    lines = ["# Conformance", ""]
    for judgement in of_subjects(model):
        reasons = _text("; ".join(judgement.reasons))
        lines.append(
            f"{SIGNS[judgement.exit]} **{_text(judgement.title)}** {judgement.word}: {reasons}"
        )
        lines.append("")
    for group in model.groups:
        part = of_group(model, group)
        if part.exit is Exit.INCOMPLETE:
            shown = "; ".join(part.reasons[:_MOST_REASONS])
            more = len(part.reasons) - _MOST_REASONS
            end = f"; and {more} more" if more > 0 else ""
            lines += [f"{_text(part.title)} is incomplete: {_text(shown)}{end}", ""]
    rows = [row for group in model.groups for row in _rows(model, group)]
    if rows:
        lines += ["| requirement | where | passed / least | cases | worst error / bound |"]
        lines += ["|---|---|---|---|---|", *rows, ""]
    total: dict[Outcome, int] = {}
    for cell in model.cells.values():
        for outcome, count in cell.counts.items():
            total[outcome] = total.get(outcome, 0) + count
    counts = ", ".join(f"{total[outcome]} {outcome}" for outcome in Outcome if outcome in total)
    lines += [f"Cases: {counts or 'none'}. Suite commit {_text(model.commit or 'unknown')}.", ""]
    lines += [f"Environment: {_text(line)}." for line in environment_lines(model)]
    return "\n".join(lines) + "\n"


def environment_lines(model: Model) -> list[str]:
    """Return a line for each environment that records come from."""
    lines = []
    for environment, files in model.environments:
        gpu = environment.get("gpu") or {}
        parts = [f"{gpu['name']} (driver {gpu.get('driver')})" if gpu.get("name") else "no GPU"]
        names = ("python", "torch", "cuda", "triton", "flashinfer")
        parts += [f"{name} {environment[name]}" for name in names if environment.get(name)]
        lines.append(f"{', '.join(parts)}; {files} record file{'s' if files > 1 else ''}")
    return lines


def _rows(model: Model, group: object) -> Iterable[str]:
    for id in model.rows:
        columns = [column for column in model.columns if column.group == group]
        cell = model.together(id, columns)
        if cell is None:
            continue
        tier = columns[0].group.tier
        least = REQUIREMENTS[id].minimum(tier) if id in REQUIREMENTS else 0
        passed = len(cell.passed)
        if set(cell.counts) == {Outcome.PASS} and not short(cell, id, tier):
            continue
        where = [_version(model.cells.get((id, column)), column.flashinfer) for column in columns]
        label = f"{columns[0].group.label} on {tier}: {', '.join(filter(None, where)) or 'all'}"
        counts = ", ".join(f"{cell.counts[o]} {o}" for o in Outcome if o in cell.counts)
        ratio = "" if cell.ratio is None else f"{cell.ratio:.2f}"
        sentence = REQUIREMENTS[id].sentence if id in REQUIREMENTS else "unknown to this suite"
        yield (
            f"| **{_text(id)}** {_text(sentence)} | {_text(label)} | {passed} / {least} | "
            f"{counts} | {ratio} |"
        )


def _version(cell: Cell | None, version: str) -> str:
    """Return a version where not all is green, else nothing."""
    return version if cell is not None and cell.cases else ""


def _text(text: str) -> str:
    """Return a text with nothing in it that Markdown or HTML would take as its own."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
