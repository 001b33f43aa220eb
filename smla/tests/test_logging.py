"""Log records: under `smla.*`, told at construction and per plan, and free when nobody listens."""

import logging
import subprocess
import sys

import pytest

import smla
from smla.tests.workbench import workbench


def messages(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    """Messages of one level; every record must be one of smla's."""
    assert all(record.name.startswith("smla.") for record in caplog.records), caplog.record_tuples
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def test_construction_is_told_once_at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "smla")
    bench = workbench()
    bench.good_step()
    (message,) = messages(caplog, logging.INFO)
    for part in ("FlashInfer stand-in", "4 heads", "64 + 64", "bfloat16", "(1, 8)", "12 rows"):
        assert part in message, f"expected {part!r} in {message!r}"


def test_each_plan_decision_is_told_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    bench = workbench()
    caplog.set_level(logging.DEBUG, "smla")
    bench.builder.build(bench.batch())
    bench.builder.build(bench.batch())
    bench.builder.build(bench.batch(optimism=None))
    bench.builder.build(bench.batch((0, 0), (0, 0)))
    told = messages(caplog, logging.DEBUG)
    expected = [
        "step 1: planned bounds and slack, 6 rows, longest 19, 1 plans and 0 reuses so far",
        "step 2: plan reused, 6 rows, longest 19, 1 plans and 1 reuses so far",
        "step 3: planned exact lengths, 6 rows, longest 19, 2 plans and 1 reuses so far",
        "step 4: planned bounds and slack, 0 rows, longest 0, 3 plans and 1 reuses so far",
    ]
    assert told == expected, f"got {told}"


@pytest.mark.parametrize("level", [logging.INFO, logging.WARNING])
def test_a_step_makes_no_record_unless_debug_is_enabled(
    level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = workbench()
    logging.getLogger("smla").setLevel(level)
    made: list[str] = []
    monkeypatch.setattr(logging.Logger, "_log", lambda self, *_, **__: made.append(self.name))
    monkeypatch.setattr(smla.PlanState, "_log_decision", lambda *_, **__: made.append("decision"))
    try:
        bench.good_step()
        bench.good_step()
    finally:
        logging.getLogger("smla").setLevel(logging.NOTSET)
    assert made == [], f"the hot path logged: {made}"


def test_the_library_installs_no_handler_and_sets_no_level() -> None:
    code = (
        "import logging, smla\n"
        "names = [n for n in logging.root.manager.loggerDict if n.split('.')[0] == 'smla']\n"
        "loggers = [logging.getLogger(n) for n in names]\n"
        "assert len(names) > 1, names\n"
        "print([(l.name, l.handlers, l.level) for l in loggers if l.handlers or l.level])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", done.stdout
