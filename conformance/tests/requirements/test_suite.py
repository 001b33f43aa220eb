"""SUITE-1: the suite counts what went wrong, in records, minima and exit code.

The subject is not asked. What is expected is derived here a second time, from what was drawn.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from conformance.core.aftermath import settle
from conformance.core.catalogue import ALIVE, REQUIREMENTS
from conformance.core.junit import write_junit
from conformance.core.lab import Lab
from conformance.core.process import Ended, Process
from conformance.core.record import Outcome, Record, RecordError, RecordWriter, read_records
from conformance.core.request import Identity, Request
from conformance.core.requirement import requirement
from conformance.core.verdict import Verdict, judge
from conformance.core.watchdog import SECOND_STAGE
from golden import Draw

ROUNDS = 6
TIERS = ("twin", "hopper")
GOOD, BAD = ("pass", "xfail"), ("fail", "crash", "hang", "xpass")
NEITHER = ("refused", "unobservable", "skipped")


def record(case: str, tier: str, outcome: str, **more: Any) -> Record:
    id, plain = case.partition("/")[0], {"interpreted": True, "message": "why", "repro": "again"}
    return Record(case, id, tier, "s", Outcome(outcome), None, None, **{**plain, **more})


@requirement("SUITE-1", how=("exit", "selection", "files", "death", "entries"))
def test_a_run_counts_what_went_wrong(lab: Lab) -> None:
    checks: dict[str, Callable[[Lab, Draw], None]] = {
        "exit": exit_follows_outcomes,
        "selection": exit_of_a_selection,
        "files": files_say_what_was_written,
        "death": a_death_costs_one_case,
        "entries": junit_counts_alike,
    }
    for number in range(ROUNDS):
        checks[lab.case["how"]](lab, lab.case.draw.fork(str(number)))


def exit_follows_outcomes(lab: Lab, draw: Draw) -> None:
    tiers = draw.choice([("twin",), ("twin",), TIERS, ("hopper",)])
    asked = draw.choice(["auto", "auto", "twin", "hopper"])
    require = frozenset(name for name in ("hopper", "planner") if draw.randint(0, 3) == 0)
    request = Request("x:y", tier=asked, require=require, identity=Identity("x", ""))
    records, outcomes = drawn_run(draw, tiers)
    verdict = Verdict(records, list(tiers))
    judge(request, verdict)
    short = {
        (tier, id): reason
        for (tier, id), seen in outcomes.items()
        if (reason := shortage(tier, id, seen, require))
    }
    incomplete = (
        "twin" not in tiers
        or not any(r.interpreted for r in records if r.tier == "twin")
        or ("hopper" not in tiers and (asked == "hopper" or "hopper" in require))
    )
    bad = sorted(f"{r.tier} {r.case}" for r in records if r.outcome in BAD)
    expected = 1 if bad else 2 if short or incomplete else 0
    lab.expect(int(verdict.exit), expected, f"exit code of {short or 'no'} shortages, {bad}")
    lab.expect(sorted(f"{r.tier} {r.case}" for r in verdict.failures), bad, "failures")
    told = {line.partition(":")[0] for line in verdict.short}
    lab.expect(told, {f"{id} on {tier}" for tier, id in short}, "requirements told as short")


def drawn_run(
    draw: Draw, tiers: Sequence[str]
) -> tuple[list[Record], dict[tuple[str, str], list[str]]]:
    """Return a run's records, all at their minima but for a few things that went otherwise."""
    outcomes = {
        (tier, id): ["pass"] * needed.minimum(tier)
        for tier in tiers
        for id, needed in REQUIREMENTS.items()
        if needed.minimum(tier)
    }
    keys = list(outcomes)
    for _ in range(draw.randint(0, 3)):
        place = outcomes[draw.choice([*keys, ("twin", "TWIN-1"), (tiers[0], ALIVE)])
                         if "twin" in tiers else draw.choice(keys)]  # fmt: skip
        word = draw.choice([*GOOD, *BAD, *NEITHER, *NEITHER])
        match draw.randint(0, 4):
            case 0 if place:
                place.pop()
            case 1:
                place.append(word)
            case 2 if place:
                place[draw.randint(0, len(place))] = word
            case _:
                place[:] = [draw.choice(["xfail", "skipped"])] * len(place)
    plain = draw.randint(0, 8) == 0  # no kernel ran interpreted
    records = [
        record(f"{id}/heads=16/{n}", tier, word, interpreted=not plain and tier == "twin")
        for (tier, id), words in outcomes.items()
        for n, word in enumerate(words)
    ]
    return records, outcomes


def shortage(tier: str, id: str, seen: Sequence[str], require: frozenset[str]) -> str:
    if id == ALIVE and "xfail" in seen and "pass" not in seen:
        return "no case of it passed"
    if sum(word in GOOD for word in seen) >= REQUIREMENTS[id].minimum(tier):
        return ""
    tool = REQUIREMENTS[id].tool
    excused = tier == "twin" and tool and tool not in require and seen
    return "" if excused and set(seen) == {"skipped"} else "too few"


def exit_of_a_selection(lab: Lab, draw: Draw) -> None:
    words = [draw.choice(["pass", *GOOD, *GOOD, *BAD, *NEITHER]) for _ in range(draw.randint(1, 4))]
    records = [record(f"NUM-1/heads=16/{n}", "twin", word) for n, word in enumerate(words)]
    verdict = Verdict(records, ["twin"], selection=True)
    judge(Request("x:y", requirements=("NUM-1",), identity=Identity("x", "")), verdict)
    bad, open_ = [sum(word in kind for word in words) for kind in (BAD, NEITHER)]
    lab.expect(int(verdict.exit), 1 if bad else 2 if open_ else 0, f"exit code of {words}")
    told = sum(int(line.partition(": ")[2].split()[0]) for line in verdict.short)
    lab.expect((len(verdict.failures), told), (bad, open_), f"counts of {words}")


def files_say_what_was_written(lab: Lab, draw: Draw) -> None:
    with tempfile.TemporaryDirectory() as folder:
        report, kept = Path(folder), []
        for worker in range(draw.randint(1, 4)):
            writer = RecordWriter(report / f"records-twin-1-gw{worker}.jsonl", {})
            for number in range(draw.randint(0, 5)):
                case = f"NUM-1/heads=16/{10 * worker + number}"
                made = record(case, "twin", "crash").but(
                    Outcome(draw.choice(["pass", *BAD[:3], *NEITHER])), f"said {number}"
                )
                writer.start(replace(made, outcome=Outcome.CRASH))
                first = writer.add(made)
                again = writer.add(replace(made, outcome=Outcome.PASS))
                lab.expect((first, again), (True, False), "whether a record was the case's first")
                kept.append(made)
            writer.close()
        lab.expect(read_records(report), kept, "records read back")
        victim = report / f"records-twin-1-gw{draw.randint(0, worker + 1)}.jsonl"
        text = victim.read_text()
        cut = draw.randint(0, len(text))
        victim.write_text(text[:cut])
        lab.expect(refusal(report), str(victim), f"file refused when cut at {cut} of {len(text)}")
        lines = text.splitlines(keepends=True)
        victim.write_text("".join(lines[: draw.randint(1, len(lines))]))
        lab.expect(refusal(report), str(victim), "file refused without its last lines")
        if len(lines) > 2:
            lost = draw.randint(1, len(lines) - 1)
            victim.write_text("".join(lines[:lost] + lines[lost + 1 :]))
            is_start = '"kind": "started"' in lines[lost]
            expected = "" if is_start else str(victim)
            lab.expect(refusal(report), expected, f"file refused without {lines[lost][:60]}")
            lost -= (lost - 1) % 2  # a case's two lines, of which nothing else tells
            victim.write_text("".join(lines[:lost] + lines[lost + 2 :]))
            lab.expect(
                refusal(report), str(victim), f"file refused without both {lines[lost][:60]}"
            )


def refusal(report: Path) -> str:
    """Return the file that a RecordError names."""
    try:
        read_records(report)
    except RecordError as problem:
        return str(problem).partition(":")[0]
    return ""


def a_death_costs_one_case(lab: Lab, draw: Draw) -> None:
    worker = draw.choice(["main", "gw0"])
    done, under_way = draw.randint(0, 3), draw.choice([True, False])
    how = draw.choice(["died", "died", "died", "left", "whole"])
    known = draw.choice(["", "crash (upstream): it does so", "hang (ours): it does so"])
    lost = draw.choice([None, frozenset({worker}), frozenset({"gw9"})])
    traced, stalled = draw.choice(["", "Fatal", SECOND_STAGE]), draw.randint(0, 4) == 0
    with tempfile.TemporaryDirectory() as folder:
        process = Process(Request("s", report=Path(folder)), "twin", 1)
        process.notes.mkdir(parents=True)
        (process.notes / f"faults-{worker}.txt").write_text(traced)
        writer = RecordWriter(Path(folder) / f"records-twin-1-{worker}.jsonl", {})
        wrote = [record(f"NUM-1/heads=16/{n}", "twin", "crash", expected=known) for n in range(4)]
        for plain in wrote[:done]:
            writer.start(plain)
            writer.add(replace(plain, outcome=Outcome.FAIL))
        if under_way or how == "left":
            writer.start(wrote[done])
        expected = ["fail"] * done
        if how == "whole":
            if under_way:
                writer.add(replace(wrote[done], outcome=Outcome.FAIL))
                expected.append("fail")
            writer.close()
        elif how == "left":
            writer.leave(wrote[done].but(Outcome.HANG, "no end"), "a test hung")
            expected.append("xfail" if known.startswith("hang") else "hang")
        elif lost is None or worker in lost:
            word = "hang" if traced == SECOND_STAGE or stalled else "crash"
            word = "xfail" if known.startswith(word) else word
            innocent = lost is None and worker != "main" and not traced and not stalled
            if not innocent and under_way:
                expected.append(word)
            elif not innocent and done:
                expected[-1] = word
        elif how == "died":
            expected = ["not whole"]
        faults = settle(process, Ended(1, stalled, lost))
        try:
            got = [str(r.outcome) for r in read_records(Path(folder))]
        except RecordError:
            got = ["not whole"]
        seen = f"{worker} {how}, lost {lost}, trace {traced!r}, stalled {stalled}, known {known!r}"
        lab.expect(got, expected, f"outcomes of {done} done, {under_way} under way, {seen}")
        fault = how != "whole" and expected != ["not whole"]
        unheard = len((lost or frozenset()) - {worker})  # lost before they had a file
        lab.expect(faults, fault + unheard, f"faults of {seen}")


def junit_counts_alike(lab: Lab, draw: Draw) -> None:
    words = [draw.choice(["pass", *GOOD, *BAD, *NEITHER]) for _ in range(draw.randint(1, 6))]
    records = [record(f"NUM-1/heads=16/{n}", "twin", word) for n, word in enumerate(words)]
    with tempfile.TemporaryDirectory() as folder:
        write_junit(Path(folder) / "x.xml", "twin", records)
        suite = ElementTree.parse(Path(folder) / "x.xml").getroot()[0]
    wrong = sum(word in BAD for word in words)
    told = int(suite.get("failures", "")) + int(suite.get("errors", ""))
    lab.expect(told, wrong, f"JUnit's failures and errors of {words}")
    lab.expect(sum(not len(case) for case in suite), words.count("pass"), f"passes of {words}")
