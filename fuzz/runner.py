"""Plays one seed after the other, for so many histories or so long, and counts what was reached."""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from conformance.core.subject import Subject, Tier, Unobservable
from fuzz.failure import Finding
from fuzz.history import History
from fuzz.player import Played, play
from fuzz.reach import Pair, pairs
from fuzz.serving import Profile, drawn
from fuzz.telling import told


@dataclass
class Tally:
    """What a run saw. distinct: findings by what they say, numbers left out, with their seeds."""

    histories: int = 0
    frames: int = 0
    rows: int = 0
    requests: int = 0
    plans: int = 0
    seconds: float = 0.0
    ratio: float = 0.0
    unobservable: Counter[str] = field(default_factory=Counter)
    reached: Counter[Pair] = field(default_factory=Counter)
    distinct: dict[str, list[int]] = field(default_factory=dict)

    def add(self, history: History, played: Played) -> None:
        """Count one history."""
        self.histories += 1
        self.frames += played.frames
        self.rows += played.rows
        self.requests += played.requests
        self.plans += played.plans
        self.ratio = max(self.ratio, played.ratio)
        self.reached.update(pairs(played.reached))
        if played.finding:
            self.distinct.setdefault(kind(played.finding), []).append(history.seed)

    def line(self) -> str:
        """Return it in a line."""
        rate = self.frames / self.seconds if self.seconds else 0.0
        each = max(self.frames, 1)
        anew = 100 * self.plans / each
        return (
            f"{self.histories} histories, {self.frames} steps ({rate:.1f} a second), "
            f"{self.requests / each:.1f} requests and {self.rows / each:.1f} rows a step, "
            f"{anew:.0f} % replanned, worst error {self.ratio:.2f} of its bound, "
            f"{len(self.distinct)} distinct findings"
        )


def kind(finding: Finding) -> str:
    """Return what a finding says, without what differs from one to the next."""
    first = re.sub(r"^FUZZ/\S+: ", "", finding.message.partition("\n")[0])
    plain = re.sub(r"\d+", "#", re.sub(r", draft step \d+|\(row [^)]*\)", "", first))
    return f"{finding.fault or 'no fault'}: {plain[:80]}"


def run(
    seeds: Iterable[int],
    profile: Profile,
    subject: Subject,
    tier: Callable[[int], Tier],
    *,
    seconds: float | None = None,
    again: Callable[[int], str] = lambda seed: "",
    told: Callable[[Tally, History, Played], None] = lambda *_: None,
) -> Tally:
    """Play the histories of seeds until they end, or until so many seconds are over.

    tier: which tier a seed is played on. again: the command that plays a seed again. told: called
    after each history.
    """
    tally, began = Tally(), time.monotonic()
    for seed in seeds:
        if seconds is not None and time.monotonic() - began >= seconds:
            break
        history = drawn(seed, profile)
        try:
            played = play(history, subject, tier(seed), again(seed))
        except Unobservable as problem:
            tally.unobservable[str(problem)] += 1
            continue
        tally.seconds = time.monotonic() - began
        tally.add(history, played)
        told(tally, history, played)
    return tally


def keep(folder: Path, history: History, finding: Finding) -> Path:
    """Write a history that was a finding, and what was seen; return its file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"history-{history.seed}.json"
    path.write_text(history.dumps())
    path.with_suffix(".txt").write_text(f"{told(history, finding)}\n")
    return path
