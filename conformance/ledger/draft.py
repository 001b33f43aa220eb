"""A first ledger out of a run's records: what went wrong, as few patterns as fit, causes left open.

Each entry is of one requirement, one outcome, one FlashInfer version and one kind of message. Its
patterns match all cases that went wrong so, and none that did not.
"""

import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from conformance.core.case import parse
from conformance.core.ledger_text import HARMLESS
from conformance.core.record import Outcome, Record

OPEN = "TODO"
"""Stands where only a person can write; the ledger's reader refuses it."""

_RAISED = re.compile(r"[A-Za-z_][\w.]*: ")
_NUMBER = re.compile(r"\d[\d.e+-]*")
_KEPT = 60
_DIMENSIONS = 2
"""How many dimensions a pattern fixes at most; what those do not tell apart is named in full."""

Group = tuple[str, str, str, str, str]
"""Requirement, outcome, FlashInfer version, tier, kind of message."""


def grouped(records: Iterable[Record]) -> dict[Group, list[Record]]:
    """Return the records that went wrong, by what an entry is of."""
    groups: dict[Group, list[Record]] = {}
    for record in records:
        if record.failed:
            key = (record.requirement, str(record.outcome), record.flashinfer, record.tier)
            groups.setdefault((*key, _kind(record)), []).append(record)
    return groups


def _kind(record: Record) -> str:
    """Return a message's first line without case and numbers."""
    first = record.message.removeprefix(f"{record.case}: ").partition("\n")[0]
    return _NUMBER.sub("#", first)[:_KEPT]


def patterns(wrong: Collection[str], right: Collection[str]) -> list[str]:
    """Return patterns over case ids that match all of `wrong` and none of `right`."""
    left, found = set(wrong), []
    candidates = sorted({p for case in wrong for p in _patterns(case)}, key=lambda p: -p.count("*"))
    sound = [p for p in candidates if not any(fnmatchcase(case, p) for case in right)]
    matched = {p: {case for case in wrong if fnmatchcase(case, p)} for p in sound}
    while left:
        best = max(sound, key=lambda p: len(matched[p] & left), default=None)
        if best is None or len(matched[best] & left) < 2:
            break
        found.append(best)
        left -= matched[best]
    return [*found, *sorted(left)]


def _patterns(case: str) -> Iterable[str]:
    parsed = parse(case)
    for count in range(_DIMENSIONS + 1):
        for kept in itertools.combinations(parsed.values, count):
            pairs = (f"{name}={value if name in kept else '*'}" for name, value in
                     parsed.values.items())  # fmt: skip
            yield f"{parsed.requirement}/{','.join(pairs)}/*"


def harmless(records: Iterable[Record]) -> bool:
    """Whether crashes on a GPU were exceptions of Python, each told of by its type."""
    return all(
        r.tier == "hopper" and r.outcome is Outcome.CRASH and _RAISED.match(r.message)
        for r in records
    )


def draft(records: Sequence[Record], subject: str) -> str:
    """Return a ledger's text for what went wrong in `records`, of one subject and version.

    kind, evidence and why are left open, the message beside them as a comment.
    """
    tables = []
    for (id, outcome, flashinfer, tier, kind), wrong in sorted(grouped(records).items()):
        names = {record.case for record in wrong}
        beside = {
            r.case
            for r in records
            if (r.requirement, r.flashinfer, r.tier) == (id, flashinfer, tier)
        } - names
        found = patterns(names, beside)
        listed = "".join(f'    "{pattern}",\n' for pattern in found)
        tables.append(
            f"[[deviation]]  # {len(names)} of {len(names | beside)} cases: {kind}\n"
            + table({"cases": f"[\n{listed}]"})
            + table(
                {
                    "subject": f'"{subject}"',
                    "flashinfer": f'"=={flashinfer}"' if flashinfer else '""',
                    "tier": f'"{tier}"',
                    "outcome": f'"{outcome}"',
                    "kind": f'"{OPEN}"',
                    "evidence": f'"{OPEN}"',
                    "why": f'"{OPEN}"',
                    **({HARMLESS: "true"} if harmless(wrong) else {}),
                }
            )
        )
    return "\n".join(tables)


def table(values: Mapping[str, str]) -> str:
    """Return lines of TOML, values as they stand."""
    return "".join(f"{key} = {value}\n" for key, value in values.items())
