"""The one test that pytest runs: draws the history of a seed, plays it, and says what was seen.

What a history that is a finding says goes into its record, with how often each tuple of values was
reached.
"""

import pytest

from conformance.core.lab import CheckFailed, Lab
from fuzz.findings import seen_of
from fuzz.lane.asked import Asked
from fuzz.player import play
from fuzz.serving import drawn


class Raised(Exception):
    """An exception that no check raised ended a history."""


def test_a_history_is_right_to_its_end(lab: Lab, pytestconfig: pytest.Config) -> None:
    profile = Asked.loads(pytestconfig.option.asked).profile
    history = drawn(lab.case.number, profile)
    played = play(history, lab.subject, lab.tier, lab.repro)
    lab.history, lab.ratio = seen_of(history, played), played.ratio
    if played.finding:
        raise (Raised if played.finding.crash else CheckFailed)(played.finding.message)
