"""Runs the lane: per tool the control with its planted fault, then the drawn cases; the verdict."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from conformance.core import gpus
from conformance.core.run import Exit
from conformance.listing import case_ids
from conformance.sanitize import control, tool
from golden import Draw

FOLDER = "sanitize"
REQUIREMENTS = {"NUM-1": 3, "NUM-2": 3, "NUM-4": 2}
"""Whose cases are drawn, and how many of each cache dtype that it varies over."""
GEOMETRIES = ("tiny", "flat", "pool", "odd", "wide")
_WATCHDOG_SECONDS = "3600"
_SHOWN = 12


class Fate(StrEnum):
    """What a tool found."""

    CLEAN = "clean"
    ERRORS = "errors"
    NOT_RUN = "not run"
    FAILED = "failed"


EXITS = {
    Fate.CLEAN: Exit.CONFORMS,
    Fate.ERRORS: Exit.DOES_NOT,
    Fate.NOT_RUN: Exit.INCOMPLETE,
    Fate.FAILED: Exit.SUITE_FAILED,
}


@dataclass(frozen=True)
class Finding:
    """A tool's result. message: one line; lines: what the tool said first; log: the whole of it."""

    tool: str
    fate: Fate
    message: str
    lines: tuple[str, ...] = ()
    log: Path | None = None


def drawn_cases() -> list[str]:
    """Some hopper cases of each cache dtype and rope width, small ones, the same every time.

    None captures a graph: without the caching allocator a capture could not allocate.
    """
    draw, chosen = Draw("sanitize"), list[str]()
    for requirement, each in REQUIREMENTS.items():
        ids = case_ids(["hopper"], [requirement])
        for dtype in ("bf16", "fp8"):
            small = [
                id for id in ids
                if f"dtype={dtype}," in id and any(f"geo={geo}," in id for geo in GEOMETRIES)
            ]  # fmt: skip
            chosen += [small[i] for i in sorted(draw.sample(len(small), min(each, len(small))))]
    return chosen


def obstacle() -> str | None:
    """Why the lane cannot run on this machine; None where it can be tried."""
    if tool.find() is None:
        return f"compute-sanitizer is neither on PATH nor in CUDA_HOME/bin; to fix: {tool.REMEDY}"
    if gpus.HOPPER not in gpus.visible_capabilities():
        return "no GPU of compute capability 9.0 is visible"
    return None


def sanitize(name: str, subject: str, cases: Sequence[str], report: Path) -> Finding:
    """Run the cases under one tool; obstacle() must be None."""
    program = tool.find()
    assert program is not None
    folder = report / FOLDER
    environment = tool.environment()
    log = folder / f"{name}-control.txt"
    tool.run(program, name, [control.__file__, name], log, environment)
    baseline = tool.read(log.read_text(errors="replace"))
    if baseline.total is None:
        said = next(iter(baseline.lines[1:]), "nothing")
        return Finding(name, Fate.NOT_RUN, f"the tool cannot run here; it said: {said}", (), log)
    if not any(control.PLANTED in where for where in baseline.where):
        message = "the tool did not report the fault planted on purpose, so it would miss others"
        return Finding(name, Fate.FAILED, message, baseline.lines[:_SHOWN], log)
    log = folder / f"{name}.txt"
    command = ["-m", "conformance", "run", "--tier", "hopper", "--subject", subject, "-n", "0"]
    # Everything is slower by a factor under the tool: no watchdog of a case may mistake that.
    command += ["--watchdog", _WATCHDOG_SECONDS]
    command += ["--report", str(folder / f"{name}-records"), *(f"--case={id}" for id in cases)]
    code = tool.run(program, name, command, log, environment)
    seen = tool.read(log.read_text(errors="replace"))
    errors = seen.beyond(baseline)
    if seen.total is None:
        message = f"the tool reported nothing; the cases ended with {code}"
        return Finding(name, Fate.FAILED, message, seen.lines[:_SHOWN], log)
    if errors:
        places = ", ".join(f"{n} in {where}" for where, n in seen.where.most_common(5))
        return Finding(name, Fate.ERRORS, f"{errors} errors ({places})", seen.lines[:_SHOWN], log)
    if code != Exit.CONFORMS:
        message = f"no errors, but the cases themselves ended with {code}; see the log's end"
        return Finding(name, Fate.FAILED, message, (), log)
    excused = f", {seen.total} of torch alone, as in the control" if seen.total else ""
    return Finding(name, Fate.CLEAN, f"0 errors in {len(cases)} cases{excused}", (), log)


def command_line(tools: Sequence[str], subject: str) -> str:
    """The command that runs the lane."""
    words = ["python", "-m", "conformance", "sanitize", "--subject", subject]
    return shlex.join([*words, *(f"--tool={name}" for name in tools)])
