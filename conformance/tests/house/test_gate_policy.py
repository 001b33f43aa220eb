"""A policy says what it may and nothing else; what it lets pass is told, and for how long."""

import datetime
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.gate import policy
from conformance.gate.errors import PolicyError
from conformance.gate.model import (
    Change,
    Figure,
    Finding,
    Status,
    TierResult,
    Weight,
    not_run,
    ran,
)

TODAY = datetime.date(2026, 3, 1)
EXAMPLE = Path(__file__).parents[3] / "docs" / "gate-policy.toml"
FIGURE = Figure("host time of a plan, 64 rows", "plan", "H200", 100.0, 150.0, 1.5, 0.1, 7, 1.45)


def objection(key: str, weight: Weight = Weight.OBJECTION) -> Finding:
    return Finding(key, Change.CHANGED, weight, f"{key} went wrong")


def written(tmp_path: Path, text: str) -> policy.Policy:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    return policy.read(path)


def entry(key: str, more: str = "") -> str:
    return f'[[tolerate]]\nkey = "{key}"\nreason = "because"\n{more}\n'


def test_the_committed_example_reads_and_names_the_limits_in_force() -> None:
    read = policy.read(EXAMPLE)
    assert dict(read.limits) == dict(policy.LIMITS)
    assert [t.key for t in read.tolerated] == ["hopper/figure/plan/*-8-rows-*"]
    slow = ran("hopper", (), (replace(FIGURE, name="host time of a plan, 8 rows, 64 heads"),))
    (tier,) = policy.apply([slow], read, "smla", TODAY).tiers
    assert tier.status is Status.PASS and tier.findings[0].tolerated, "its key meets what it means"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[limit]\nplan = 1.2", "'limit'|limits and tolerate"),
        ("limits = 3", "limits: found 3"),
        ("[limits]\nplans = 1.2", "'plans'|plan, kernel, launch"),
        ("[limits]\nplan = '1.2'", "limits, plan: found '1.2'"),
        ("[limits]\nplan = true", "limits, plan: found True"),
        ("[limits]\nplan = nan", "limits, plan: found nan"),
        ("[limits]\nplan = inf", "limits, plan: found inf"),
        ("[limits]\nplan = 0.9", "limits, plan: found 0.9|1 or more"),
        ("tolerate = 1", "tolerate: found no list"),
        ("tolerate = [1]", "tolerate 1: found 1"),
        ("[[tolerate]]\nkey = 'static/x'", "tolerate 1, reason: found None"),
        ("[[tolerate]]\nkey = 'static/x'\nreason = ' '", "reason: found ' '"),
        ("[[tolerate]]\nreason = 'x'", "tolerate 1, key: found None"),
        (entry("*"), "key: found '*'"),
        (entry("*/waits/*"), "key: found '*/waits/*'|static, wrapper"),
        (entry("hopper/"), "key: found 'hopper/'"),
        (entry("hopper"), "key: found 'hopper'"),
        (entry("gpu/waits"), "key: found 'gpu/waits'"),
        (entry("static/x", "subjects = 'a'"), "'subjects'|key, reason, subject, until"),
        (entry("static/x", "subject = 3"), "subject: found 3"),
        (entry("static/x", "until = '2026-01-01'"), "until: found '2026-01-01'"),
        (entry("static/x", "until = 2026-01-01T00:00:00"), "until: found datetime.datetime"),
        (entry("static/x") + entry("static/x"), "tolerate 2: found 'static/x' again"),
        ("[[[", "no readable TOML"),
    ],
)
def test_what_no_policy_may_say(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(PolicyError) as raised:
        written(tmp_path, text)
    for word in (*words.split("|"), "allowed:", "to fix:"):
        assert word in str(raised.value), f"{word!r} is not in: {raised.value}"


def test_no_file_and_no_text(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="no readable TOML"):
        policy.read(tmp_path / "absent.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(PolicyError, match="no readable TOML"):
        policy.read(tmp_path / "bytes.toml")


def test_a_limit_that_is_left_out_holds_as_without_a_policy(tmp_path: Path) -> None:
    read = written(tmp_path, "[limits]\nkernel = 2")
    assert dict(read.limits) == {**policy.LIMITS, "kernel": 2.0}


@pytest.mark.parametrize(
    ("ratio", "low", "weight"),
    [
        (1.25, 1.25, None),
        (1.24, 1.10, None),
        (1.26, 1.26, Weight.OBJECTION),
        (1.50, 1.26, Weight.OBJECTION),
        (1.50, 1.25, Weight.REVIEW),
        (1.50, 0.90, Weight.REVIEW),
        (0.50, 0.50, None),
    ],
)
def test_a_figure_counts_where_three_rounds_of_four_lie_beyond_its_limit(
    ratio: float, low: float, weight: Weight | None
) -> None:
    figure = replace(FIGURE, ratio=ratio, low=low, spread=9.0)
    (tier,) = policy.apply([ran("hopper", (), (figure,))], policy.Policy(), "s", TODAY).tiers
    assert [finding.weight for finding in tier.findings] == ([weight] if weight else [])
    assert tier.status is (Status.FAIL if weight is Weight.OBJECTION else Status.PASS)
    if weight:
        (found,) = tier.findings
        assert found.key == "hopper/figure/plan/host-time-of-a-plan-64-rows"
        assert f"{ratio:.2f}" in found.what and "1.25" in found.what and "H200" in found.what
        assert (found.before, found.after) == ("100.0 us", "150.0 us")


def test_a_pretended_device_s_times_are_told_and_stop_nothing() -> None:
    figure = replace(FIGURE, ratio=9.0, low=9.0)
    (tier,) = policy.apply([ran("wrapper", (), (figure,))], policy.Policy(), "s", TODAY).tiers
    assert [finding.weight for finding in tier.findings] == [Weight.REVIEW]
    assert tier.status is Status.PASS


def test_each_kind_has_its_own_limit(tmp_path: Path) -> None:
    figures = tuple(replace(FIGURE, kind=k, ratio=1.2, low=1.2) for k in policy.LIMITS)
    (tier,) = policy.apply([ran("hopper", (), figures)], policy.Policy(), "s", TODAY).tiers
    assert [f.key.split("/")[2] for f in tier.findings] == ["kernel"]
    wide = written(tmp_path, "[limits]\nkernel = 1.3")
    assert policy.apply([ran("hopper", (), figures)], wide, "s", TODAY).tiers[0].findings == ()


def test_a_tolerated_objection_passes_with_its_reason_and_alone(tmp_path: Path) -> None:
    read = written(tmp_path, entry("wrapper/waits/*", 'subject = "mine*"'))
    tier = ran("wrapper", (objection("wrapper/waits/plan"), objection("wrapper/step/graph")))
    (one,) = policy.apply([tier], read, "mine-2", TODAY).tiers
    assert [f.tolerated for f in one.findings] == ["because", ""]
    assert one.status is Status.FAIL, "the other objection stands"
    alone = ran("wrapper", (objection("wrapper/waits/plan"),))
    assert policy.apply([alone], read, "mine-2", TODAY).tiers[0].status is Status.PASS
    assert policy.apply([alone], read, "other", TODAY).tiers[0].status is Status.FAIL
    other_case = ran("wrapper", (objection("wrapper/Waits/plan"),))
    assert policy.apply([other_case], read, "mine-2", TODAY).tiers[0].status is Status.FAIL


def test_an_objection_of_a_limit_can_be_tolerated(tmp_path: Path) -> None:
    read = written(tmp_path, entry("hopper/figure/plan/*"))
    (tier,) = policy.apply([ran("hopper", (), (FIGURE,))], read, "s", TODAY).tiers
    assert tier.status is Status.PASS and tier.findings[0].tolerated == "because"


@pytest.mark.parametrize(("days", "passes"), [(-1, True), (0, True), (1, False)])
def test_the_last_day_counts_and_the_day_after_does_not(
    tmp_path: Path, days: int, passes: bool
) -> None:
    read = written(tmp_path, entry("wrapper/waits/*", f"until = {TODAY}"))
    day = TODAY + datetime.timedelta(days)
    applied = policy.apply([ran("wrapper", (objection("wrapper/waits/plan"),))], read, "s", day)
    assert applied.tiers[0].status is (Status.PASS if passes else Status.FAIL)
    said = policy.told(read, day, [applied])
    assert bool(said) is not passes
    if said:
        assert "tolerate 1: wrapper/waits/*" in said[0] and str(TODAY) in said[0]
        assert "would have let an objection pass" in said[0]


def test_what_matches_nothing_is_told_once_no_subject_needs_it(tmp_path: Path) -> None:
    read = written(
        tmp_path,
        entry("static/gone/*")
        + entry("hopper/*")
        + entry("static/name/*", 'subject = "b"')
        + entry("static/review/*"),
    )
    review = objection("static/review/x", Weight.REVIEW)
    tiers = [ran("static", (review,)), not_run("hopper", "no GPU", "rent one")]
    a = policy.apply(tiers, read, "a", TODAY)
    lines = policy.told(read, TODAY, [a])
    assert [line.split(": ")[2].split(" ")[0] for line in lines] == [
        "static/gone/*",
        "static/review/*",
    ], "neither a tier that did not run nor another subject makes an entry stale"
    b = policy.apply([ran("static", (objection("static/name/x"),))], read, "b", TODAY)
    assert all("static/name" not in line for line in policy.told(read, TODAY, [a, b]))
    c = policy.apply([ran("static", ())], read, "b", TODAY)
    assert any("static/name" in line for line in policy.told(read, TODAY, [c]))
    assert a.tiers[0].findings[0].tolerated == "", "a review needs no tolerance"


def test_a_tier_that_did_not_run_stays_as_it_is() -> None:
    tier = TierResult("hopper", Status.NOT_RUN, (objection("hopper/x"),), (FIGURE,), "no GPU", "x")
    assert policy.apply([tier], policy.Policy(), "s", TODAY).tiers == (tier,)
