"""What is written of a played history: in its record, and of a finding in a folder.

A record's `history` has: steps, rows, requests, plans; reached: how many frames had each tuple of
values of `fuzz.reach.DIMENSIONS`, joined by "/"; unplanted: how many faults were left out, by the
reason; and of a finding its kind, fault and text, all
empty where there is none.
"""

import re
from collections import Counter
from pathlib import Path
from typing import Any

from fuzz.failure import Finding
from fuzz.history import History
from fuzz.player import Played
from fuzz.reach import DIMENSIONS
from fuzz.telling import told

JOINT = "/"


def seen_of(history: History, played: Played) -> dict[str, Any]:
    """Return what the record of a history says of it."""
    reached = Counter(JOINT.join(frame[name] for name in DIMENSIONS) for frame in played.reached)
    finding = played.finding
    return {
        "steps": played.frames,
        "rows": played.rows,
        "requests": played.requests,
        "plans": played.plans,
        "reached": dict(reached),
        "unplanted": dict(Counter(played.unplanted)),
        "kind": kind(finding) if finding else "",
        "fault": finding.fault if finding else "",
        "text": told(history, finding) if finding else "",
    }


def kind(finding: Finding) -> str:
    """Return what a finding says, without what differs from one to the next."""
    return f"{finding.fault or 'no fault'}: {plain(finding.message)}"


def plain(message: str) -> str:
    """Return a message's first line without what differs from one to the next."""
    first = re.sub(r"^FUZZ/\S+: ", "", message.partition("\n")[0])
    return re.sub(r"\d+", "#", re.sub(r", draft step \d+|\(row [^)]*\)", "", first))[:80]


def keep(folder: Path, history: History, text: str) -> Path:
    """Write a history that was a finding, and what was seen; return its file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"history-{history.seed}.json"
    path.write_text(history.dumps())
    path.with_suffix(".txt").write_text(f"{text}\n")
    return path
