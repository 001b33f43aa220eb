"""Progress of a fuzz run: histories, steps, steps a second, distinct findings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from conformance.core.away import HISTORY
from conformance.core.progress import NOTHING, Tally


@dataclass
class Histories(Tally):
    """Counts histories by what their reports say of them. until: when time is over, None: never."""

    until: float | None = None
    steps: int = 0
    kinds: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)

    def hear(
        self, test: str, *, last: bool, failed: bool, known: bool, said: Mapping[str, Any] = NOTHING
    ) -> None:
        """Count a phase of a history; one whose process died has no more to say."""
        super().hear(test, last=last, failed=failed, known=known, said=said)
        seen = said.get(HISTORY)
        if seen:
            self.steps += seen["steps"]
            self.kinds |= {seen["kind"]} - {""}
        elif last and test in self.failed:
            self.dead.add(test)

    @property
    def share(self) -> tuple[float, float]:
        """How much of the time has passed, or how many of the histories are played."""
        if self.until is None or self.since is None:
            return super().share
        return self.clock() - self.since, self.until - self.since

    @property
    def distinct(self) -> int:
        """Distinct findings; deaths count as one, for nothing is known of them here."""
        return len(self.kinds) + bool(self.dead)

    def text(self) -> str:
        """Say all of it in a line."""
        passed = self.clock() - self.since if self.since is not None else 0.0
        rate = self.steps / passed if passed > 0 else 0.0
        parts = [f"{len(self.done)} histories", f"{self.steps} steps", f"{rate:.1f} a second"]
        parts.append(f"{self.distinct} distinct findings")
        if self.until is not None:
            parts.append(f"{max(self.until - self.clock(), 0):.0f} s left")
        elif self.total:
            parts.append(f"of {self.total} histories")
        return ", ".join(parts)
