"""Which seeds a host plays: every N-th from the I-th on, so that no two hosts share one."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click


@dataclass(frozen=True)
class Shard:
    """Part `index` of `count`, from 1 on."""

    index: int = 1
    count: int = 1

    def share(self, histories: int) -> int:
        """Return how many of the first so many seeds are its own."""
        return len(range(self.index - 1, histories, self.count))

    def lists(self, first: int, histories: int | None, size: int) -> Iterator[range]:
        """Yield its seeds from `first` on, `histories` of them or for ever, in lists of `size`."""
        start, step = first + self.index - 1, self.count
        for done in itertools.count(0, size):
            left = size if histories is None else min(size, histories - done)
            if left <= 0:
                return
            yield range(start + done * step, start + (done + left) * step, step)

    class Type(click.ParamType):
        """Reads I/N."""

        name = "I/N"

        def convert(self, value: Any, param: Any, ctx: Any) -> "Shard":
            """Return the shard that a text names."""
            if isinstance(value, Shard):
                return value
            found = re.fullmatch(r"(\d+)/(\d+)", value)
            index, count = map(int, found.groups()) if found else (0, 0)
            if not 1 <= index <= count:
                self.fail(f"found {value!r}; allowed: I/N with I from 1 to N", param, ctx)
            return Shard(index, count)
