"""HIST-1: every history that was a finding once is played on the subject."""

from conformance.core.lab import CheckFailed, Lab
from conformance.core.requirement import requirement
from conformance.core.subject import Unobservable
from fuzz.player import play
from fuzz.regressions import regressions
from fuzz.telling import told

CORPUS = regressions()


@requirement("HIST-1", how=tuple(CORPUS))
def test_a_history_that_was_a_finding_is_none(lab: Lab) -> None:
    entry = CORPUS[lab.case["how"]]
    kernels = "interpret" if lab.interpret else "torch"
    played = play(entry.history, lab.subject, lab.tier, lab.repro, kernels)
    lab.ratio = played.ratio
    if played.finding is not None:
        text = told(entry.history, played.finding)
        raise CheckFailed(f"{lab.case.id}: {text}", what=entry.shows)
    if played.unplanted:
        raise Unobservable("; ".join(played.unplanted))
    lab.check(played.frames > 0, "steps played", got=played.frames, expected="some")
