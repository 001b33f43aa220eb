"""A child process that answers in JSON lines, and is ended with all that it started.

The child writes answers where `answering()` says, so that what its libraries print cannot pass for
one.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from conformance.gate.errors import GateError
from conformance.isolation.group import end_group

_TAIL, _LINES = 4000, 3
_GRACE_S = 5.0


class ChildDied(GateError):
    """A child ended or was ended instead of answering; the message says how, and its last words.

    blameless: for want of time, or killed from outside (as for want of memory): which says nothing
    of the code that it ran.
    """

    def __init__(self, message: str, *, blameless: bool = False) -> None:
        super().__init__(message)
        self.blameless = blameless


class Talk:
    """A child, asked one thing at a time; a context that ends it."""

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], scratch: Path
    ) -> None:
        """Start it. name: for messages. scratch: a folder for what it writes to standard error."""
        self.name = name
        self._words = scratch / f"{name}.stderr"
        self._lines: queue.Queue[str | None] = queue.Queue()
        with self._words.open("ab") as words:
            self._process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                text=True,
                start_new_session=True,
            )
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> "Talk":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def ask(self, question: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Return the answer; raise ChildDied where there is none in time."""
        assert self._process.stdin is not None
        with suppress(OSError):  # where it is gone, why is told below
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            # Its answer to SIGABRT is a traceback, where faulthandler is on.
            end_group(self._process, signal.SIGABRT)
            raise ChildDied(
                f"{self.name}: found no answer to {question.get('do')!r} within {timeout_s:g} s; "
                f"it was ended. Its last words: {self.last_words()}",
                blameless=True,
            ) from None
        if line is None:
            self._lines.put(None)  # whoever asks next need not wait to learn the same
            with suppress(subprocess.TimeoutExpired):  # its traceback may still be on its way
                self._process.wait(_GRACE_S)
            how = self._how()
            end_group(self._process)
            raise ChildDied(
                f"{self.name}: its process ended at {question.get('do')!r} ({how}). Its "
                f"last words: {self.last_words()}",
                blameless=how == signal.SIGKILL.name,
            )
        try:
            answer = json.loads(line)
        except json.JSONDecodeError:
            answer = None
        if not isinstance(answer, dict):
            self.end()
            raise ChildDied(f"{self.name}: found {line[:200]!r} in place of an answer")
        return answer

    def end(self) -> None:
        """End it and all that it started; harmless when it is gone."""
        if self._process.stdin is not None:
            with suppress(OSError, subprocess.TimeoutExpired):
                self._process.stdin.close()  # a child that waits for a question ends by itself
                self._process.wait(_GRACE_S)
        end_group(self._process)

    def last_words(self) -> str:
        """The last lines of what it wrote to standard error, in one."""
        text = self._words.read_bytes()[-_TAIL:].decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip(" ~^")]
        return " / ".join(lines[-_LINES:]) or "none"

    def _how(self) -> str:
        code = self._process.poll()
        if code is None:
            return "it closed its output"
        if code < 0:
            return signal.Signals(-code).name
        return f"exit status {code}"

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)


@contextmanager
def answering() -> Iterator[tuple[Iterator[dict[str, Any]], IO[str]]]:
    """In a child: the questions, and where answers go; what else is printed goes to standard error.

    Native code that writes to file descriptor 1 is sent to standard error, too.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    try:
        yield (json.loads(line) for line in sys.stdin), answers
    finally:
        answers.close()
