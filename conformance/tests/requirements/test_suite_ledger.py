"""SUITE-2: the ledger excuses exactly what it says, of ledgers drawn and known to the test."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from conformance.core.catalogue import REQUIREMENTS
from conformance.core.lab import Lab
from conformance.core.ledger import Deviation, LedgerError, Situation, lint, match, stale
from conformance.core.ledger_text import parse
from conformance.core.record import Outcome, Record
from conformance.core.request import Identity, Request
from conformance.core.requirement import requirement
from conformance.core.verdict import Verdict, judge
from conformance.tests.requirements.test_suite import BAD, ROUNDS, TIERS, record
from golden import Draw

WORDS = ("fail", "crash", "hang", "refused")
KINDS = ("ours", "upstream", "by-design")
VERSIONS = ("0.6.18", "0.7.0", "0.7.2.post1", "0.7.4")
ALL_VERSIONS = ("0.1", *VERSIONS, "99")
"""Those drawn, and one on either side."""


@dataclass(frozen=True)
class Drawn:
    """An entry as the test knows it. None: any. fits: which of ALL_VERSIONS its specifier takes."""

    dtype: str | None
    heads: str | None
    number: str | None
    tier: str
    fits: frozenset[str]
    own: frozenset[str]
    outcome: str
    harmless: bool

    def speaks_of(self, case: tuple[str, str, int], tier: str, own: str, below: str) -> bool:
        wanted = (self.dtype, self.heads, self.number)
        same = all(w in (None, str(value)) for w, value in zip(wanted, case, strict=True))
        return same and self.tier in ("any", tier) and own in self.own and below in self.fits


CASES = [(dtype, heads, n) for dtype in ("bf16", "fp8") for heads in ("1", "16") for n in (1, 11)]


def named(case: tuple[str, str, int]) -> str:
    return f"NUM-1/dtype={case[0]},heads={case[1]}/{case[2]}"


SUITE = {"twin": [named(case) for case in CASES], "hopper": [named(case) for case in CASES[:5]]}


def drawn_specifier(draw: Draw) -> tuple[str, frozenset[str]]:
    """Return a specifier and what it takes; places in ALL_VERSIONS are in order of age."""
    place = 1 + draw.randint(0, len(VERSIONS))
    version = ALL_VERSIONS[place]
    taken: dict[str, Sequence[str]] = {
        "": ALL_VERSIONS,
        f"=={version}": [version],
        f"!={version}": [v for v in ALL_VERSIONS if v != version],
        f">={version}": ALL_VERSIONS[place:],
        f"<{version}": ALL_VERSIONS[:place],
    }
    text = draw.choice([*taken])
    return text, frozenset(taken[text])


def drawn_entry(draw: Draw) -> tuple[str, Drawn]:
    """Return an entry's text, and what the test knows of it."""
    case = draw.choice(CASES)
    dtype, heads, number = (draw.choice([value, None]) for value in map(str, case))
    tier = draw.choice(["twin", "twin", "hopper", "any"])
    below, fits = drawn_specifier(draw)
    own, versions = drawn_specifier(draw)
    word, kind = draw.choice(WORDS), draw.choice(KINDS)
    harmless = word == "crash" and draw.choice([True, False])
    text = (
        f'[[deviation]]\ncases = "NUM-1/dtype={dtype or "*"},heads={heads or "*"}/'
        f'{number or "*"}"\nsubject = "x{own}"\nflashinfer = "{below}"\ntier = "{tier}"\n'
        f'outcome = "{word}"\nkind = "{kind}"\nevidence = "drawn by this very case of the suite"\n'
        f'why = "it was drawn so"\n{"harmless = true" if harmless else ""}\n'
    )
    return text, Drawn(dtype, heads, number, tier, fits, versions, word, harmless)


@requirement("SUITE-2", how=("match", "lint", "outcomes", "stale", "alone"))
def test_the_ledger_excuses_what_it_says(lab: Lab) -> None:
    checks: dict[str, Callable[[Lab, Draw], None]] = {
        "match": entries_speak_of_their_situations,
        "lint": ambiguous_and_idle_entries_are_refused,
        "outcomes": outcomes_beside_what_is_known,
        "stale": entries_need_a_case_that_ran,
        "alone": what_harms_runs_alone,
    }
    for number in range(2 * ROUNDS):
        checks[lab.case["how"]](lab, lab.case.draw.fork(str(number)))


def drawn_ledger(draw: Draw, count: int) -> tuple[list[Deviation], list[Drawn]]:
    pairs = [drawn_entry(draw) for _ in range(count)]
    return parse("".join(text for text, _ in pairs), "drawn.toml"), [entry for _, entry in pairs]


def entries_speak_of_their_situations(lab: Lab, draw: Draw) -> None:
    (entry,), (known,) = drawn_ledger(draw, 1)
    for case in CASES:
        for tier in TIERS:
            for own in ALL_VERSIONS:
                for below in ALL_VERSIONS:
                    there = Situation(named(case), tier, "x", own, below)
                    got = match([entry], there) is not None
                    if got != known.speaks_of(case, tier, own, below):
                        lab.expect(got, not got, f"whether {entry} speaks of {there}")
    for elsewhere in ("y", "xx", ""):
        there = Situation(named(CASES[0]), "twin", elsewhere, "0.7.0", "0.7.0")
        lab.expect(match([entry], there), None, f"what a ledger of x says of {elsewhere!r}")


def ambiguous_and_idle_entries_are_refused(lab: Lab, draw: Draw) -> None:
    ledger, known = drawn_ledger(draw, 2)
    places = [(case, tier) for tier in TIERS for case in CASES if named(case) in SUITE[tier]]
    idle = [
        not any(k.speaks_of(case, tier, min(k.own), min(k.fits)) for case, tier in places)
        for k in known
    ]
    twice = any(
        all(k.speaks_of(case, tier, own, below) for k in known)
        for case, tier in places
        for own in ALL_VERSIONS
        for below in ALL_VERSIONS
    )
    try:
        lint(ledger, SUITE)
        got = "sound"
    except LedgerError as problem:
        got = "idle" if "matches no case" in str(problem) else "ambiguous"
    expected = "idle" if any(idle) else "ambiguous" if twice else "sound"
    lab.expect(got, expected, f"what lint says of {ledger}")


@cache
def whole_run() -> tuple[Record, ...]:
    """Return the records of a run in which all is well."""
    return tuple(
        record(f"{id}/heads=16/{n}", "twin", "pass")
        for id, needed in REQUIREMENTS.items()
        for n in range(needed.twin)
    )


def outcomes_beside_what_is_known(lab: Lab, draw: Draw) -> None:
    (entry,), (known,) = drawn_ledger(draw, 1)
    raw = draw.choice(["pass", *WORDS, *WORDS, "unobservable", "skipped", known.outcome])
    expected = {"pass": "xpass", known.outcome: "xfail"}.get(raw, raw)
    id = draw.choice([id for id in REQUIREMENTS if REQUIREMENTS[id].twin > 1])
    records = [*whole_run()]
    place = next(n for n, r in enumerate(records) if r.requirement == id)
    told = replace(records[place], expected=entry.expected).but(Outcome(raw), "said")
    plain = records[place].but(Outcome(raw), "said")
    lab.expect(str(plain.outcome), raw, "outcome of a case that no entry speaks of")
    lab.expect(str(told.outcome), expected, f"outcome of {raw} where {known.outcome} is known")
    records[place] = told
    verdict = Verdict(records, ["twin"])
    judge(Request("x:y", identity=Identity("x", "")), verdict)
    exits = {"xfail": 0, "xpass": 1, "fail": 1, "crash": 1, "hang": 1}
    lab.expect(int(verdict.exit), exits.get(expected, 2), f"exit code of one {expected} of {id}")
    counted = [(k.outcome, k.kind, len(rs)) for k, rs in verdict.deviations.items()]
    seen = [(entry.outcome, entry.kind, 1)] if expected == "xfail" else []
    lab.expect(counted, seen, f"known deviations seen with one {expected}")


def entries_need_a_case_that_ran(lab: Lab, draw: Draw) -> None:
    ledger, known = drawn_ledger(draw, 3)
    tiers = draw.choice([("twin",), TIERS])
    own = draw.choice(VERSIONS)
    ran = []
    for tier in tiers:
        for case in CASES:
            if draw.randint(0, 3) == 0:
                word = draw.choice(["pass", *BAD, "xfail", "unobservable", "skipped"])
                ran.append((case, tier, draw.choice(VERSIONS), word))
    records = [record(named(c), t, w, flashinfer=v) for c, t, v, w in ran]
    expected = []
    for number, k in enumerate(known, 1):
        near = [r for r in ran if k.tier in ("any", r[1]) and own in k.own and r[2] in k.fits]
        judged = [r for r in near if r[3] not in ("unobservable", "skipped")]
        if near and not any(k.speaks_of(c, t, own, v) for c, t, v, _ in judged):
            expected.append(number)
    got = [entry.number for entry in stale(ledger, records, "x", own)]
    lab.expect(got, expected, f"stale entries of {known} after {ran}")
    verdict = Verdict(records, list(tiers))
    asked = Request("x:y", identity=Identity("x", own), ledger=ledger)
    judge(asked, verdict)
    lab.expect(len(verdict.stale), len(expected), "stale entries that a full run tells of")
    wrong = bool(expected) or any(w in BAD for *_, w in ran)
    lab.expect(int(verdict.exit), 1 if wrong else 2, f"exit code, stale {expected}, after {ran}")
    part = Verdict(records, list(tiers), selection=True)
    judge(replace(asked, requirements=("NUM-1",)), part)
    lab.expect(part.stale, [], "stale entries that a selection tells of")


def what_harms_runs_alone(lab: Lab, draw: Draw) -> None:
    (entry,), (known,) = drawn_ledger(draw, 1)
    for tier in TIERS:
        bad = known.outcome == "crash" and tier == "hopper" and not known.harmless
        harms = known.outcome == "hang" or bad
        lab.expect(entry.endangers(tier), harms, f"whether {known} on {tier} harms others")
    again = Deviation.from_table(entry.table())
    lab.expect(again, entry, "an entry handed to another process")
