"""A schedule as a small table, from which a report draws who reads which part of which row.

Positions are token positions in a row's index list; ranges are half-open but for `touched`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, Protocol

from conformance.core.schedule import ScheduleReader, Work

MOST_ITEMS = 200
"""Work items in a drawing; a record stays small, and nobody reads more."""


class Log(Protocol):
    """What the simulated kernel touched since it was last cleared."""

    def spans(self, rows: Collection[int] | None = None) -> Mapping[int, list[tuple[int, int]]]:
        """Return per row the ranges [start, stop) of positions read, one per tile."""


def draw(
    schedule: ScheduleReader,
    offsets: Sequence[int],
    valid: Sequence[int],
    log: Log | None = None,
    failing: Iterable[int] = (),
) -> dict[str, Any]:
    """Return the work items of a schedule after its clamp, as JSON values.

    offsets: kv_indptr, with which a row's planned length is told. valid: each live row's valid
    count; other rows have 0. failing: rows known to be wrong, which come first, and behind them
    those whose items do not tile their valid range or touch more. Returned:

    - clusters: how many the launch has; touches: whether a log was there;
    - truncated: whether items are left out, beyond MOST_ITEMS;
    - items: cluster; row; q_start (packed query-head pair); kv_start; planned_end (where the next
      piece of the row starts, else the row's planned length, else kv_len); end (kv_end: masked
      from here on); load_end (kv_len: loads end here); valid (the row's count); touched ([first,
      last] position whose index entry was read, None if none was).
    """
    indptr = schedule.work_indptr.tolist()
    there = schedule.works()
    works = [
        (cluster, work)
        for cluster, (first, last) in enumerate(pairwise(indptr))
        for work in there[max(first, 0) : max(last, 0)]
    ]
    works.sort(key=lambda item: (item[1].row, item[1].q_start, item[1].start))
    # kv_indptr counts batch rows and a work item tells its query row: with a query per row, equal.
    planned = {row: last - first for row, (first, last) in enumerate(pairwise(offsets))}
    counts, reach = dict(enumerate(valid)), _reach(log)
    items = []
    for (row, _), group in groupby(works, key=lambda item: (item[1].row, item[1].q_start)):
        pieces, count = list(group), counts.get(row, 0)
        starts = [work.start for _, work in pieces[1:]]
        bad = not _tiles([work for _, work in pieces], count) or reach.get(row, 0) > count
        for (cluster, work), following in zip(pieces, [*starts, None], strict=True):
            item = _item(cluster, work, count, following, planned.get(row))
            items.append((bad, following is None, item))
    first = frozenset(failing)
    items.sort(key=lambda found: (found[2]["row"] not in first, not found[0]))
    kept = items[:MOST_ITEMS]
    if log is not None:
        spans = log.spans({item["row"] for _, _, item in kept})
        for _, last, item in kept:
            item["touched"] = _touched(item, spans.get(item["row"], []), last)
    chosen = sorted(
        (item for _, _, item in kept), key=lambda i: (i["cluster"], i["row"], i["q_start"])
    )
    return {
        "clusters": schedule.clusters,
        "touches": log is not None,
        "truncated": len(items) > len(kept),
        "items": chosen,
    }


def _item(
    cluster: int, work: Work, valid: int, following: int | None, planned: int | None
) -> dict[str, Any]:
    whole = max(work.kv_len, work.end) if planned is None else planned
    return {
        "cluster": cluster,
        "row": work.row,
        "q_start": work.q_start,
        "kv_start": work.start,
        "planned_end": whole if following is None else following,
        "end": work.end,
        "load_end": work.kv_len,
        "valid": valid,
        "touched": None,
    }


def _tiles(pieces: Sequence[Work], valid: int) -> bool:
    """Whether pieces in order of their starts cover [0, valid) once."""
    reached = 0
    for work in pieces:
        if work.end <= work.start:
            continue
        if work.start != reached:
            return False
        reached = work.end
    return reached == valid


def _reach(log: Log | None) -> dict[int, int]:
    """Return per row one past the highest position touched."""
    if log is None:
        return {}
    return {row: max(stop for _, stop in spans) for row, spans in log.spans().items()}


def _touched(item: Mapping[str, Any], spans: Sequence[tuple[int, int]], last: bool) -> Any:
    """Return the part of a row's reads that this piece made; the last one has what lies behind."""
    limit = float("inf") if last else item["planned_end"]
    own = [(first, stop) for first, stop in spans if item["kv_start"] <= first < limit]
    return [min(first for first, _ in own), max(stop for _, stop in own) - 1] if own else None
