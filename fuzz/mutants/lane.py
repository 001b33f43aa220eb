"""A lane: histories of one starting seed on, of the plain profile, until one is a finding.

`python -m fuzz.mutants.lane FILE START:MOST...` plays lanes in this process, and appends each to
FILE as a line of JSON.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from conformance import tiers
from conformance.core.allocator import keep_freed_memory
from conformance.core.subject import Subject, Tier
from conformance.core.worker import load_subject
from conformance.subjects import DEFAULT, SUBJECTS
from fuzz.findings import kind
from fuzz.player import play
from fuzz.serving import PLAIN, drawn


@dataclass(frozen=True)
class Lane:
    """What a lane came to. start: its first seed. histories: how many were played.

    found: what the last of them showed, as `fuzz.findings.kind` says it, empty where none was a
    finding. crashes: histories that ended with an exception which no check raised: no findings.
    """

    start: int
    histories: int
    found: str
    crashes: int
    seconds: float

    @property
    def until(self) -> int | None:
        """Histories until the finding, that one included; None without one."""
        return self.histories if self.found else None


def walk(start: int, most: int, subject: Subject, tier: Callable[[int], Tier]) -> Lane:
    """Play at most `most` histories from a seed on. tier: which tier a seed is played on."""
    began, crashes, played = time.monotonic(), 0, 0
    found = ""
    for seed in range(start, start + most):
        finding = play(drawn(seed, PLAIN), subject, tier(seed)).finding
        played += 1
        if finding and finding.crash:
            crashes += 1
        elif finding:
            found = kind(finding)
            break
    return Lane(start, played, found, crashes, round(time.monotonic() - began, 1))


def twin(seed: int) -> Tier:
    """Return the tier that `python -m fuzz run` plays a seed on."""
    return tiers.tier("twin", tiers.simulated(seed, "auto"))


def main(arguments: list[str]) -> None:
    """Play the lanes that the command line names."""
    torch.set_num_threads(1)
    keep_freed_memory()
    file, subject = Path(arguments[0]), load_subject(SUBJECTS[DEFAULT])
    for text in arguments[1:]:
        start, _, most = text.partition(":")
        lane = walk(int(start), int(most), subject, twin)
        with file.open("a") as lines:
            lines.write(json.dumps(asdict(lane)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
