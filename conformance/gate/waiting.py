"""Whether a call waits for the device, and in which function: it is made behind a held device."""

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from conformance.core.blocking import BlockedClock, BlockedGpu
from conformance.gate.load import Load

PACKAGE = "flashinfer"

_SHORT = 150_000
"""Reads of the flag, some tenths of a second: far longer than any call that does not wait."""

_LOOK_S = 0.02


def waited(
    load: Load, call: Callable[[], object], folder: str, *, gpu: bool, known: str | None = None
) -> dict[str, Any]:
    """Return whether the host waits in a call, and where, as {"waits": bool or None, "cause": str}.

    folder: holds the package; a cause is told as `file: function` in it. gpu: whether a GPU can be
    held. A call that seemed to wait is made again behind a device that is held for seconds, so a
    host that was merely slow is not blamed; known: where the same call was seen to wait at another
    shape, which need not be seen twice. None: nothing here can be held.
    """
    load.runtime.synchronize()
    if gpu:
        if not _outlasts(load, call, BlockedGpu(_SHORT)):
            return {"waits": False, "cause": ""}
        if known is not None:
            return {"waits": True, "cause": known}
        with _Watch(folder) as watch:
            again = _outlasts(load, call, BlockedGpu())
        return {"waits": again, "cause": watch.place() if again else ""}
    if hasattr(load.runtime, "block"):
        return {"waits": _outlasts(load, call, BlockedClock(load.runtime)), "cause": ""}
    before = load.waits()
    call()
    after = load.waits()
    return {"waits": None if before is None or after is None else after > before, "cause": ""}


def place_of(frames: Iterable[FrameType], folder: str) -> str:
    """Return the first of these frames that is in the package, as `file: function`, else "".

    frames: the innermost first. folder: holds the package, or is empty.
    """
    for frame in frames if folder else ():
        with suppress(ValueError):
            name = Path(frame.f_code.co_filename).resolve().relative_to(folder)
            if name.parts[0] == PACKAGE:
                return f"{name.as_posix()}: {frame.f_code.co_qualname}"
    return ""


def _outlasts(load: Load, call: Callable[[], object], held: BlockedGpu | BlockedClock) -> bool:
    """Whether a call returns only once the device goes on."""
    try:
        call()
        return not held.pending()
    finally:
        held.release()
        load.runtime.synchronize()


class _Watch:
    """Looks from another thread at where this one stands, as long as it is in the `with` block."""

    def __init__(self, folder: str) -> None:
        self._folder, self._seen = folder, Counter[str]()
        self._over, self._watched = threading.Event(), threading.get_ident()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "_Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def place(self) -> str:
        """Where in the package it stood most of the time; empty where it was not seen there."""
        return next((place for place, _ in self._seen.most_common() if place), "")

    def _look(self) -> None:
        while not self._over.wait(_LOOK_S):
            frame = sys._current_frames().get(self._watched)
            frames = []
            while frame is not None:
                frames.append(frame)
                frame = frame.f_back
            self._seen[place_of(frames, self._folder)] += 1
