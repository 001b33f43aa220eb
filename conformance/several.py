"""One run or several: each subject's into a folder of its own, and the exit code of them all."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from conformance.clean import claim_report
from conformance.core.run import Exit, Request, SuiteError, Verdict

_SEVERITY = (Exit.CONFORMS, Exit.INCOMPLETE, Exit.DOES_NOT, Exit.SUITE_FAILED)
"""From best to worst: a failed suite says nothing, a failure is worse than what did not run."""


def worst(exits: Iterable[Exit]) -> Exit:
    """Return the exit code that stands for all of them."""
    return max(exits, key=_SEVERITY.index)


def folders(report: Path, names: Sequence[str]) -> list[Path]:
    """Return where each subject's report goes: `report` itself for one, else folders in it.

    Raise SuiteError for a subject named twice.
    """
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SuiteError(
            f"subject: found {', '.join(twice)} more than once; allowed: each once; to fix: "
            "remove one"
        )
    if len(names) == 1:
        return [report]
    slugs = [re.sub(r"[^\w.=+-]+", "-", name).strip("-.") or "subject" for name in names]
    taken: dict[str, int] = {}
    unique = []
    for slug in slugs:
        key = slug.lower()  # some file systems know one case alone
        taken[key] = taken.get(key, 0) + 1
        unique.append(slug if taken[key] == 1 else f"{slug}-{taken[key]}")
    return [report / slug for slug in unique]


def placed(request: Request, folder: Path) -> Request:
    """Return a request that writes into a folder; its JUnit files bear the folder's name too."""
    junit = request.junit
    if junit is not None and folder != request.report:
        junit = junit.with_name(f"{junit.stem}-{folder.name}{junit.suffix}")
    return replace(request, report=folder, junit=junit)


def run_each(
    requests: Sequence[Request],
    run: Callable[[Request], Verdict],
    show: Callable[[Verdict, str, Console], None],
    line: Callable[[Verdict, str], str],
    console: Console,
) -> Exit:
    """Run one subject after the other, then say in a line each what became of it.

    A run that the suite fails in is told and does not keep the others from theirs.
    """
    exits, lines = [], []
    for request in requests:
        console.print(f"subject {request.named}, report in {request.report}", markup=False)
        claim_report(request.report)
        try:
            verdict = run(request)
        except SuiteError as problem:
            console.print(f"error: {problem}", markup=False)
            exits.append(Exit.SUITE_FAILED)
            lines.append(f"{request.named}: the suite failed")
            continue
        show(verdict, request.named, console)
        exits.append(verdict.exit)
        lines.append(line(verdict, request.named))
    console.print(f"{len(requests)} subjects:", markup=False)
    for text in lines:
        console.print(text, markup=False)
    return worst(exits)
