"""Makes the seeds of a run the cases of its test, and its progress one of histories.

pytest loads it in xdist's controller too, which has no need of torch.
"""

import time

import pytest

from conformance.core.plugin import PROGRESS
from fuzz.lane.progress import Histories


@pytest.hookimpl(trylast=True)  # after what it changes
def pytest_configure(config: pytest.Config) -> None:
    option = config.option
    if not getattr(option, "asked", ""):
        return  # some other pytest passes by
    option.tbstyle, option.reportchars = "no", ""  # the command says what was found, once
    option.maxschedchunk = 1  # the seeds played when time is over are the first ones
    reporter = config.pluginmanager.getplugin(PROGRESS)
    if reporter is not None:
        reporter.tally = Histories(time.monotonic, until=option.until)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    from fuzz.lane.asked import Asked

    if "case_id" in metafunc.fixturenames:
        ids = [f"FUZZ//{seed}" for seed in Asked.loads(metafunc.config.option.asked).seeds]
        metafunc.parametrize("case_id", ids, ids=ids)
