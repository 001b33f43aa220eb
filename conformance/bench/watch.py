"""Where the host's time goes: methods of live objects, timed while they are watched."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Spent:
    """Seconds and calls by name; what a watched call inside another takes is the inner one's."""

    seconds: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    _inner: float = 0.0

    def clear(self) -> None:
        """Start anew."""
        self.seconds.clear()
        self.calls.clear()

    def timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """The same method, timed under this name."""

        def call(*args: Any, **kwargs: Any) -> Any:
            outer, self._inner = self._inner, 0.0
            began = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                took = time.perf_counter() - began
                self.seconds[name] = self.seconds.get(name, 0.0) + took - self._inner
                self.calls[name] = self.calls.get(name, 0) + 1
                self._inner = outer + took

        return call


@contextmanager
def watch(methods: Sequence[tuple[Any, str, str]]) -> Iterator[Spent]:
    """Time methods, given as (object, method, name to count under), inside the `with` block."""
    spent = Spent()
    for owner, method, name in methods:
        setattr(owner, method, spent.timed(name, getattr(owner, method)))
    try:
        yield spent
    finally:
        for owner, method, _ in methods:
            delattr(owner, method)
