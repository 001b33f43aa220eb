"""The command `explain`: what a requirement or a case checks, and what to do when it fails.

The texts are data, in explanations.toml; sentence and minima are the catalogue's.
"""

import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import click

from conformance.core.case import Case, parse
from conformance.core.catalogue import REQUIREMENTS
from conformance.listing import TIERS, case_ids, known
from conformance.mutants.cli import OWN
from conformance.mutants.model import read_mutants

TEXTS = Path(__file__).with_name("explanations.toml")
_WIDTH = 100
_INDENT = " " * 10


@dataclass(frozen=True)
class Explanation:
    """One requirement's texts. detectors: keys of `detectors()`; files: of this repository."""

    how: str
    detectors: tuple[str, ...]
    failure: str
    next: str
    files: tuple[str, ...]


@cache
def _tables() -> Mapping[str, Mapping[str, Any]]:
    return tomllib.loads(TEXTS.read_text())


def detectors() -> dict[str, str]:
    """What each detector looks at, by its short name."""
    return {name: str(text) for name, text in _tables()["detectors"].items()}


def explanations() -> dict[str, Explanation]:
    """Every explanation by requirement id."""
    return {
        id: Explanation(
            **{**table, "detectors": tuple(table["detectors"]), "files": tuple(table["files"])}
        )
        for id, table in _tables().items()
        if id != "detectors"
    }


@click.command("explain")
@click.argument("id")
def explain_command(id: str) -> None:
    """Say what requirement ID (or the case of that id) checks, and what a failure means."""
    case = parse(id) if "/" in id else None
    requirement = known(case.requirement if case else id)
    click.echo("\n".join([*(_case(case) if case else ()), *_requirement(requirement, case)]))


def _requirement(id: str, case: Case | None) -> Iterator[str]:
    requirement, text = REQUIREMENTS[id], explanations()[id]
    yield f"{id}: {requirement.sentence}"
    yield ""
    tiers = [
        f"{tier}: at least {requirement.minimum(tier)} cases must pass"
        if requirement.minimum(tier)
        else f"{tier}: not judged ({requirement.unjudged})"
        for tier in TIERS
    ]
    yield from _block("where", "; ".join(tiers))
    if requirement.tool:
        yield from _block("", f"the twin's cases need more than Python: {requirement.tool}")
    yield from _block("how", text.how)
    for name in text.detectors:
        yield from _block("", f"{name}: {detectors()[name]}")
    yield from _block("a failure", text.failure)
    yield from _block("what next", text.next)
    for command in _commands(id, case):
        yield f"{_INDENT}{command}"
    yield from _block("files", ", ".join(text.files))
    faults = [m for m in read_mutants([OWN]) if m.requirement == id]
    if faults:
        names = ", ".join(mutant.name for mutant in faults)
        yield from _block("proven by", f"deliberate faults that it must notice: {names}")


def _commands(id: str, case: Case | None) -> Iterator[str]:
    tiers = [tier for tier in TIERS if REQUIREMENTS[id].minimum(tier)]
    for tier in tiers:
        selection = f"--case '{case.id}'" if case else f"--requirement {id} -x"
        yield f"python -m conformance run --tier {tier} {selection}"
    if not case:
        yield "python -m conformance run --case ID    (ID: a failing case's, from its repro line)"


def _case(case: Case) -> Iterator[str]:
    made = [tier for tier in TIERS if case.id in case_ids([tier], [case.requirement])]
    yield f"case {case.id}"
    yield ""
    yield from _block(
        "made", f"by a full run on {' and '.join(made)}" if made else "by --case only"
    )
    for name, value in case.values.items():
        yield from _block("", f"{name} = {value}")
    yield from _block("", str(case.geometry))
    yield ""


def _block(head: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=f"{head:<{len(_INDENT)}}",
        subsequent_indent=_INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
