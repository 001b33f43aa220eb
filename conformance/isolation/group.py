"""Process groups: a child and all that it started are ended together."""

import os
import signal
import subprocess
from contextlib import suppress
from typing import Any

_DEAD_S = 30.0
"""How long a killed process may take to go: one that waits for a GPU does not go at once."""


def end_group(process: subprocess.Popen[Any], *first: signal.Signals, grace_s: float = 2.0) -> None:
    """End a process that leads its own group, and the rest of the group.

    first: signals to try before SIGKILL, each given `grace_s` to work.
    """
    for polite in first:
        if process.poll() is None:
            _signal(process.pid, polite)
            _wait(process, grace_s)
    _signal(process.pid, signal.SIGKILL)
    _wait(process, _DEAD_S)


def _signal(group: int, which: signal.Signals) -> None:
    # Gone altogether, or (on some systems) only a zombie left.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, which)


def _wait(process: subprocess.Popen[Any], timeout_s: float) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout_s)
