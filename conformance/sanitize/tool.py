"""Finds compute-sanitizer, runs a command under one of its tools, and reads what it says."""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TOOLS = ("memcheck", "initcheck")
REMEDY = "install NVIDIA's CUDA toolkit and put its bin folder on PATH, or set CUDA_HOME"
_PRINT_LIMIT = "2000"
# compute-sanitizer marks its own lines; everything else is the program's output.
_MARK = "========="
_SUMMARY = re.compile(rf"^{_MARK} ERROR SUMMARY: (\d+) errors?", re.M)
# A report starts with a line that is indented by one space; its details are indented further.
_HEAD = re.compile(rf"^{_MARK} (?! )(.+)$")
_WHERE = re.compile(rf"^{_MARK} +(?:at|in) +(?:0x[0-9a-f]+ in )?(.+)$")
_NO_ERROR = ("COMPUTE-SANITIZER", "ERROR SUMMARY", "LEAK SUMMARY", "RACECHECK SUMMARY", "Target")


@dataclass(frozen=True)
class Reading:
    """What a tool said of one run.

    total: errors of all processes, None when it said nothing. where: the errors it described, by
    function. lines: the tool's own first lines.
    """

    total: int | None
    where: Counter[str]
    lines: tuple[str, ...]

    def beyond(self, baseline: "Reading") -> int:
        """Errors that are not in functions in which the baseline had some, too."""
        excused = sum(n for name, n in self.where.items() if name in baseline.where)
        return max((self.total or 0) - excused, 0)


def find() -> Path | None:
    """The program on PATH, or in CUDA_HOME's or CUDA_PATH's bin; None where there is none."""
    folders = [f"{home}/bin" for name in ("CUDA_HOME", "CUDA_PATH") if (home := os.getenv(name))]
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *folders])
    found = shutil.which("compute-sanitizer", path=path)
    return Path(found) if found else None


def run(
    program: Path, tool: str, command: Sequence[str], log: Path, variables: Mapping[str, str]
) -> int:
    """Run Python with these arguments under a tool; all output goes to `log`; the exit code."""
    line = [str(program), "--tool", tool, "--target-processes", "all"]
    line += ["--print-limit", _PRINT_LIMIT, sys.executable, *command]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        return subprocess.run(
            line, env={**variables}, stdout=file, stderr=subprocess.STDOUT, check=False
        ).returncode


def environment() -> dict[str, str]:
    """This process's, with torch's caching allocator off: each tensor is an allocation."""
    return {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONUNBUFFERED": "1"}


def read(text: str) -> Reading:
    """Read a tool's output, which may hold several processes' and the program's own."""
    summaries = [int(number) for number in _SUMMARY.findall(text)]
    lines = [line for line in text.splitlines() if line.startswith(_MARK)]
    where: Counter[str] = Counter()
    head = ""
    for line in lines:
        match = _HEAD.match(line)
        if match is not None:
            if head:
                where[head] += 1  # the report before named no function
            head = "" if match[1].startswith(_NO_ERROR) else match[1].strip()
        elif head and (place := _WHERE.match(line)) is not None:
            where[_function(place[1])] += 1
            head = ""
    if head:
        where[head] += 1
    said = tuple(line for line in lines if line.strip("= "))
    return Reading(sum(summaries) if summaries else None, where, said)


def _function(text: str) -> str:
    """The function's name alone: without offset, file, template and call arguments."""
    return re.split(r"[<(+]| \[", text, maxsplit=1)[0].strip()
