"""GO takes a GPU's evidence, any objection is a NO-GO, and a manager reads why."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest

from conformance.gate.model import (
    TIERS,
    Change,
    Finding,
    Side,
    Status,
    TierResult,
    Weight,
    not_run,
    ran,
)
from conformance.gate.verdict import Answer, Decision, decide, objections, worst

BEFORE, AFTER = Side("1.0", "1.0", "aa"), Side("2.0", "2.0", "bb")


def tier(name: str, status: Status, *findings: Finding) -> TierResult:
    if status is Status.NOT_RUN:
        return not_run(name, f"{name} lacks a thing", f"get {name}")
    if status is Status.FAIL and not findings:
        findings = (objection(name),)
    return ran(name, findings)


def objection(name: str, what: str = "", cause: str = "") -> Finding:
    what = what or f"{name} broke."
    return Finding(f"{name}/kind/x", Change.CHANGED, Weight.OBJECTION, what, cause=cause)


def decided(*tiers: TierResult) -> Decision:
    return decide(tiers, "mine", BEFORE, AFTER)


@pytest.mark.parametrize("states", list(product(Status, repeat=3)))
def test_the_word_follows_from_the_tiers(states: Sequence[Status]) -> None:
    given = dict(zip(("static", "twin", "hopper"), states, strict=True))
    decision = decided(*(tier(name, status) for name, status in given.items()))
    if Status.FAIL in states:
        expected = ("NO-GO", 1)
    elif given["hopper"] is Status.PASS and given["static"] is Status.PASS:
        expected = ("GO", 0)
    else:
        expected = ("INCOMPLETE", 2)
    assert (decision.word, decision.exit) == expected, given


def test_all_cpu_tiers_give_no_go_ahead() -> None:
    decision = decided(*(tier(name, Status.PASS) for name in TIERS if name != "hopper"))
    assert decision.word == "INCOMPLETE" and "CPU tiers: no objection" in decision.paragraph
    assert "Not checked: hopper (not asked for)" in decision.paragraph


def test_a_fault_that_only_a_gpu_shows() -> None:
    cpu = [tier(name, Status.PASS) for name in TIERS if name != "hopper"]
    found = objection("hopper", "rows of 64 heads are wrong", "flashinfer/mla.cuh: run")
    decision = decided(*cpu, tier("hopper", Status.FAIL, found))
    assert decision.exit == Answer.NO_GO
    assert "rows of 64 heads are wrong (in flashinfer/mla.cuh: run)" in decision.paragraph


def test_the_earliest_tier_speaks_first_whatever_the_order_given() -> None:
    tiers = [tier(name, Status.FAIL) for name in reversed(TIERS)]
    assert [f.key.split("/")[0] for f in objections(tiers)] == list(TIERS)
    text = decided(*tiers).paragraph
    assert text.index("static broke") < text.index("wrapper broke") < text.index("planner broke")
    assert "twin broke" not in text and "and 2 more" in text


def test_what_did_not_run_objects_to_nothing() -> None:
    left = replace(not_run("hopper", "a rehearsal", "rent one"), findings=(objection("hopper"),))
    decision = decided(tier("static", Status.PASS), left)
    assert decision.exit == Answer.INCOMPLETE and "hopper broke" not in decision.paragraph
    assert "hopper (a rehearsal); the report has the commands" in decision.paragraph


def test_a_tolerated_objection_is_told_and_no_more() -> None:
    passed = replace(objection("static"), tolerated="known")
    decision = decided(tier("static", Status.PASS, passed), tier("hopper", Status.PASS))
    assert (
        decision.exit == Answer.GO and "save for 1 objection that the policy" in decision.paragraph
    )


@pytest.mark.parametrize("states", list(product(Status, repeat=2)))
def test_the_paragraph_is_three_to_five_sentences_and_names_both(states: Sequence[Status]) -> None:
    tiers = [tier(name, status) for name, status in zip(("static", "hopper"), states, strict=True)]
    text = decided(*tiers).paragraph
    assert "2.0" in text and "1.0" in text and "mine" in text and "Next: " in text
    plain = text.replace("1.0", "one").replace("2.0", "two")
    assert 3 <= plain.count(". ") + 1 <= 5, text


def test_two_packages_of_one_version_and_one_with_itself() -> None:
    tiers = [tier("static", Status.PASS)]
    edited = Side("edited.whl", "1.0", "cc")
    assert "another one of the same version" in decide(tiers, "m", BEFORE, edited).paragraph
    assert "with itself" in decide(tiers, "m", BEFORE, BEFORE).paragraph


def test_tiers_that_cannot_be() -> None:
    passed = tier("static", Status.PASS)
    with pytest.raises(ValueError, match="each of"):
        decided(passed, passed)
    with pytest.raises(ValueError, match="each of"):
        decided(replace(passed, tier="gpu"))
    with pytest.raises(ValueError, match="objection in a tier that passed"):
        decided(replace(passed, findings=(objection("static"),)))


def test_nothing_at_all_is_incomplete() -> None:
    decision = decided()
    assert decision.exit == Answer.INCOMPLETE and "in no tier" in decision.paragraph


def test_the_worst_of_several_subjects() -> None:
    go, no, open_, wrong = Answer.GO, Answer.NO_GO, Answer.INCOMPLETE, Answer.ASKED_WRONGLY
    assert worst([go, go]) is go and worst([go, open_]) is open_
    assert worst([open_, no, go]) is no and worst([no, wrong]) is wrong


def test_one_cause_is_told_once_with_how_often_it_was_met() -> None:
    first, again, other = (
        replace(objection("wrapper", f"{key} broke", "mla/x.py: plan"), key=f"wrapper/{key}")
        for key in ("waits/decode", "waits/replan", "step/padded")
    )
    decision = decided(ran("wrapper", (first, again, other)))
    assert decision.paragraph.count(first.what.rstrip(". ")) == 1
    assert "and so in 1 other place (in mla/x.py: plan)" in decision.paragraph
    assert again.what.rstrip(". ") not in decision.paragraph.replace(first.what.rstrip(". "), "")
    assert decision.paragraph.count("mla/x.py: plan") == 2, "another kind of fault is told apart"
