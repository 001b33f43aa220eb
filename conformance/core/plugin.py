"""The pytest plugin: its options, and which part a process plays, controller or worker.

xdist's controller runs no test and needs none of what tests need, so it does not import it.
"""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from conformance.core.progress import Reporter


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


def pytest_configure(config: pytest.Config) -> None:
    option = config.option
    if not hasattr(config, "workerinput"):
        again = f" (process {option.number})" if option.number != "1" else ""
        label = f"{option.given or option.subject} on {option.tier}{again}"
        config.pluginmanager.register(Reporter(label))
    if config.getoption("dist") == "no":
        config.pluginmanager.register(import_module("conformance.core.worker"))
    else:
        config.pluginmanager.register(Controller(config))


def notes(config: pytest.Config) -> Path:
    """Return the folder for what this pytest process and its workers leave beside records."""
    option = config.option
    folder = Path(option.report) / "processes" / f"{option.tier}-{option.number}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Controller:
    """Notes which workers were lost: only their files may lack a footer."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._lost: list[str] = []

    def pytest_testnodedown(self, node: Any, error: object) -> None:
        if error:
            self._lost.append(node.workerinput["workerid"])

    def pytest_handlecrashitem(self) -> None:
        # xdist counts crashed tests as failures everywhere but here.
        session = self._config.pluginmanager.get_plugin("dsession")
        if self._config.option.maxfail and session is not None:
            session.shouldstop = "stopping after a crash"

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        (notes(self._config) / "lost.json").write_text(json.dumps(self._lost))
