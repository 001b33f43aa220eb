"""What records of two packages say by requirement: worse, wrong on both, better, not judged."""

import itertools

import pytest

from conformance.core.record import Outcome, Record
from conformance.gate.cases import Seen, compare, seen, unanswered
from conformance.gate.model import Change, Finding, Weight

WRONG = {Outcome.FAIL, Outcome.CRASH, Outcome.HANG, Outcome.REFUSED, Outcome.XFAIL}
RIGHT = {Outcome.PASS, Outcome.XPASS}


def record(
    outcome: Outcome, number: int = 0, requirement: str = "LEN-1", tier: str = "twin"
) -> Record:
    return Record(
        case=f"{requirement}/heads=16/{number}",
        requirement=requirement,
        tier=tier,
        subject="ours",
        outcome=outcome,
        error=None,
        ratio=None,
        interpreted=False,
        message=f"{requirement}/heads=16/{number}: row 3 differs",
        repro="",
    )


def only(before: list[Record], after: list[Record]) -> Finding:
    (finding,) = compare(before, after, "twin", "the report")
    return finding


@pytest.mark.parametrize("outcome", Outcome)
def test_every_outcome_has_its_side(outcome: Outcome) -> None:
    expected = Seen.WRONG if outcome in WRONG else Seen.RIGHT if outcome in RIGHT else Seen.UNJUDGED
    assert seen(record(outcome)) is expected


@pytest.mark.parametrize(("before", "after"), [*itertools.product(Outcome, Outcome)])
def test_what_two_records_of_a_case_say(before: Outcome, after: Outcome) -> None:
    finding = only([record(before)], [record(after)])
    assert finding.key == "twin/LEN-1"
    hidden = before in RIGHT and after is Outcome.UNOBSERVABLE
    objects = (after in WRONG and before not in WRONG) or hidden
    assert (finding.weight is Weight.OBJECTION) == objects
    if before in WRONG and after in WRONG:
        assert (finding.change, finding.weight) == (Change.UNCHANGED, Weight.REVIEW)
    if before in RIGHT and after in RIGHT:
        assert (finding.change, finding.weight) == (Change.UNCHANGED, Weight.NOTE)
    if before not in RIGHT and after in RIGHT:
        assert (finding.change, finding.weight) == (Change.CHANGED, Weight.NOTE)


def test_one_case_that_went_wrong_objects_though_others_went_right() -> None:
    before = [record(Outcome.PASS, 0), record(Outcome.FAIL, 1), record(Outcome.FAIL, 2)]
    after = [record(Outcome.CRASH, 0), record(Outcome.PASS, 1), record(Outcome.PASS, 2)]
    finding = only(before, after)
    assert finding.objects
    assert "LEN-1/heads=16/0 (crash): row 3 differs" in finding.what
    assert finding.before == "1 right, 2 wrong of 3"
    assert finding.after == "2 right, 1 wrong of 3"
    assert finding.evidence == "the report"


def test_one_finding_per_requirement_in_the_catalogues_order() -> None:
    both = [record(Outcome.PASS, 0, id) for id in ("GRAPH-3", "OWN-9", "SMOKE", "LEN-2", "GRAPH-3")]
    keys = [finding.key for finding in compare(both, both, "twin", "")]
    assert keys == ["twin/SMOKE", "twin/LEN-2", "twin/GRAPH-3", "twin/OWN-9"]


def test_a_wrong_record_is_not_hidden_by_a_right_one_of_the_same_case() -> None:
    again = [record(Outcome.PASS), record(Outcome.FAIL), record(Outcome.PASS)]
    assert only([record(Outcome.PASS)], again).objects
    assert only([record(Outcome.PASS)], again[::-1]).objects


def test_records_of_another_tier_say_nothing() -> None:
    there = [record(Outcome.FAIL, tier="hopper")]
    assert compare([], there, "twin", "") == ()
    (finding,) = compare([], there, "hopper", "")
    assert finding.key == "hopper/LEN-1"
    assert finding.objects  # wrong now, and nobody saw it wrong before


def test_a_case_without_an_answer_is_named_and_is_not_counted_right() -> None:
    before = [record(Outcome.PASS, 0), record(Outcome.PASS, 1), record(Outcome.SKIPPED, 2)]
    after = [record(Outcome.SKIPPED, 1)]
    assert unanswered(before, after, "twin") == ["LEN-1/heads=16/0", "LEN-1/heads=16/1"]
    finding = only(before, after)
    assert finding.weight is Weight.REVIEW
    assert "no case of it was judged" in finding.what
    assert unanswered(before, before, "twin") == []


def test_verdict_and_keys_do_not_depend_on_the_order_of_records() -> None:
    before = [record(Outcome.PASS, n) for n in range(3)]
    after = [
        record(outcome, n) for n, outcome in enumerate((Outcome.PASS, Outcome.FAIL, Outcome.HANG))
    ]
    assert compare(before, after, "twin", "") == compare(before[::-1], after[::-1], "twin", "")
