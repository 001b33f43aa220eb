"""The watchdog of a process that runs tests: a test that does not end is named, then ended.

Its first stage is a thread, which can say where the test stands. Its second is a C thread for the
case that the test holds the interpreter's lock; it can only leave a traceback and end the process.
"""

import faulthandler
import sys
import threading
import traceback
from collections.abc import Callable
from typing import IO

SECOND_STAGE = "Timeout ("
"""What the second stage's traceback starts with."""

_GRACE_S = 10.0


class Watchdog:
    """Watches one test at a time.

    limit_s: 0 watches nothing. file: where fatal signals and the second stage write tracebacks.
    hung: called from the watchdog's thread with words about where the test stands.
    """

    def __init__(self, limit_s: float, file: IO[str], hung: Callable[[str], None]) -> None:
        self._limit, self._file, self._hung = limit_s, file, hung
        self._watched = threading.main_thread().ident
        self._timer: threading.Timer | None = None
        faulthandler.enable(file)

    def arm(self) -> None:
        """Start watching."""
        if self._limit:
            self._timer = threading.Timer(self._limit, self._fire)
            self._timer.daemon = True
            self._timer.start()
            second = self._limit + min(self._limit, _GRACE_S)
            faulthandler.dump_traceback_later(second, exit=True, file=self._file)

    def disarm(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            faulthandler.cancel_dump_traceback_later()
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        frame = sys._current_frames().get(self._watched or 0)
        stack = "".join(traceback.format_stack(frame)[-6:]) if frame else ""
        self._hung(f"no end after {self._limit:g} s; it stands at\n{stack}")
