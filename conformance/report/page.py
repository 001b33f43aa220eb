"""The report as one HTML page: no network, nothing beside it, every text escaped.

The page's content security policy names its own style and script by their digests, so that a
browser runs nothing else, and fetches nothing.
"""

import base64
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from conformance.core.catalogue import REQUIREMENTS
from conformance.core.environment import describe
from conformance.core.record import Outcome, Record
from conformance.core.verdict import Exit
from conformance.report.gather import Cell, Column, Group, Model, Seen
from conformance.report.judged import Judgement, of_column, of_group, of_subjects, short

HERE = Path(__file__).parent
MOST_CASES = 60
"""Cases of a cell that the page shows; the records have all."""
MOST_DRAWINGS = 12
"""Drawings of a cell."""

_KINDS = {Exit.CONFORMS: "pass", Exit.DOES_NOT: "bad", Exit.INCOMPLETE: "short"}
SIGNS = {"pass": "✔", "bad": "✘", "short": "◐", "open": "○", "known": "≈", "none": "·"}
WORDS = {
    "pass": "all pass",
    "bad": "some fail",
    "short": "fewer than the least",
    "open": "some not judged",
    "known": "deviates as the ledger says",
    "none": "no case",
}


def page(model: Model) -> str:
    """Return the page's HTML."""
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = ((HERE / f"page.{ending}").read_text() for ending in ("css", "js"))
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "sort_keys": True}
    data = _data(model)
    return environment.get_template("page.html").render(
        style=Markup(style),
        script=Markup(script),
        policy=(
            f"default-src 'none'; base-uri 'none'; form-action 'none'; "
            f"style-src '{_digest(style)}'; script-src '{_digest(script)}'"
        ),
        subjects=[_judgement(judgement) for judgement in of_subjects(model)],
        groups=[_group(model, group) for group in model.groups],
        families=_families(model, data),
        environments=[_environment(*found) for found in model.environments],
        commit=model.commit,
        stranger=_stranger(model),
        schema=model.schema,
        counts=_total(model),
        signs=[(kind, SIGNS[kind], WORDS[kind]) for kind in SIGNS],
        data=data,
    )


def _digest(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"sha256-{digest}"


def _judgement(judgement: Judgement) -> dict[str, Any]:
    kind = _KINDS[judgement.exit]
    return {
        "title": judgement.title,
        "word": judgement.word,
        "kind": kind,
        "sign": SIGNS[kind],
        "reasons": judgement.reasons,
    }


def _group(model: Model, group: Group) -> dict[str, Any]:
    columns = model.of(group)
    return {
        "label": group.label,
        "tier": group.tier,
        "judgement": _judgement(of_group(model, group)),
        "subject": group.subject,
        "versions": [
            _judgement(of_column(model, column)) | {"title": column.flashinfer or "unknown"}
            for column in columns
        ],
        "shared": len(columns) > 1 and not _repeated(model, columns),
        "heads": [name for name, _ in _heads(model, group)],
    }


def _repeated(model: Model, columns: Sequence[Column]) -> bool:
    """Whether some case ran in several columns."""
    for id in model.rows:
        cells = [cell for column in columns if (cell := model.cells.get((id, column))) is not None]
        ran = [cell.passed | {seen.record.case for seen in cell.cases} for cell in cells]
        if sum(map(len, ran)) > len(frozenset[str]().union(*ran)):
            return True
    return False


def _heads(model: Model, group: Group) -> list[tuple[str, tuple[Column, ...]]]:
    """Return a group's columns in the table: all versions together where there are several."""
    columns = model.of(group)
    heads: list[tuple[str, tuple[Column, ...]]]
    heads = [(column.flashinfer or "?", (column,)) for column in columns]
    return [("all", columns), *heads] if len(columns) > 1 else heads


def _families(model: Model, data: Mapping[str, Any]) -> list[dict[str, Any]]:
    families: dict[str, list[dict[str, Any]]] = {}
    for id in model.rows:
        families.setdefault(id.partition("-")[0], []).append(_row(model, id, data))
    return [{"name": name, "rows": rows} for name, rows in families.items()]


def _row(model: Model, id: str, data: Mapping[str, Any]) -> dict[str, Any]:
    known = REQUIREMENTS.get(id)
    cells = []
    for number, group in enumerate(model.groups):
        for place, (name, columns) in enumerate(_heads(model, group)):
            judged = name == "all" or len(model.of(group)) == 1
            cell = _cell(model, id, columns, f"{number}/{name}", judged)
            cells.append(cell | {"opens": cell["key"] in data["cells"], "first": place == 0})
    return {
        "id": id,
        "sentence": known.sentence if known else "unknown to this suite",
        "cells": cells,
        "bad": any(cell["kind"] in ("bad", "short") for cell in cells),
    }


def _cell(
    model: Model, id: str, columns: Sequence[Column], head: str, judged: bool
) -> dict[str, Any]:
    """Return a cell; judged: whether it holds all cases that count to the least."""
    group, cell = columns[0].group, model.together(id, columns)
    known = REQUIREMENTS.get(id)
    least = known.minimum(group.tier) if known and judged else 0
    version = head.partition("/")[2]
    versions = "all versions" if version == "all" else f"FlashInfer {version}"
    where = f"{group.label}, {group.tier}, {versions}"
    kind = _kind(cell, id, group.tier, judged)
    if cell is None:
        why = known.unjudged if known and not known.minimum(group.tier) else "no case ran"
        text, note = "none" if kind == "short" else "", ""
    else:
        text = f"{cell.counts.get(Outcome.PASS, 0)}/{cell.total}"
        why = ", ".join(f"{cell.counts[o]} {o}" for o in Outcome if o in cell.counts)
        note = "" if cell.ratio is None else _number(cell.ratio)
    return {
        "key": f"{id}/{head}",
        "kind": kind,
        "sign": SIGNS[kind],
        "text": text,
        "least": least if kind == "short" else 0,
        "ratio": note,
        "label": version,
        "group": f"{group.label} on {group.tier}: {versions}",
        "title": f"{id}, {where}: {why}" + (f"; least {least}" if least else ""),
    }


def _kind(cell: Cell | None, id: str, tier: str, judged: bool) -> str:
    if cell is not None and cell.bad:
        return "bad"
    if judged and short(cell, id, tier):
        return "short"
    if cell is None:
        return "none"
    found = set(cell.counts) - {Outcome.PASS}
    if not found:
        return "pass"
    return "known" if found == {Outcome.XFAIL} else "open"


def _data(model: Model) -> dict[str, Any]:
    """Return what the script shows of a cell: its cases, or the cells that it sums up."""
    cells: dict[str, Any] = {}
    for number, group in enumerate(model.groups):
        columns = model.of(group)
        for id in model.rows:
            parts = []
            for column in columns:
                cell = model.cells.get((id, column))
                if cell is None or not cell.cases:
                    continue
                key = f"{id}/{number}/{column.flashinfer or '?'}"
                parts.append(key)
                cells[key] = {
                    "cases": [
                        _case(seen, place) for place, seen in enumerate(cell.cases[:MOST_CASES])
                    ],
                    "more": max(0, len(cell.cases) - MOST_CASES),
                }
            if len(columns) > 1 and parts:
                cells[f"{id}/{number}/all"] = {"parts": parts}
    return {
        "cells": cells,
        "environments": [_host(environment) for environment, _ in model.environments],
        "sentences": {id: REQUIREMENTS[id].sentence for id in model.rows if id in REQUIREMENTS},
    }


def _case(seen: Seen, place: int) -> dict[str, Any]:
    record = seen.record
    return {
        "case": record.case,
        "outcome": str(record.outcome),
        "message": record.message.replace(f"\n  repro    {record.repro}", ""),
        "repro": record.repro,
        "error": _finite(record.error),
        "ratio": _finite(record.ratio),
        "expected": record.expected,
        "where": _where(record),
        "environment": seen.environment,
        "times": seen.times,
        "schedule": record.schedule if place < MOST_DRAWINGS else None,
    }


def _where(record: Record) -> str:
    kernels = ", kernels interpreted" if record.interpreted else ""
    took = "" if record.seconds is None else f", {record.seconds:.2f} s"
    return f"{record.tier}, FlashInfer {record.flashinfer or 'unknown'}{kernels}{took}"


def _finite(value: float | None) -> float | str | None:
    """Return a number that JSON has; infinity and NaN as words."""
    return value if value is None or math.isfinite(value) else _number(value)


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return f"{value:.2f}" if math.isfinite(value) else "∞"


def _environment(environment: Mapping[str, Any], files: int) -> dict[str, str]:
    gpu = environment.get("gpu") or {}
    return {
        "GPU": gpu.get("name") or "none",
        "driver": str(gpu.get("driver") or ""),
        **{
            name: str(environment.get(key) or "")
            for name, key in {
                "Python": "python", "torch": "torch", "CUDA": "cuda", "Triton": "triton",
                "FlashInfer": "flashinfer",
            }.items()
        },
        "commit": str(environment.get("commit") or "unknown")[:12],
        "record files": str(files),
    }  # fmt: skip


def _host(environment: Mapping[str, Any]) -> str:
    gpu = (environment.get("gpu") or {}).get("name")
    return str(gpu or "no GPU")


def _stranger(model: Model) -> str:
    """Return the commit of the suite that makes the page, where it is not the records' suite."""
    own = describe()
    for what, theirs in (("sources", model.sources), ("commit", model.commit)):
        if own.get(what) and theirs:
            return "" if own[what] == theirs else str(own["commit"] or "unknown")
    return ""


def _total(model: Model) -> list[tuple[str, int]]:
    cells: Iterable[Cell] = model.cells.values()
    total: dict[Outcome, int] = {}
    for cell in cells:
        for outcome, count in cell.counts.items():
            total[outcome] = total.get(outcome, 0) + count
    return [(str(outcome), total[outcome]) for outcome in Outcome if outcome in total]
