"""SUITE-5: the gate objects to what differs and to nothing else, derived here a second time.

The subject is not asked, and no package: findings, records, plans and sources are drawn.
"""

import datetime
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from conformance.core.catalogue import REQUIREMENTS
from conformance.core.lab import Lab
from conformance.core.record import Outcome, Record
from conformance.core.requirement import requirement
from conformance.gate.alternate import figure
from conformance.gate.cases import compare
from conformance.gate.model import (
    TIERS,
    Change,
    Finding,
    Side,
    Status,
    Weight,
    not_run,
    ran,
)
from conformance.gate.planner_child import BACKGROUND, Plan
from conformance.gate.policy import Policy, Toleration, apply
from conformance.gate.schedule import Schedule, differences
from conformance.gate.verdict import decide
from conformance.twin import planner
from conformance.twin.tokens import text_digest
from golden import Draw

ROUNDS = 6
TODAY = datetime.date(2030, 6, 15)
SMS = 132
SIDES = (Side("1", "1", "a" * 64), Side("2", "2", "b" * 64))
RIGHT, NEITHER = ("pass", "xpass"), ("unobservable", "skipped")
WORDS = (*RIGHT, *NEITHER, "fail", "crash", "hang", "xfail", "refused")


@requirement("SUITE-5", how=("records", "verdict", "policy", "figures", "plans", "sources"))
def test_the_gate_objects_to_what_differs(lab: Lab) -> None:
    checks: dict[str, Callable[[Lab, Draw], None]] = {
        "records": records_are_compared_by_case,
        "verdict": the_verdict_follows_from_the_tiers,
        "policy": a_policy_tolerates_what_it_names,
        "figures": a_figure_objects_where_rounds_agree,
        "plans": a_changed_word_of_a_plan_is_named,
        "sources": comments_are_no_change_and_tokens_are,
    }
    for number in range(ROUNDS):
        checks[lab.case["how"]](lab, lab.case.draw.fork(str(number)))


def records_are_compared_by_case(lab: Lab, draw: Draw) -> None:
    ids = [list(REQUIREMENTS)[n] for n in draw.sample(len(REQUIREMENTS), 3)]
    before, after, objected = [], [], set()
    for id in ids:
        for number in range(draw.randint(1, 4)):
            case = f"{id}/heads=16/{number}"
            had = draw.choice([*WORDS, *RIGHT, *RIGHT, ""])
            has = draw.choice([had, had, had, *WORDS]) if had else draw.choice(WORDS)
            before += [_record(case, had)] if had else []
            after.append(_record(case, has))
            was_wrong = had and had not in (*RIGHT, *NEITHER)
            is_wrong = has not in (*RIGHT, *NEITHER)
            hidden = had in RIGHT and has == "unobservable"
            if (is_wrong and not was_wrong) or hidden:
                objected.add(f"hopper/{id}")
    stray = _record(f"{ids[0]}/heads=8/0", "fail")
    after.append(replace(stray, tier="twin"))  # of another tier: says nothing here
    found = compare(before, after, "hopper", "again")
    told = {one.key for one in found if one.weight is Weight.OBJECTION}
    lab.expect(sorted(told), sorted(objected), f"objections to {[r.case for r in after]}")
    lab.expect(sorted(f.key for f in found), sorted({f"hopper/{id}" for id in ids}), "rows")


def _record(case: str, outcome: str) -> Record:
    return Record(
        case, case.partition("/")[0], "hopper", "s", Outcome(outcome), None, None, False, "m", "r"
    )


def the_verdict_follows_from_the_tiers(lab: Lab, draw: Draw) -> None:
    states = {name: draw.choice(["pass", "pass", "fail", "tolerated", "not run"]) for name in TIERS}
    tiers = []
    for name, state in states.items():
        objection = Finding(f"{name}/kind/x", Change.CHANGED, Weight.OBJECTION, f"{name} broke")
        if state == "not run":
            tiers.append(not_run(name, "no such thing here", "get one"))
        elif state == "pass":
            tiers.append(ran(name, (replace(objection, weight=Weight.REVIEW),)))
        else:
            let = "known" if state == "tolerated" else ""
            tiers.append(ran(name, (replace(objection, tolerated=let),)))
    failed = [name for name, state in states.items() if state == "fail"]
    seen = [name for name, state in states.items() if state != "not run"]
    go = {"static", "hopper"} <= set(seen)
    expected = ("NO-GO", 1) if failed else ("GO", 0) if go else ("INCOMPLETE", 2)
    decision = decide(tiers, "mine", *SIDES)
    lab.expect((decision.word, int(decision.exit)), expected, f"verdict of {states}")
    told = {name for name in TIERS if f"{name} broke" in decision.paragraph}
    lab.expect(told, set(failed[:3]), f"objections told of {states}")


def a_policy_tolerates_what_it_names(lab: Lab, draw: Draw) -> None:
    findings = tuple(
        Finding(
            f"wrapper/{kind}/{what}",
            Change.CHANGED,
            draw.choice([Weight.OBJECTION, Weight.OBJECTION, Weight.REVIEW]),
            "it broke",
        )
        for kind in ("waits", "step")
        for what in ("decode", "replan")
    )
    entries = []
    for number in range(draw.randint(0, 3)):
        key = draw.choice(["wrapper/waits/*", "wrapper/step/decode", "wrapper/*", "twin/*"])
        days = draw.choice([None, -1, 0, 1])
        until = None if days is None else TODAY + datetime.timedelta(days)
        subject = draw.choice(["*", "mine", "other"])
        entries.append(Toleration(key, "we know", subject, until, f"entry {number}"))
    applied = apply([ran("wrapper", findings)], Policy(tolerated=tuple(entries)), "mine", TODAY)
    open_ = {
        found.key
        for found in findings
        if found.weight is Weight.OBJECTION
        and not any(_lets(entry, found.key) for entry in entries)
    }
    (tier,) = applied.tiers
    lab.expect({f.key for f in tier.findings if f.objects}, open_, f"objections left by {entries}")
    lab.expect(tier.status, Status.FAIL if open_ else Status.PASS, "status")


def _lets(entry: Toleration, key: str) -> bool:
    """Whether an entry lets an objection pass; the patterns drawn here end in one star or none."""
    named = key.startswith(entry.key[:-1]) if entry.key.endswith("*") else key == entry.key
    over = entry.until is not None and entry.until < TODAY
    return named and not over and entry.subject in ("*", "mine")


def a_figure_objects_where_rounds_agree(lab: Lab, draw: Draw) -> None:
    limit = draw.randint(16, 32) / 16
    kind = draw.choice(["plan", "kernel", "launch"])
    ratios = sorted(draw.randint(8, 48) / 16 for _ in range(5))  # quartiles are rounds of their own
    rounds = [{"baseline": 2.0, "candidate": 2.0 * ratio} for ratio in draw.shuffle(ratios)]
    made = figure("a plan", kind, "here", rounds)
    limits = {"plan": 9.0, "kernel": 9.0, "launch": 9.0, kind: limit}
    (tier,) = apply([ran("hopper", (), (made,))], Policy(limits), "mine", TODAY).tiers
    lab.expect((made.low, made.ratio), (ratios[1], ratios[2]), f"quartile and median of {ratios}")
    sure = ratios[1] > limit
    lab.expect(any(f.objects for f in tier.findings), sure, f"{ratios} beside {limit}")
    lab.expect(len(tier.findings), int(ratios[2] > limit), "findings")


def a_changed_word_of_a_plan_is_named(lab: Lab, draw: Draw) -> None:
    before = _planned(draw)
    schedule = Schedule.of(before, SMS)
    field = draw.choice(["kv_end", "kv_len", "q_len", "kv_indptr", "partial_indptr", "kv_start"])
    array = schedule.arrays[field]
    element = draw.randint(0, len(array) - 1)
    assert before.words is not None and before.places is not None
    at = schedule.info[field] // 4 + element
    words = before.words.copy()
    words[np.searchsorted(before.places, at)] += 1
    lab.expect(differences(before, before, SMS), (), "a plan beside itself")
    found = differences(before, replace(before, words=words), SMS)
    lab.expect([d.field for d in found], [f"array/{field}"], f"word {element} of {field}")
    lab.expect(found[0].element, element, f"element of {field}")
    info = list(before.info)
    info[planner.INFO_FIELDS.index(field)] += 16
    moved = differences(before, replace(before, info=tuple(info)), SMS)
    lab.expect(moved[0].field, f"plan-info/{field}", "an array that moved")


def _planned(draw: Draw) -> Plan:
    """A plan by the twin, as a child hands one back."""
    lengths = [draw.randint(1, 3000) for _ in range(draw.randint(2, 9))]
    rows = len(lengths)
    staging = torch.full((8 << 20,), BACKGROUND, dtype=torch.uint8)
    ends = np.cumsum([0, *lengths]).tolist()
    shape = (list(range(rows + 1)), ends, lengths, draw.choice([16, 64, 128]), 512, SMS)
    info, staged = planner.plan(*shape, staging, 1 << 30)
    words = staging.numpy().view(np.int32)
    places = np.flatnonzero(words != np.full(4, BACKGROUND, np.uint8).view(np.int32)[0])
    return Plan(tuple(info), staged, places.astype(np.int32), words[places])


def comments_are_no_change_and_tokens_are(lab: Lab, draw: Draw) -> None:
    words = [draw.choice(["alpha", "+", "17", "(", "beta_", "<<<", '"a // b"', "0x2F", ";", "::"])
             for _ in range(draw.randint(3, 12))]  # fmt: skip
    gaps = [" ", "\n", "  ", "\t", " /* x */ ", " // y\n", "\n\n"]
    plain = " ".join(words)
    dressed = "".join(f"{draw.choice(gaps)}{word}" for word in words) + draw.choice(gaps)
    lab.expect(text_digest(dressed), text_digest(plain), f"digest of {dressed!r}")
    place = draw.randint(0, len(words) - 1)
    other = draw.choice(["gamma", "18", '"a /* b"', "->"])
    changed = " ".join([*words[:place], other, *words[place + 1 :]])
    lab.expect(text_digest(changed) != text_digest(plain), True, f"{changed!r} beside {plain!r}")
