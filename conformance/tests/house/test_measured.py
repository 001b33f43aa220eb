"""The tables of docs/measured.md that have records beside them say what the records say."""

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from conformance.bench.errors import chosen
from conformance.bench.results import SCHEMA

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "measured.md").read_text()
FORMATS = {"BF16": "bf16", "FP8, one scale": "e4m3", "FP8, group scales": "e4m3_group"}
LEAST = 0.6
"""The share of a copy's bandwidth that a cache write is to reach."""


def record(section: str) -> list[dict[str, Any]]:
    """A benchmark's rows, seen on a Hopper GPU, nothing failed."""
    told = json.loads((DOCS / "evidence" / f"h200-bench-{section}.json").read_text())
    assert (told["schema"], told["rehearsal"], told["exit"]) == (SCHEMA, False, 0)
    assert told["environment"]["gpu"]["capability"] == [9, 0] and told["failures"] == []
    rows: list[dict[str, Any]] = told["sections"][section]
    return rows


def table(title: str) -> list[list[str]]:
    """The cells of the first table below a title."""
    text = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert re.fullmatch(r"[-|]+", lines[1])
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_errors_of_canonical_cases() -> None:
    found = defaultdict(list)
    for row in record("error"):
        key = row["fmt"], row["head_dim_kpe"], row["numbers"]
        found[(*key, row["engine"])].append(row)
    shown = table("Canonical cases, beside FlashInfer called directly")
    assert len({engine for *_, engine in found}) == 2 and len(found) == 2 * len(shown)
    for cache, kpe, numbers, cases, *figures in shown:
        counts, told = [], []
        for engine in ("smla", "FlashInfer"):
            rows = found[FORMATS[cache], int(kpe), numbers, engine]
            judged = [row for row in rows if "refused" not in row]
            assert all(row["ok"] for row in judged)
            counts.append(str(len(judged)))
            worst = [max(row[what] for row in judged) for what in ("error", "ratio")]
            told += [f"{worst[0]:.2e}", f"{worst[1]:.2f}"]
        assert cases.split(", ") == list(dict.fromkeys(counts)) and figures == told, cache


def test_the_canonical_cases_are_those_that_are_chosen_today() -> None:
    for engine in ("smla", "FlashInfer"):
        seen = [row["case"] for row in record("error") if row["engine"] == engine]
        assert seen == [recipe.name for recipe in chosen(rehearsal=False)]


@pytest.mark.parametrize("number", range(4))
def test_bandwidth_of_cache_writes(number: int) -> None:
    scales, rope, *figures = table("Cache writes")[number]
    scaling = {"one": "tensor", "group": "group"}[scales]
    (row,) = [
        row
        for row in record("write")
        if (row["scaling"], row["head_dim_kpe"]) == (scaling, int(rope))
    ]
    assert row["tokens"] == 8192
    times = [row[kind]["median_us"] for kind in ("write", "copy")]
    assert (
        row["copy_by_write"] == pytest.approx(times[1] / times[0]) and times[1] / times[0] > LEAST
    )
    shown = [f"{row['bytes'] / 1e6:.1f}", *(f"{time:.2f}" for time in times)]
    assert figures == [*shown, f"{times[1] / times[0]:.2f}"]
