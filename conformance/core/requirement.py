"""The decorator that makes a test function the judge of a requirement."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conformance.core.case import spread
from conformance.core.catalogue import REQUIREMENTS


@dataclass(frozen=True)
class Judge:
    """Which requirement a test judges, and the dimensions its cases vary over."""

    requirement: str
    vary: Mapping[str, Sequence[object]]

    def cases(self, tier: str) -> list[str]:
        """Return the ids of the cases that a full run of a tier makes."""
        return list(
            spread(self.requirement, REQUIREMENTS[self.requirement].minimum(tier), self.vary)
        )


def requirement(id: str, **vary: Sequence[object]) -> Callable[[Any], Any]:
    """Mark a test as the judge of `id`, its cases spread over the product of `vary`."""

    def mark(function: Any) -> Any:
        function.judge = Judge(id, vary)
        return function

    return mark
