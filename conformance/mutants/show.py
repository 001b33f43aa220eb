"""The kill matrix as text: a line per mutant, a column per requirement."""

from collections.abc import Iterator, Sequence

from conformance.mutants.matrix import Row, proven

_MARKS = "x killed, ! broken without a failed check, . not noticed, - not tried, # first killer"


def matrix_lines(rows: Sequence[Row], order: Sequence[str]) -> Iterator[str]:
    """Yield the lines: ids downwards as heads, a mark per mutant and id, what each id proves."""
    if not rows:
        return
    name = max(len(row.mutant) for row in rows)
    for letters in zip(*(id.rjust(max(map(len, order))) for id in order), strict=True):
        yield " " * name + "  " + "".join(letters)
    for row in rows:
        first = row.first_killer(order)
        yield f"{row.mutant:<{name}}  {''.join(_mark(row, id, first) for id in order)}"
    yield _MARKS
    for id, mutants in proven(rows, order).items():
        yield f"{id}: first to notice {', '.join(mutants) or 'none'}"


def _mark(row: Row, id: str, first: str | None) -> str:
    if id not in row.tried:
        return "-"
    if id in row.broken:
        return "!"
    if id in row.killed:
        return "#" if id == first else "x"
    return "."
