"""Statistics of repeated timings: medians, 99th percentiles, and how far repeats lie apart."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_MICROSECONDS = 1e6


@dataclass(frozen=True)
class Repeat:
    """One repeat's median and 99th percentile, microseconds, of `count` samples."""

    median: float
    p99: float
    count: int


@dataclass(frozen=True)
class Timing:
    """Median and 99th percentile of all samples, microseconds, and the repeats they come from."""

    median: float
    p99: float
    repeats: tuple[Repeat, ...]

    @property
    def spread(self) -> float:
        """Largest less smallest of the repeats' medians, in the median."""
        medians = [repeat.median for repeat in self.repeats]
        return (max(medians) - min(medians)) / self.median if self.median else 0.0

    def as_json(self) -> dict[str, Any]:
        """All of it, as the report holds it."""
        return {
            "median_us": self.median,
            "p99_us": self.p99,
            "spread": self.spread,
            "repeats": [
                {"median_us": r.median, "p99_us": r.p99, "count": r.count} for r in self.repeats
            ],
        }


def summarize(repeats: Sequence[Sequence[float]]) -> Timing:
    """The timing of each repeat's samples, given in seconds; none may be empty."""
    each = tuple(
        Repeat(_MICROSECONDS * statistics.median(r), _MICROSECONDS * percentile(r, 0.99), len(r))
        for r in repeats
    )
    pooled = [sample for repeat in repeats for sample in repeat]
    return Timing(
        _MICROSECONDS * statistics.median(pooled), _MICROSECONDS * percentile(pooled, 0.99), each
    )


def percentile(samples: Sequence[float], part: float) -> float:
    """The smallest sample that at least this part of all samples do not exceed."""
    return sorted(samples)[max(math.ceil(part * len(samples)), 1) - 1]
