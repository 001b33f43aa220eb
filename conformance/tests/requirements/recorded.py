"""Drawn records, written as several hosts would, and a page read back."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from conformance.core.catalogue import REQUIREMENTS
from conformance.core.lab import Lab
from conformance.core.record import Outcome, Record, RecordWriter
from conformance.report.page import MOST_CASES

COMMITS = ("a" * 40, "b" * 40)
GRAVITY = "crash hang fail xpass refused unobservable skipped xfail pass".split()
HOSTILE = "</script><img src=x onerror=alert(1)> & <b>'\"\u2028"


def drawn(lab: Lab) -> list[Record]:
    """Draw records: cases that several files hold, rare outcomes, infinite ratios, hostile text."""
    draw, ids = lab.case.draw.fork("records"), list(REQUIREMENTS)
    records = []
    for subject in (HOSTILE, "smla", "my.package:factory")[: draw.randint(1, 4)]:
        for tier in ("twin", "hopper"):
            versions = ("0.6.18", "0.7.10", "0.7.4")[: draw.randint(1, 4)]
            for id in dict.fromkeys(draw.choice(ids) for _ in range(4)):
                for number in range(draw.randint(1, 3 * MOST_CASES // 2)):
                    outcome = GRAVITY[min(8, draw.randint(0, 20))]
                    ratio = draw.randint(0, 300) / 100
                    record = Record(
                        case=f"{id}/geo=tiny/{number}",
                        requirement=id,
                        tier=tier,
                        subject=subject,
                        outcome=Outcome(outcome),
                        error=ratio / 1000,
                        ratio=float("inf") if draw.randint(0, 20) == 0 else ratio,
                        interpreted=draw.randint(0, 9) == 0,
                        message="" if outcome == "pass" else f"{outcome} {HOSTILE}",
                        repro=f"python -m conformance run --case '{id}/geo=tiny/{number}'",
                        flashinfer=draw.choice(versions),
                        subject_version="1.0" if tier == "twin" else "",
                    )
                    records.append(record)
                    if number % 5 == 0:  # another host ran it too
                        again, version = Outcome(draw.choice(GRAVITY)), draw.choice(versions)
                        records.append(replace(record, outcome=again, flashinfer=version))
    return records


def written(records: Sequence[Record], root: Path) -> list[Path]:
    """Write records as three hosts would: a file for each subject and tier; return the folders."""
    parts: dict[tuple[int, str, str], list[Record]] = defaultdict(list)
    for number, record in enumerate(records):
        parts[number % 3, record.tier, record.subject].append(record)
    for number, ((host, tier, _), some) in enumerate(parts.items()):
        write(root / f"host-{host}" / f"records-{tier}-{number}-main.jsonl", some, COMMITS[0])
    return sorted({root / f"host-{host}" for host, _, _ in parts})


def write(path: Path, records: Sequence[Record], commit: str | None, **more: Any) -> None:
    """Write one whole record file. more: of its environment."""
    environment = {"commit": commit, "gpu": None, "python": "3.11", **more}
    writer = RecordWriter(path, environment)
    for record in records:
        writer.start(record)
        writer.add(record)
    writer.close()


class Page(HTMLParser):
    """A page's elements, its data, and the text of the table's cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.data: Any = None
        self.cells: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        if ("id", "data") in attrs:
            self._inside = "data"
        elif tag == "td" and self._inside != "plain":
            self._inside = "td"
            self.cells.append("")
        elif ("class", "plain") in attrs:
            self._inside = "plain"

    def handle_endtag(self, tag: str) -> None:
        if (self._inside, tag) in (("td", "td"), ("data", "script"), ("plain", "table")):
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "data":
            self.data = json.loads(data, parse_constant=_not_json)
        elif self._inside == "td":
            self.cells[-1] += f" {data.strip()}"


def _not_json(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
