"""Calling a function in a process of its own, which may crash or hang without harm to this one."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from conformance.isolation.group import end_group

CUDA_ERROR = "cuda_error"
"""The key under which a value says that CUDA failed in the child."""

_CHECKOUT = Path(__file__).parents[2]
_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_PAYLOAD_BYTES = 1 << 20
_VALUE_BYTES = 16 << 20
_TAIL_BYTES = 16 << 10
_TRACE_S = 2.0


class IsolationError(ValueError):
    """A call that cannot be made: a target that is no `module:function`, no JSON object, ..."""


@dataclass(frozen=True)
class Finished:
    """The function returned `value`, or ended in a CUDA error."""

    value: Any

    @property
    def cuda_error(self) -> str | None:
        """The CUDA error's text, None when there was none."""
        text = self.value.get(CUDA_ERROR) if isinstance(self.value, dict) else None
        return text if isinstance(text, str) else None


@dataclass(frozen=True)
class Crashed:
    """The child died, or the function raised something other than a CUDA error.

    signal: its name, None for a plain exit. stderr_tail: the end of all that the child wrote.
    """

    returncode: int
    signal: str | None
    stderr_tail: str


@dataclass(frozen=True)
class Hung:
    """The child was killed, with all that it started, because it had not ended in time."""

    timeout_s: float
    stderr_tail: str


Result = Finished | Crashed | Hung


@dataclass(frozen=True)
class Call:
    """The arguments of `run_isolated`."""

    target: str
    payload: Mapping[str, Any]
    timeout_s: float
    env: Mapping[str, str] | None = None


def run_isolated(
    target: str,
    payload: Mapping[str, Any],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
) -> Result:
    """Call `target` ('pkg.module:function') with `payload` in a fresh Python process.

    payload, and what the function returns: JSON. timeout_s: for all of it, start included. env:
    environment variables beside this process's own. Raise IsolationError for a call that cannot
    be made.
    """
    call = _checked(target, payload, timeout_s)
    with tempfile.TemporaryDirectory(prefix="isolated-") as folder:
        asked, answer = Path(folder) / "call.json", Path(folder) / "answer.json"
        asked.write_text(call)
        process = subprocess.Popen(
            [sys.executable, "-m", "conformance.isolation.inside", str(asked), str(answer)],
            env=_environment(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert process.stdout is not None
        tail = _Tail(process.stdout)
        hung = False
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            hung = True
        finally:
            # The child answers SIGABRT with a traceback.
            end_group(process, *([signal.SIGABRT] if hung else []), grace_s=_TRACE_S)
        text = tail.text()
        if hung:
            return Hung(timeout_s, text)
        return _result(process.returncode, answer, text)


def run_many(calls: Sequence[Call], workers: int) -> list[Result]:
    """Make calls, at most `workers` at a time; return their results in order."""
    with ThreadPoolExecutor(workers) as pool:
        return list(
            pool.map(
                lambda c: run_isolated(c.target, c.payload, timeout_s=c.timeout_s, env=c.env), calls
            )
        )


def _checked(target: str, payload: Mapping[str, Any], timeout_s: float) -> str:
    if not _TARGET.fullmatch(target):
        raise IsolationError(f"target {target!r}: expected 'package.module:function'")
    if not 0 < timeout_s < float("inf"):
        raise IsolationError(f"timeout {timeout_s!r}: expected seconds, more than 0")
    if not isinstance(payload, Mapping) or not all(isinstance(key, str) for key in payload):
        raise IsolationError(f"payload {payload!r:.200}: expected an object with strings as keys")
    try:
        call = json.dumps(
            {"target": target, "payload": dict(payload), "timeout_s": timeout_s}, allow_nan=False
        )
    except (TypeError, ValueError) as problem:
        raise IsolationError(f"payload {payload!r:.200}: not JSON ({problem})") from problem
    if len(call) > _PAYLOAD_BYTES:
        raise IsolationError(f"payload: {len(call)} bytes, allowed are {_PAYLOAD_BYTES}")
    return call


def _environment(more: Mapping[str, str] | None) -> dict[str, str]:
    environment = {**os.environ, **(more or {})}
    search = filter(None, (str(_CHECKOUT), environment.get("PYTHONPATH")))
    environment["PYTHONPATH"] = os.pathsep.join(search)
    return environment


def _result(returncode: int, answer: Path, text: str) -> Result:
    name = _signal_name(-returncode) if returncode < 0 else None
    if returncode != 0 or not answer.exists():
        return Crashed(returncode, name, text)
    size = answer.stat().st_size
    if size > _VALUE_BYTES:
        return Crashed(0, None, f"{text}\nits value has {size} bytes, allowed are {_VALUE_BYTES}")
    return Finished(json.loads(answer.read_text())["value"])


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class _Tail:
    """The end of a stream, read by a thread so that the writer never waits."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._kept = stream, b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while chunk := self._stream.read1(_TAIL_BYTES):  # type: ignore[attr-defined]
            self._kept = (self._kept + chunk)[-_TAIL_BYTES:]
        self._stream.close()

    def text(self) -> str:
        """Wait for the stream's end, not for long, and return what was kept."""
        self._thread.join(_TRACE_S)
        return self._kept.decode(errors="replace")
