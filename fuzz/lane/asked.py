"""What a run asks its lanes for, as one JSON text: which seeds, and what is drawn from them."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from fuzz.serving import Profile


@dataclass(frozen=True)
class Asked:
    """Seeds `first`, `first + step`, ..., `count` of them, and what is drawn from each.

    timed: whether a limit of time may end it before they do.
    """

    first: int
    step: int
    count: int
    profile: Profile
    timed: bool = True

    @property
    def seeds(self) -> range:
        """The seeds."""
        return range(self.first, self.first + self.step * self.count, self.step)

    def dumps(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def loads(text: str) -> "Asked":
        """Return what `dumps` was given."""
        table = json.loads(text)
        profile = _tuples(table.pop("profile"))
        shape = tuple((name, value) for name, value in profile.pop("shape"))
        return Asked(**table, profile=Profile(**profile, shape=shape))


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _tuples(item) for name, item in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
