"""After a pytest process: what its dead workers left open is closed, and every fault has a name."""

import logging
import signal
from pathlib import Path

from conformance.core.process import Ended, Process
from conformance.core.record import Outcome, close_dead, load
from conformance.core.watchdog import SECOND_STAGE

_TAIL = 3000
_log = logging.getLogger(__name__)


def settle(process: Process, ended: Ended) -> int:
    """Close the files of workers known to be dead; return how many workers were lost to faults.

    Other files without a footer stay as they are, and so remain an error to whoever reads them.
    A worker that only went with its controller is not to blame: its case may run again.
    """
    files = process.record_files()
    faults = len((ended.lost or frozenset()) - {path.stem.rpartition("-")[2] for path in files})
    for path in files:
        worker = path.stem.rpartition("-")[2]
        if not path.read_text():
            path.unlink()  # it died before its header: no case was near
            faults += 1
            continue
        file = load(path)
        if file.whole:
            faults += bool(file.left)
        elif ended.lost is None or worker in ended.lost:
            trace = _read(process.notes / f"faults-{worker}.txt")
            hung = SECOND_STAGE in trace or ended.stalled
            how = _how(trace, ended if worker == "main" else None)
            outcome, said = Outcome.HANG if hung else Outcome.CRASH, f"{how}\n{trace[:_TAIL]}"
            victim = ended.lost is None and worker != "main" and not (trace or ended.stalled)
            if close_dead(path, None if victim else outcome, said) is None:
                _log.warning("%s died, no case is to blame: %s", path.stem, said)
            faults += 1
    return faults


def _how(trace: str, own: Ended | None) -> str:
    if own is not None and own.stalled:
        return "it did not end, nor did its watchdog; its process was killed"
    if SECOND_STAGE in trace:
        return "no end in time, and no thread of it could run"
    if own is not None and own.code < 0:
        return f"its process died of {_signal(-own.code)}"
    if own is not None:
        return f"its process left with exit status {own.code}"
    return "its process died" if trace else "its process left without a word, or was killed"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except FileNotFoundError:
        return ""
