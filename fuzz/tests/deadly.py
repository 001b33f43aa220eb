"""A subject that is right, but ends or stops its process in certain histories.

Its text names them: `HOW:MARK,...`, by what a history's subject is constructed for.
"""

import os
import signal
import time
from typing import Any

from conformance.core.case import GEOMETRIES, Geometry
from fuzz.serving import Profile, drawn
from fuzz.tests import blind

FACTORY = "fuzz.tests.deadly:Deadly"
LONG_S = 600.0
SSHD = "SMLA_TEST_SSHD"


def _leave() -> None:
    os._exit(0)  # the status that looks best


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _hang() -> None:
    time.sleep(LONG_S)


def _host() -> None:
    """Kill this process and the host's sshd, whose number is told on that host alone."""
    number = os.environ.get(SSHD)
    if number is not None:
        os.kill(int(number), signal.SIGKILL)
        _kill()


WAYS = {"leave": _leave, "kill": _kill, "hang": _hang, "host": _host}


def mark(seed: int, profile: Profile) -> str:
    """Return what tells a seed's history from others."""
    shape = drawn(seed, profile).shape
    return _mark(shape.heads, GEOMETRIES[shape.geo], shape.dtype == "fp8", shape.force_mqa)


def _mark(heads: int, geometry: Geometry, fp8: bool, force_mqa: bool) -> str:
    return f"{heads}-{geometry.topk_width}-{fp8:d}-{force_mqa:d}"


def subject(ways: dict[int, str], seeds: range, profile: Profile) -> str:
    """Return the subject that meets its fate in some of the seeds, and in no other of them."""
    marks = [mark(seed, profile) for seed in seeds]
    for seed in ways:
        assert marks.count(mark(seed, profile)) == 1, f"another seed looks like {seed}: choose anew"
    return f"{FACTORY}@" + ",".join(f"{how}:{mark(seed, profile)}" for seed, how in ways.items())


class Deadly(blind.Faulty):
    """The real subject, but for certain histories."""

    def __init__(self, text: str = "") -> None:
        super().__init__(blind.Instance)
        self.name = "deadly"
        pairs = [part.split(":") for part in filter(None, text.split(","))]
        self._ways = {mark: WAYS[how] for how, mark in pairs}

    def construct(self, config: Any, *args: Any, **options: Any) -> Any:
        own = _mark(config.num_heads, config.geometry, config.fp8, config.force_mqa)
        way = self._ways.get(own)
        if way is not None:
            way()
        return super().construct(config, *args, **options)


class ShowsNothing(blind.Faulty):
    """Has no capability, so that histories with graphs cannot be played, and counts as nothing."""

    def __init__(self) -> None:
        super().__init__(blind.Instance)
        self.capabilities = frozenset()


class Refuses(blind.Faulty):
    """Raises but for 16 heads, which every hunt starts with."""

    def __init__(self) -> None:
        super().__init__(blind.Instance)

    def construct(self, config: Any, *args: Any, **options: Any) -> Any:
        if config.num_heads != 16:
            raise ValueError("other heads")
        return super().construct(config, *args, **options)
