"""A ledger's text: TOML in, sound entries out.

A TOML file holds tables `[[deviation]]`, each with these keys, and perhaps the last, and no other:

| key | value |
|---|---|
| cases | pattern, or list of patterns, over case ids (fnmatch) |
| subject | the subject's name, and perhaps a PEP 440 specifier of its version |
| flashinfer | PEP 440 specifier of the FlashInfer version below the subject; empty: any |
| tier | twin, hopper or any |
| outcome | fail, crash, hang or refused |
| kind | ours, upstream or by-design |
| evidence | what was seen, with which command, where, when |
| why | the cause, in a sentence |
| harmless | true: the crash is an exception of Python, and a GPU sound after it |
"""

import re
import tomllib
from fnmatch import fnmatchcase
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from conformance.core.catalogue import REQUIREMENTS
from conformance.core.ledger import KINDS, OUTCOMES, TIERS, Deviation, LedgerError
from conformance.core.record import Outcome

KEYS = ("cases", "subject", "flashinfer", "tier", "outcome", "kind", "evidence", "why")
HARMLESS = "harmless"

_SUBJECT = re.compile(r"\s*([A-Za-z_][\w.:-]*)\s*((?:[<>=!~].*)?)")
_PLACEHOLDER = re.compile(
    r"\b(todo|tbd|fixme|xxx+|lorem|placeholder|asdf|what was seen|cause in a sentence)\b|\?\?", re.I
)
_WORDS = {"evidence": 5, "why": 3}
"""How many words a text has at least."""


def parse(text: str, source: str) -> list[Deviation]:
    """Return the entries of a file's text; raise LedgerError for the first that is malformed."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise LedgerError(
            source, found=f"no TOML ({problem})", allowed="a TOML file", remedy="mend that line"
        ) from problem
    tables = document.get("deviation", [])
    if set(document) - {"deviation"} or not isinstance(tables, list):
        raise LedgerError(
            source,
            found=f"the keys {sorted(document)}",
            allowed="tables [[deviation]] alone",
            remedy="remove the others",
        )
    return [_entry(table, source, number) for number, table in enumerate(tables, 1)]


def _entry(table: Any, source: str, number: int) -> Deviation:
    where = f"{source}, deviation {number}"
    keys = set(table) if isinstance(table, dict) else set()
    if keys - {HARMLESS} != set(KEYS):
        unknown, missing = (
            sorted(keys - {*KEYS, HARMLESS}),
            [key for key in KEYS if key not in keys],
        )
        found = [f"{word} {names}" for word, names in (("unknown", unknown), ("missing", missing))
                 if names]  # fmt: skip
        raise LedgerError(
            where,
            found=f"keys {' and '.join(found)}",
            allowed=", ".join(KEYS),
            remedy="give each of these once, and no other",
        )
    patterns = table["cases"] if isinstance(table["cases"], list) else [table["cases"]]
    if not patterns or not all(isinstance(p, str) and p for p in patterns):
        raise LedgerError(
            f"{where}, cases", found=repr(table["cases"]), allowed="a pattern or a list of them",
            remedy="write it as a string, PLAN-8/* for all cases of PLAN-8",
        )  # fmt: skip
    for key in KEYS[1:]:
        if not isinstance(table[key], str):
            raise LedgerError(
                f"{where}, {key}", found=repr(table[key]), allowed="a string", remedy="quote it"
            )
    for pattern in patterns:
        requirement = pattern.partition("/")[0]
        if not any(fnmatchcase(id, requirement) for id in REQUIREMENTS):
            raise LedgerError(
                f"{where}, cases", found=f"the requirement {requirement!r}",
                allowed=", ".join(REQUIREMENTS), remedy="correct the part before the slash",
            )  # fmt: skip
    for key, allowed in (("tier", TIERS), ("outcome", OUTCOMES), ("kind", KINDS)):
        if table[key] not in allowed:
            raise LedgerError(
                f"{where}, {key}", found=repr(table[key]), allowed=", ".join(allowed),
                remedy="take one of these",
            )  # fmt: skip
    for key, least in _WORDS.items():
        text = table[key]
        if len(text.split()) < least or _PLACEHOLDER.search(text):
            raise LedgerError(
                f"{where}, {key}", found=repr(text), allowed=f"a text of {least} words or more, "
                "and no placeholder", remedy="say what was seen, with which command, where and "
                "when" if key == "evidence" else "say the cause in a sentence",
            )  # fmt: skip
    harmless = table.get(HARMLESS, False)
    if not isinstance(harmless, bool) or (harmless and table["outcome"] != Outcome.CRASH):
        raise LedgerError(
            f"{where}, {HARMLESS}", found=f"{harmless!r} of a {table['outcome']}",
            allowed="true or false, true of a crash alone", remedy="leave it out",
        )  # fmt: skip
    name, versions = _subject(table["subject"], where)
    _specifier(table["flashinfer"], f"{where}, flashinfer")
    texts = {key: table[key] for key in KEYS[2:]}
    cases = tuple(patterns)
    return Deviation(source, number, cases, name, versions, harmless=harmless, **texts)


def _subject(text: str, where: str) -> tuple[str, str]:
    found = _SUBJECT.fullmatch(text)
    if found is None:
        raise LedgerError(
            f"{where}, subject", found=repr(text), allowed="a name, or a name and a specifier",
            remedy="write it as in vllm==0.33.0",
        )  # fmt: skip
    _specifier(found[2], f"{where}, subject")
    return found[1], found[2]


def _specifier(text: str, where: str) -> None:
    try:
        sound = "===" not in {specifier.operator for specifier in SpecifierSet(text)}
    except InvalidSpecifier:
        sound = False
    if not sound:
        raise LedgerError(
            where, found=repr(text), allowed="a PEP 440 version specifier, === excepted",
            remedy="write it as in ==0.7.4 or >=0.7,<0.8",
        )  # fmt: skip
