"""Workers on other hosts: they send their record lines along, and the controller writes the files.

A worker's lines travel with pytest's reports, the first of a case before its test runs. So the
controller's copy says what a file on one host says: after a death, which case was under way.
"""

import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import pytest

HISTORY = "history"
"""The name of a history's counts among what a report brings along."""
LINES = "record lines"
"""What a report's property, or a worker's output, with record lines is called."""
_AWAY, _LEFT_S, _ONLY = "away", "left_s", "only"
_FOLDER = pytest.StashKey[tempfile.TemporaryDirectory[str]]()


def _input(config: pytest.Config) -> Mapping[str, Any]:
    found: Mapping[str, Any] = getattr(config, "workerinput", {})
    return found


def given_away(option: Any) -> dict[str, Any]:
    """Return what a worker on another host is told: it sees neither our files nor our clock."""
    only = json.loads(Path(option.only).read_text()) if option.only else []
    left = None if option.until is None else option.until - time.monotonic()
    return {_AWAY: True, _LEFT_S: left, _ONLY: only}


def is_away(config: pytest.Config) -> bool:
    """Whether this process is a worker on another host."""
    return bool(_input(config).get(_AWAY))


def until(config: pytest.Config) -> float | None:
    """Return when no further case starts, by this host's monotonic clock; None for never."""
    if not is_away(config):
        at: float | None = config.option.until
        return at
    left = _input(config)[_LEFT_S]
    return None if left is None else time.monotonic() + left


def only_of(config: pytest.Config) -> list[str]:
    """Return the cases that a run is restricted to, none for all."""
    if is_away(config):
        sent: list[str] = _input(config)[_ONLY]
        return sent
    path = config.option.only
    found: list[str] = json.loads(Path(path).read_text()) if path else []
    return found


def own_folder(config: pytest.Config) -> Path:
    """Return a folder of this worker's own, gone with it."""
    if _FOLDER not in config.stash:
        config.stash[_FOLDER] = tempfile.TemporaryDirectory(prefix="smla-worker-")
    return Path(config.stash[_FOLDER].name)


class Sender:
    """Keeps a worker's record lines until they can be sent; on the controller's host it is idle."""

    def __init__(self, config: pytest.Config) -> None:
        self._config, self.away = config, is_away(config)
        self._lines: list[str] = []
        self._nodeid = ""

    def hear(self, line: str) -> None:
        """Keep a line."""
        self._lines.append(line)

    def properties(self) -> list[tuple[str, object]]:
        """Return what is to be added to the report at hand, for the lines heard so far."""
        lines, self._lines = self._lines, []
        return [(LINES, "".join(lines))] if lines else []

    def under_way(self, nodeid: str) -> None:
        """Note the test that runs."""
        self._nodeid = nodeid

    def send_now(self) -> None:
        """Send what is there in a report of its own: this process is about to end itself."""
        if self.away:
            report = pytest.TestReport(
                self._nodeid, ("", None, ""), {}, "failed", None, "call",
                user_properties=self.properties(),
            )  # fmt: skip
            self._config.hook.pytest_runtest_logreport(report=report)

    def finish(self) -> None:
        """Send the last lines with what a worker says at its end."""
        if self.away:
            output: dict[str, object] = getattr(self._config, "workeroutput")  # noqa: B009
            output.update(self.properties())


class Copies:
    """The controller's copies of the record files of workers on other hosts.

    folder: of the report. pattern: of their names, with a place for the worker's. cases: the file
    with the cases to run, which such workers cannot write.
    """

    def __init__(self, folder: Path, pattern: str, cases: Path) -> None:
        self._folder, self._pattern, self._cases = folder, pattern, cases
        self._files: dict[str, IO[str]] = {}

    def collected(self, nodeids: list[str]) -> None:
        """Note which cases there are, unless a worker on this host has done so."""
        if not self._cases.exists():
            ids = [nodeid.partition("[")[2].removesuffix("]") for nodeid in nodeids]
            self._cases.write_text(json.dumps(ids))

    def hear(self, worker: str, said: Mapping[str, Any]) -> None:
        """Write the lines that a worker sent, if it sent any."""
        lines = said.get(LINES)
        if not lines:
            return
        if worker not in self._files:
            self._files[worker] = (self._folder / self._pattern.format(worker)).open("w")
        file = self._files[worker]
        file.write(lines)
        file.flush()
