"""One pytest process of a tier: started with its options, watched, and ended with all it started.

Each tier has processes of its own: the twin's interpret Triton kernels, which a GPU's must not.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.core.gateways import gateway_options
from conformance.core.gpus import VARIABLE, worker_options
from conformance.core.request import Request
from conformance.isolation.group import end_group

_CHECKOUT = Path(__file__).parents[2]
_SILENCE_S = 120.0
"""How long a pytest process may go without a line in its records, beside a test's own limit:
collecting and starting workers write none."""

_POLL_S = 0.5


@dataclass(frozen=True)
class Ended:
    """How a pytest process ended. stalled: it was killed because nothing moved any more.

    lost: the workers that died; None when nobody noted it, so all that did not finish are dead.
    """

    code: int
    stalled: bool
    lost: frozenset[str] | None


@dataclass(frozen=True)
class Process:
    """A pytest process to be. number: 1 for a tier's first. gpus: for hopper, see `gpus.names`.

    only: the cases to run, None for all that the request selects. restarts: of workers, by xdist.
    """

    request: Request
    tier: str
    number: int
    gpus: Sequence[str] = ()
    only: Sequence[str] | None = None
    restarts: int = 0

    @property
    def notes(self) -> Path:
        """The folder for what it leaves beside records."""
        return self.request.report.absolute() / "processes" / f"{self.tier}-{self.number}"

    @property
    def records(self) -> str:
        """Its record files, as `read_records` names them."""
        return f"{self.tier}-{self.number}-*"

    def record_files(self) -> list[Path]:
        """Return its record files."""
        return sorted(self.request.report.glob(f"records-{self.records}.jsonl"))

    def cases(self) -> list[str]:
        """Return what it was to run, empty when it did not come so far."""
        return self._noted("cases.json")

    def endangering(self) -> frozenset[str]:
        """Return those of its cases that it left to processes of their own."""
        return frozenset(self._noted("alone.json"))

    def _noted(self, name: str) -> list[str]:
        try:
            found: list[str] = json.loads((self.notes / name).read_text())
        except FileNotFoundError:
            return []
        return found

    def run(self) -> Ended:
        """Run it to its end, whatever that is."""
        self.notes.mkdir(parents=True, exist_ok=True)
        environment = self.environment()
        process = subprocess.Popen(self.command(), env=environment, start_new_session=True)
        try:
            stalled = self._wait(process)
        except BaseException:
            end_group(process, signal.SIGINT, signal.SIGTERM, grace_s=5.0)
            raise
        end_group(process)  # workers whose controller died, and what tests left running
        code = process.returncode if process.returncode is not None else -signal.SIGKILL
        try:
            lost = frozenset(json.loads((self.notes / "lost.json").read_text()))
        except (FileNotFoundError, json.JSONDecodeError):
            lost = None  # xdist's controller writes it: there was none, or it died itself
        return Ended(code, stalled, lost)

    def _wait(self, process: subprocess.Popen[bytes]) -> bool:
        limit = self.request.limit(self.tier)
        started = time.time()
        while True:
            try:
                process.wait(_POLL_S)
                return False
            except subprocess.TimeoutExpired:
                changed = [path.stat().st_mtime for path in self.record_files()]
                silence = time.time() - max([started, *changed])
                if limit and silence > 2 * limit + _SILENCE_S:
                    end_group(process)
                    return True

    def environment(self) -> dict[str, str]:
        """Return its environment: the caller's, without what would change how pytest runs."""
        ours = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
        ours.pop("TRITON_INTERPRET", None)
        ours["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # of strangers' plugins
        search = filter(None, (str(_CHECKOUT), os.environ.get("PYTHONPATH")))
        ours["PYTHONPATH"] = os.pathsep.join(search)
        if self.tier == "twin":
            ours["TRITON_INTERPRET"] = "1"
        elif self.gpus:
            ours[VARIABLE] = ",".join(self.gpus)
        return ours

    def command(self) -> list[str]:
        """Return its command line."""
        request = self.request
        command = [sys.executable, "-m", "pytest", *map(str, request.judges), "-q", "--tb=short"]
        command += [*self._workers(), f"--max-worker-restart={self.restarts}"]
        command += ["-p", "xdist.plugin", "-p", "conformance.core.plugin"]
        command += ["-p", "no:cacheprovider"]
        command += ["-p", "no:faulthandler"]  # the watchdog's own goes to a file of its own
        # With "=": xdist takes a word that happens to be a path here for one that it must move to
        # another host.
        command += [f"--config-file={os.devnull}", f"--report={request.report.absolute()}"]
        command += [] if request.tx else [f"--rootdir={_CHECKOUT}"]
        command += [f"--tier={self.tier}", f"--subject={request.subject}"]
        command += [f"--given={request.named}", f"--kernels={request.kernels}"]
        command += [f"--again={request.again}", f"--flashinfer={request.flashinfer}"]
        command += [f"--asked={request.asked}"] if request.asked else []
        command += [] if request.until is None else [f"--until={request.until!r}"]
        command += [f"--number={self.number}", f"--limit={request.limit(self.tier):g}"]
        command += [f"--case={case}" for case in request.cases]
        if self.only is not None:
            only = self.notes / "only.json"
            only.write_text(json.dumps(list(self.only)))
            command += [f"--only={only}"]
        identity = request.identity
        known = [e for e in request.ledger if identity and e.subject == identity.name]
        if known and identity is not None:
            ledger = self.notes / "ledger.json"
            ledger.write_text(json.dumps([entry.table() for entry in known]))
            command += [f"--ledger={ledger}", f"--subject-name={identity.name}"]
        command += [f"--subject-version={identity.version}"] if identity else []
        command += [f"--requirement={id}" for id in request.requirements]
        command += ["-x"] if request.first_failure else []
        command += [] if request.shuffle is None else [f"--shuffle={request.shuffle}"]
        command += ["--first-failure-each"] if request.first_failure_each else []
        return command

    def _workers(self) -> list[str]:
        if self.request.tx:
            return gateway_options(self.request, self.tier)
        if self.tier == "hopper":
            return worker_options(self.gpus, self.request.workers)
        return ["-n", self.request.workers]
