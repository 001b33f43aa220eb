"""Figures that judges compared, over the cases of a requirement: a line for each title and tier.

A judge leaves them in its record's history: {"figures": {title: {name: number}}}.
"""

from collections import defaultdict
from collections.abc import Iterable

from conformance.core.record import Record


def figure_lines(records: Iterable[Record]) -> list[str]:
    """Return a line of each requirement, tier and title: every name's least, median and largest."""
    seen: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for record in records:
        for title, figures in (record.history or {}).get("figures", {}).items():
            place = (record.requirement, record.tier, title)
            found = seen.setdefault(place, defaultdict(list))
            for name, value in figures.items():
                found[name].append(value)
    return [
        f"{requirement} on {tier}: {title}: "
        + "; ".join(f"{name} {_range(values)}" for name, values in found.items())
        for (requirement, tier, title), found in seen.items()
    ]


def _range(values: list[float]) -> str:
    ordered = sorted(values)
    middle = ordered[len(ordered) // 2]
    return f"{ordered[0]:.1e} to {ordered[-1]:.1e}, median {middle:.1e} ({len(ordered)} cases)"
