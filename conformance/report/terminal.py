"""What a run prints: a table of requirements by tier, failures, and the verdict."""

from collections import Counter

from rich.console import Console
from rich.table import Table

from conformance.core.catalogue import REQUIREMENTS
from conformance.core.record import Outcome, Record, worst_ratio
from conformance.core.run import Exit, Verdict
from conformance.report.figures import figure_lines

_SHOWN_FAILURES = 10
_SENTENCE = {
    Exit.CONFORMS: "conforms",
    Exit.DOES_NOT: "does not conform",
    Exit.INCOMPLETE: "incomplete: no verdict",
}


def show(verdict: Verdict, subject: str, console: Console) -> None:
    """Print the table, the first failures, what did not run, and last the verdict."""
    if verdict.records:
        console.print(_table(verdict))
    for line in figure_lines(verdict.records):
        console.print(line, markup=False)
    for record in verdict.failures[:_SHOWN_FAILURES]:
        console.print(f"[bold]{record.outcome}[/bold] {record.tier}", end=" ")
        console.print(record.message or record.case, markup=False)
    if len(verdict.failures) > _SHOWN_FAILURES:
        console.print(f"... and {len(verdict.failures) - _SHOWN_FAILURES} more in the records")
    for line in verdict.short:
        console.print(f"below its minimum: {line}", markup=False)
    for what, why, command in verdict.not_run:
        remedy = "" if command == "none" else f"; to run it: {command}"
        console.print(f"not run: {what}: {why}{remedy}", markup=False)
    for line in verdict.stale:
        console.print(f"stale: {line}", markup=False)
    for known, records in verdict.deviations.items():
        cases = f"{len(records)} cases, {records[0].case} the first"
        console.print(f"known deviation: {known} [{cases}]", markup=False)
    console.print(last_line(verdict, subject), markup=False)


def last_line(verdict: Verdict, subject: str) -> str:
    """Return the verdict in a line, known deviations and what did not run included."""
    counts = Counter(record.outcome for record in verdict.records)
    summary = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    tiers = f" on {' and '.join(verdict.ran)}" if verdict.ran else ""
    word = _SENTENCE[verdict.exit]
    known = f" except for {_deviations(verdict)}" if verdict.deviations else ""
    if verdict.exit is Exit.CONFORMS and verdict.selection:
        word = f"passes this selection{known}, which is no verdict on conformance"
    elif verdict.exit is Exit.CONFORMS:
        word += known
    hopper = "" if "hopper" in verdict.ran else "; not run: hopper (needs a GPU of capability 9.0)"
    return f"{subject} {word}{tiers}: {summary or 'no case ran'}{hopper}"


def _deviations(verdict: Verdict) -> str:
    """Count known deviations, those by design apart."""
    kinds = Counter(known.kind == "by-design" for known in verdict.deviations)
    found = [f"{kinds[False]} known deviation{'s' * (kinds[False] != 1)}"] if kinds[False] else []
    found += [f"{kinds[True]} by design"] if kinds[True] else []
    return " and ".join(found)


def _table(verdict: Verdict) -> Table:
    table = Table("id", "requirement", title=None)
    for tier in verdict.ran:
        table.add_column(f"{tier}\npassed / least", justify="right")
        table.add_column(f"{tier}\nworst error / bound", justify="right")
    for requirement in REQUIREMENTS.values():
        cells = [requirement.id, requirement.sentence]
        seen = False
        for tier in verdict.ran:
            records = [
                r for r in verdict.records if r.tier == tier and r.requirement == requirement.id
            ]
            seen |= bool(records)
            cells += [_count(records, requirement.minimum(tier)), _ratio(records)]
        if seen:
            table.add_row(*cells)
    return table


def _count(records: list[Record], least: int) -> str:
    passed = sum(record.outcome is Outcome.PASS for record in records)
    known = sum(record.outcome is Outcome.XFAIL for record in records)
    text = f"{passed} + {known} known / {least}" if known else f"{passed} / {least}"
    whole = passed + known == len(records)
    return text if whole else f"[red]{text}[/red] of {len(records)}"


def _ratio(records: list[Record]) -> str:
    ratio = worst_ratio(records)
    return "" if ratio is None else f"{ratio:.2f}"
