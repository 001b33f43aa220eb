"""The process that runs requirements: cases as parameters, a record for each, faults contained.

After each test on a GPU it waits for the device, so that an error is charged to the test that
caused it. A worker whose CUDA context is dead writes its record and leaves before xdist hears of
the test: xdist then counts this one failure and replaces the worker. One that left after its
report would be charged with the next test too.
"""

import json
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance import logs, settings
from conformance.core.allocator import keep_freed_memory
from conformance.core.away import HISTORY, Sender, only_of, until
from conformance.core.case import parse
from conformance.core.catalogue import ALIVE
from conformance.core.environment import ROOMS, ROOT, describe
from conformance.core.foreseen import Foreseen
from conformance.core.lab import CheckFailed, Lab
from conformance.core.plugin import notes
from conformance.core.record import Outcome, Record, RecordWriter, settled
from conformance.core.request import INSTALLED
from conformance.core.requirement import Judge
from conformance.core.subject import Subject, Tier, Unobservable
from conformance.core.watchdog import Watchdog

LEFT = 70
"""Exit status of a process that left because of a fault."""


@dataclass
class _Running:
    """The test under way: its record if it dies now, and what is known of it so far."""

    expected: Record
    since: float
    outcome: Outcome | None = None
    message: str = ""
    schedule: dict[str, Any] | None = None

    @property
    def settled(self) -> Outcome | None:
        return self.outcome and settled(self.outcome, self.expected.expected)

    def record(self, lab: Lab | None) -> Record:
        return replace(
            self.expected.but(self.outcome or Outcome.CRASH, self.message or "no outcome"),
            error=lab.error if lab else None,
            ratio=lab.ratio if lab else None,
            interpreted=lab.interpret if lab else self.expected.interpreted,
            repro=lab.repro if lab else self.expected.repro,
            seconds=round(time.monotonic() - self.since, 3),
            schedule=self.schedule,
            history=lab.history if lab else None,
        )


_RUNNING = pytest.StashKey[_Running]()
_WORKER = pytest.StashKey["_Worker"]()


class _Worker:
    """This process's record file, its watchdog, and what is known of its cases beforehand.

    cases: what it is to run. alone: those of them that run in processes of their own.
    """

    def __init__(self, config: pytest.Config) -> None:
        option, folder = config.option, notes(config)
        environment = describe(_rooms(config))
        if option.asked:
            environment["asked"] = option.asked
        self.name: str = getattr(config, "workerinput", {}).get("workerid", "main")
        self.sender = Sender(config)
        report = folder if self.sender.away else Path(option.report)
        self.writer = RecordWriter(
            report / f"records-{option.tier}-{option.number}-{self.name}.jsonl",
            environment,
            self.sender.hear if self.sender.away else None,
        )
        self.until = until(config)
        self._faults = (folder / f"faults-{self.name}.txt").open("w")
        self.watchdog = Watchdog(option.limit, self._faults, self._hung)
        self.running: _Running | None = None
        self.foreseen = Foreseen(option, str(environment["flashinfer"] or ""))
        self.cases: list[str] = []
        self.alone: list[str] = []
        self.failed: set[str] = set()  # requirements of which a check has failed here

    def _hung(self, where: str) -> None:
        running = self.running
        if running is not None and self.writer.leave(
            replace(
                running.expected.but(Outcome.HANG, f"{running.expected.case}: {where}"),
                seconds=round(time.monotonic() - running.since, 3),
            ),
            "a test hung",
        ):
            self.sender.send_now()
            os._exit(LEFT)

    def leave_if_dead(self, running: _Running, lab: Lab | None) -> None:
        """End this process when its CUDA context is dead."""
        if not torch.cuda.is_initialized():
            return
        try:
            torch.cuda.synchronize()
        except Exception as error:
            said = f"; before, the test said {running.outcome}: {running.message}"
            told = running.outcome not in (None, Outcome.PASS)
            running.outcome = Outcome.CRASH
            running.message = (
                f"{running.expected.case}: the CUDA context is dead: {error}{said if told else ''}"
            )
            if self.writer.leave(running.record(lab), "the CUDA context is dead"):
                self.sender.send_now()
                os._exit(LEFT)


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)
    logs.set_level(settings.load().log_level)
    config.stash[_WORKER] = worker = _Worker(config)
    config.pluginmanager.register(_End(worker))


def _rooms(config: pytest.Config) -> list[str]:
    """Return the rooms whose files make a verdict: the suite's, and that of other judges."""
    judges = [Path(argument.partition("::")[0]).resolve() for argument in config.args]
    own = [path.relative_to(ROOT).parts[0] for path in judges if path.is_relative_to(ROOT)]
    return sorted({*ROOMS, *own})


class _End:
    """Lets no case start once time is over, and ends the session then."""

    def __init__(self, worker: _Worker) -> None:
        self._worker = worker

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        if self._worker.running is not None:
            return None
        item.session.shouldstop = "time is over"
        return True


def pytest_sessionfinish(session: pytest.Session) -> None:
    worker = session.config.stash[_WORKER]
    worker.writer.close()
    worker.sender.finish()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    judge: Judge | None = getattr(metafunc.function, "judge", None)
    if judge is None:
        return
    option = metafunc.config.option
    if option.case:
        ids = [id for id in option.case if parse(id).requirement == judge.requirement]
    elif option.requirement and judge.requirement not in option.requirement:
        ids = []
    else:
        ids = judge.cases(option.tier)
    metafunc.parametrize("case_id", ids, ids=ids)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # A judge without cases here (another requirement was asked for) leaves an empty parameter
    # set, which pytest shows as a skip; it is not a case, so it goes.
    only = frozenset(only_of(config))
    wanted = [_id(item) for item in items if _id(item) and (not only or _id(item) in only)]
    worker = config.stash[_WORKER]
    worker.cases, worker.alone = wanted, worker.foreseen.alone(wanted)
    shared = frozenset(wanted) - frozenset(worker.alone)
    kept = [item for item in items if _id(item) in shared]
    config.hook.pytest_deselected(items=[item for item in items if _id(item) not in shared])
    if config.option.shuffle is not None:
        random.Random(config.option.shuffle).shuffle(kept)
    # Stable: within a requirement the order stays.
    items[:] = sorted(kept, key=lambda item: not (_id(item) or "").startswith(f"{ALIVE}/"))


def pytest_collection_finish(session: pytest.Session) -> None:
    folder, worker = notes(session.config), session.config.stash[_WORKER]
    for name, cases in (("alone", worker.alone), ("cases", worker.cases)):
        own = folder / f"{name}-{worker.name}.json"
        own.write_text(json.dumps(cases))
        os.replace(own, folder / f"{name}.json")  # the same from every worker


def _id(item: Any) -> str:
    value = item.callspec.params.get("case_id")
    return value if isinstance(value, str) else ""


def load_subject(name: str) -> Subject:
    """Return the subject named `pkg.module:factory`; the factory is called without arguments.

    With `pkg.module:factory@text` it is given the text.
    """
    module, _, rest = name.partition(":")
    factory, at, text = rest.partition("@")
    subject: Subject = getattr(import_module(module), factory)(*([text] if at else []))
    return subject


@pytest.fixture(scope="session")
def _subject(pytestconfig: pytest.Config) -> Subject:
    keep_freed_memory()
    return load_subject(pytestconfig.option.subject)


@pytest.fixture(scope="session")
def _installed(pytestconfig: pytest.Config) -> Iterator[Tier | None]:
    """The twin below the FlashInfer on the path, for all cases of this process, if asked for."""
    tiers, option = import_module("conformance.tiers"), pytestconfig.option
    if (option.tier, option.flashinfer) != ("twin", INSTALLED):
        yield None
        return
    with tiers.installed() as tier:
        yield tier


@pytest.fixture
def lab(
    case_id: str, _subject: Subject, _installed: Tier | None, pytestconfig: pytest.Config
) -> Iterator[Lab]:
    """The case under way."""
    tiers, option, case = import_module("conformance.tiers"), pytestconfig.option, parse(case_id)
    traces = Path(option.report) / "traces" if option.tier == "hopper" else None
    if _installed is None:
        tier = tiers.tier(option.tier, tiers.simulated(case.number, option.flashinfer))
    else:
        tier = _installed
        tier.log.clear()
    yield Lab(case, _subject, tier, option.kernels, traces, option.given, option.again)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note that a case starts, and watch it to its end; see `_End` for when there is none."""
    worker = item.config.stash[_WORKER]
    if worker.until is not None and time.monotonic() >= worker.until:
        worker.running = None
        return (yield)
    worker.sender.under_way(item.nodeid)
    worker.running = item.stash[_RUNNING] = running = _Running(
        worker.foreseen.record(_id(item)), time.monotonic()
    )
    worker.writer.start(running.expected)
    worker.watchdog.arm()
    try:
        return (yield)
    finally:
        worker.watchdog.disarm()


def pytest_runtest_setup(item: pytest.Item) -> None:
    requirement = item.stash[_RUNNING].expected.requirement
    option = item.config.option
    if option.first_failure_each and requirement in item.config.stash[_WORKER].failed:
        pytest.skip(f"a check of {requirement} has failed before")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Turn what a check found missing into a skip that is recorded under its own name."""
    running = item.stash[_RUNNING]
    try:
        result = yield
        running.outcome = Outcome.PASS
        return result
    except Unobservable as missing:
        running.outcome, running.message = Outcome.UNOBSERVABLE, str(missing)
        pytest.skip(f"unobservable: {missing}")
    except pytest.skip.Exception as reason:
        running.outcome, running.message = Outcome.SKIPPED, str(reason)
        raise
    except CheckFailed as problem:
        running.outcome, running.message = Outcome.FAIL, str(problem)
        item.config.stash[_WORKER].failed.add(running.expected.requirement)
        lab = (getattr(item, "funcargs", None) or {}).get("lab")
        running.schedule = lab.drawing() if lab else None
        raise
    except Exception as problem:
        running.outcome = Outcome.CRASH
        running.message = f"{type(problem).__name__}: {problem}"
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Learn what became of a phase; the record is written when the last one, teardown, is over."""
    report = yield
    worker, running = item.config.stash[_WORKER], item.stash[_RUNNING]
    lab = (getattr(item, "funcargs", None) or {}).get("lab")
    judged = running.outcome is Outcome.FAIL
    if call.when != "call" and call.excinfo is not None and not judged:
        skipped = report.skipped
        running.outcome = Outcome.SKIPPED if skipped else Outcome.CRASH
        said = str(call.excinfo.value)
        running.message = said if skipped else f"{call.when}: {call.excinfo.typename}: {said}"
    worker.leave_if_dead(running, lab)
    if call.when == "teardown":
        if running.outcome is Outcome.PASS:
            running.message = ""
        worker.writer.add(running.record(lab))
        if lab is not None and lab.history is not None:
            report.user_properties.append((HISTORY, lab.history))
        if running.settled is Outcome.XPASS:
            report.outcome, report.longrepr = "failed", running.record(lab).message
    if report.failed and running.settled is Outcome.XFAIL:
        report.outcome, report.wasxfail = "skipped", running.expected.expected
    report.user_properties += worker.sender.properties()
    return report
