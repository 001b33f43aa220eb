"""Gate results as Markdown, for a pull request or a CI's summary."""

import re
from collections.abc import Sequence

from conformance.gate import telling
from conformance.gate.model import Change, GateResult, Status
from conformance.gate.telling import CHANGES, SIGNS, VERDICT_SIGNS, Row

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~&])")
_LONGEST = 400


def markdown(results: Sequence[GateResult], paragraphs: Sequence[str]) -> str:
    """The text; paragraphs: what `verdict.decide` says of each result, for whoever decides."""
    lines: list[str] = []
    for result, paragraph in zip(results, paragraphs, strict=True):
        lines += _result(result, paragraph)
    return "\n".join(lines)


def anchor(result: GateResult, tier: str = "") -> str:
    """What a link to a subject's part, or to one of its tiers, ends with."""
    return re.sub(r"[^\w]+", "-", f"{result.subject} {tier}".strip()).strip("-").lower()


def _result(result: GateResult, paragraph: str) -> list[str]:
    sign = VERDICT_SIGNS[result.verdict]
    lines = [
        f'<a id="{anchor(result)}"></a>',
        "",
        f"# {sign} {result.verdict}: {_text(telling.title(result))}",
    ]
    lines += ["", _text(paragraph), "", "| tier | | |", "|---|---|---|"]
    for tier in result.tiers:
        told = f"{SIGNS[tier.status]} {tier.status}"
        place = f'<a id="{anchor(result, tier.tier)}"></a>'
        lines.append(f"| {place}{tier.tier} | {told} | {_cell(telling.summary(tier))} |")
    lines.append("")
    missing = [tier for tier in result.tiers if tier.status is Status.NOT_RUN and tier.command]
    if missing:
        lines += ["What did not run, and what would run it:", ""]
        for tier in missing:
            lines += [f"- {tier.tier}: {_text(tier.reason)}", "", *_block(tier.command, "  "), ""]
    if tolerated := [row for row in _all(result) if row.finding.tolerated]:
        lines += ["Tolerated by the policy:", ""]
        lines += [
            f"- `{row.finding.key}`: {_text(row.finding.what)} ({_text(row.finding.tolerated)})"
            for row in tolerated
        ]
        lines.append("")
    lines += _changes(result)
    if figures := telling.figures(result):
        lines += ["## Time, candidate over baseline", ""]
        lines += ["| what | where | baseline | candidate | ratio | spread | rounds |"]
        lines += ["|---|---|---|---|---|---|---|"]
        lines += [
            f"| {_cell(f.name)} | {_cell(f.where)} | {telling.time(f.baseline_us)} | "
            f"{telling.time(f.candidate_us)} | {f.ratio:.2f} | {f.spread:.2f} | {f.rounds} |"
            for _, f in figures
        ]
        lines.append("")
    lines += ["## Where it was seen", ""]
    for side, word in ((result.baseline, "baseline"), (result.candidate, "candidate")):
        lines.append(f"- {word}: FlashInfer {_text(side.version)}, SHA-256 `{side.digest}`")
    for tier in result.tiers:
        looked = [text for text in (telling.facts(tier), telling.again(tier)) if text]
        if looked:
            lines.append(f"- {tier.tier}: {_text('; to see it: '.join(looked))}")
    lines += [f"- {_text(telling.environment(result))}", ""]
    return lines


def _changes(result: GateResult) -> list[str]:
    lines = []
    for change in CHANGES:
        rows = telling.of_change(result, change)
        if not rows:
            continue
        lines += [f"## {str(change).capitalize()} ({len(rows)})", ""]
        if change is Change.UNCHANGED:
            lines += ["<details><summary>all of them</summary>", ""]
        lines += ["| tier | | what | before | after | cause | to see it |"]
        lines += ["|---|---|---|---|---|---|---|"]
        lines += [_row(row) for row in rows]
        lines += [""] if change is not Change.UNCHANGED else ["", "</details>", ""]
    return lines


def _all(result: GateResult) -> list[Row]:
    return [row for change in CHANGES for row in telling.of_change(result, change)]


def _row(row: Row) -> str:
    found = row.finding
    word = f"**{row.word}**" if found.objects else row.word
    cells = (found.what, found.before, found.after, found.cause, row.evidence)
    return f'| <a id="{_place(row)}"></a>{row.tier} | {word} | {" | ".join(map(_cell, cells))} |'


def _place(row: Row) -> str:
    return re.sub(r"[^\w]+", "-", row.finding.key).strip("-").lower()


def _cell(text: str) -> str:
    short = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
    return _text(short).replace("\n", "<br>")


def _block(command: str, indent: str) -> list[str]:
    return [f"{indent}```", *(f"{indent}{line}" for line in command.splitlines()), f"{indent}```"]


def _text(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)
