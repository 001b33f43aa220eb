"""The suite, run as a command of its own on one package, and its records read back."""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from conformance.core.catalogue import ALIVE
from conformance.core.request import ROOT, Identity
from conformance.core.run import Exit
from conformance.gate.errors import GateError
from conformance.gate.evidence import Evidence
from conformance.gate.model import Side
from conformance.isolation.group import end_group
from conformance.listing import case_ids
from conformance.report.sources import Source, read_sources

_TAIL = 1500
_FIND = "import importlib.util as u; print(u.find_spec('flashinfer').origin)"


@dataclass(frozen=True)
class SuiteRun:
    """What is run on what. given, factory: the subject as a command line and as Python name it.

    folder: holds the package `flashinfer` of this side.
    """

    given: str
    factory: str
    identity: Identity
    side: Side
    folder: Path


def run_suite(
    run: SuiteRun, environment: Mapping[str, str], report: Path, *, rehearse: bool = False
) -> Evidence:
    """Run the suite on a GPU and return its records; what it said stands beside them in a log.

    environment: all of its variables, PYTHONPATH with the package among them. rehearse: one
    case on the twin tier. Raises GateError where the suite itself failed, or
    would have run on another FlashInfer.
    """
    if not rehearse:
        _check_place(run, environment)
    tier = "twin" if rehearse else "hopper"
    command = [sys.executable, "-m", "conformance", "run", "--tier", tier]
    command += ["--subject", run.factory]
    command += ["--report", str(report.resolve())]
    if rehearse:
        one = case_ids(("twin",), (ALIVE,))[0]
        command += ["--case", one, "--kernels", "torch", "-n", "0"]
    report.parent.mkdir(parents=True, exist_ok=True)
    log = report.parent / f"{report.name}.log"
    with log.open("wb") as words:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait()
        finally:
            end_group(process)
    if code not in (Exit.CONFORMS, Exit.DOES_NOT, Exit.INCOMPLETE):
        last = log.read_bytes()[-_TAIL:].decode(errors="replace").strip()
        raise GateError(
            f"the suite on FlashInfer {run.side.version}: found exit status {code}; allowed: 0, 1 "
            f"and 2; to fix: read {log}, whose end is: {last}"
        )
    sources = read_sources([report])
    records = tuple(record for source in sources for record in source.records)
    return Evidence(
        run.side,
        run.identity.name,
        run.identity.version,
        records,
        where=str(report),
        gpu=_gpu(sources),
        command=" ".join(command[1:]),
    )


def _check_place(run: SuiteRun, environment: Mapping[str, str]) -> None:
    """Raise GateError unless Python finds the package where it was unpacked; nothing of it runs."""
    done = subprocess.run(
        [sys.executable, "-c", _FIND], env=dict(environment), capture_output=True, text=True
    )
    found = Path(done.stdout.strip() or "nowhere")
    if not found.resolve().is_relative_to(run.folder.resolve()):
        raise GateError(
            f"FlashInfer {run.side.version}: found {found} in its place; allowed: {run.folder}; to "
            "fix: look for what puts another one before it on sys.path, such as a .pth file"
        )


def _gpu(sources: list[Source]) -> str:
    seen = {str((source.environment.get("gpu") or {}).get("name", "")) for source in sources}
    return ", ".join(sorted(filter(None, seen)))
