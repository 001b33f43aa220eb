"""The pytest plugin: its options, and which part a process plays, controller or worker.

xdist's controller runs no test and needs none of what tests need, so it does not import it.
"""

import json
import logging
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from conformance.core.again import AGAIN
from conformance.core.away import Copies, given_away, is_away, own_folder
from conformance.core.progress import Reporter

PROGRESS = "conformance-progress"
"""The name that the progress reporter is registered under: judges may count what they like."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance")
    group.addoption("--tier", default="twin")
    group.addoption("--subject", default="")
    group.addoption("--given", default="", help="The subject's name on the command line.")
    group.addoption("--subject-name", default="", help="What it calls itself.")
    group.addoption("--subject-version", default="")
    group.addoption("--ledger", default="", help="JSON file with its known deviations.")
    group.addoption("--report", default="conformance-report")
    group.addoption("--case", action="append", default=[])
    group.addoption("--requirement", action="append", default=[])
    group.addoption("--kernels", default="auto")
    group.addoption("--flashinfer", default="auto")
    group.addoption("--limit", type=float, default=0.0, help="Seconds a test may take.")
    group.addoption("--number", default="1", help="Which of a tier's pytest processes this is.")
    group.addoption("--first-failure-each", action="store_true")
    group.addoption("--shuffle", type=int, help="Seed of another order of the cases.")
    group.addoption("--only", default="", help="JSON file with the cases to run.")
    group.addoption("--again", default=AGAIN, help="Template of the command of a case.")
    group.addoption("--asked", default="", help="What the judges want to know, in their form.")
    group.addoption("--until", type=float, help="When no further case starts; monotonic clock.")


def pytest_configure(config: pytest.Config) -> None:
    option = config.option
    if not hasattr(config, "workerinput"):
        again = f" (process {option.number})" if option.number != "1" else ""
        label = f"{option.given or option.subject} on {option.tier}{again}"
        config.pluginmanager.register(Reporter(label), PROGRESS)
    if config.getoption("dist") == "no":
        config.pluginmanager.register(import_module("conformance.core.worker"))
    else:
        config.pluginmanager.register(Controller(config))


def notes(config: pytest.Config) -> Path:
    """Return the folder for what this pytest process and its workers leave beside records."""
    if is_away(config):
        return own_folder(config)
    option = config.option
    folder = Path(option.report) / "processes" / f"{option.tier}-{option.number}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


_log = logging.getLogger(__name__)


class Controller:
    """Notes which workers were lost: only their files may lack a footer.

    It also keeps the records of those on other hosts.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._lost: list[str] = []
        option = config.option
        pattern = f"records-{option.tier}-{option.number}-{{}}.jsonl"
        self._copies = Copies(Path(option.report), pattern, notes(config) / "cases.json")

    def pytest_configure_node(self, node: Any) -> None:
        if not node.gateway.spec.popen:
            node.workerinput.update(given_away(self._config.option))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """See that a host that is gone for good does not end the run: its worker is not replaced.

        xdist would fail itself when it cannot start a worker in the place of a lost one.
        """
        session: Any = self._config.pluginmanager.get_plugin("dsession")
        clone = getattr(session, "_clone_node", None)  # of xdist 3; there is no hook for it
        if clone is None:
            _log.warning("this pytest-xdist cannot be kept from replacing a host that is gone")
            return

        def replaced(node: Any) -> Any:
            try:
                return clone(node)
            except Exception as problem:  # execnet raises anything here
                _log.warning("%s is not replaced: %s", node.gateway.spec, problem)
                return None

        session._clone_node = replaced

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._copies.collected(ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        node = getattr(report, "node", None)
        if node is not None:
            self._copies.hear(node.workerinput["workerid"], dict(report.user_properties))

    def pytest_testnodedown(self, node: Any, error: object) -> None:
        name = node.workerinput["workerid"]
        if error:
            self._lost.append(name)
        else:
            self._copies.hear(name, node.workeroutput)

    def pytest_handlecrashitem(self) -> None:
        # xdist counts crashed tests as failures everywhere but here.
        session = self._config.pluginmanager.get_plugin("dsession")
        if self._config.option.maxfail and session is not None:
            session.shouldstop = "stopping after a crash"

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        (notes(self._config) / "lost.json").write_text(json.dumps(self._lost))
