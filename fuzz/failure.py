"""A finding as data: which row of which request, what was got, and the schedule that computed it.

`fuzz.telling` makes the text of one from this data alone.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conformance.core.bench import Bench
from conformance.core.catalogue import ALIVE
from conformance.core.drawing import Log, draw
from conformance.core.lab import CheckFailed
from conformance.core.subject import Unobservable
from fuzz.engine import Frame

_log = logging.getLogger(__name__)
_MOST_SHOWN = 3

CHECKS: Mapping[str, str] = {
    "waits for the device": "PLAN-8",
    "reads behind the valid entries": "READ-C",
    "reads outside of the cache": "READ-A",
    "rows to compute": "MHA-4",
    "force_mqa": "MHA-1",
    "elements written behind the rows": "PLAN-11",
    "elements written by the refused": "ROB-1",
    "whether the cache is as it was": "READ-E",
}
"""The requirement that each of the player's checks speaks for, by the start of what it says.

What is not here speaks for a flag, a refusal, or an output: see `requirement_of`.
"""

FLAGS: Mapping[str, str] = {
    "valid_above_plan": "LEN-6",
    "count_below_formula": "LEN-3",
    "count_above_formula": "LEN-3",
    "rows_beyond_forward": "GRAPH-7",
    "scale_changed": "NUM-3",
}
"""The requirement that each flag speaks for, raised or missing."""

PLANTED: Mapping[str, str] = {
    "garbage-tail": "READ-B",
    "nan-elsewhere": "READ-D",
    "inf-elsewhere": "READ-D",
    "huge-elsewhere": "READ-D",
    "stale-bounds": "LEN-4",
    "late-frame": "READ-D",
    "warm-up": "READ-E",
    "layers": "NUM-3",
    "low-bound": "LEN-6",
    "untold-split": "LEN-6",
    "skipped-plan": "LEN-3",
    "garbage-entry": "IDX-2",
    "small-graph": "GRAPH-7",
    "other-scale": "NUM-3",
    "moved-table": "PLAN-12",
    "second-stream": "ROB-6",
    "over-capacity": "ROB-1",
}
"""The requirement that outputs speak for in a frame with a fault, and errors that did not come."""


@dataclass(frozen=True)
class Item:
    """A work item. q, kv: half-open ranges, of packed query-head pairs and of token positions.

    planned_end: where the plan had the KV range end; load_end: loads end here; touched: first and
    last position whose index entry was read, None for none, or where no log was kept.
    """

    cluster: int
    q: tuple[int, int]
    kv: tuple[int, int]
    planned_end: int
    load_end: int
    touched: tuple[int, int] | None


@dataclass(frozen=True)
class Schedule:
    """What the subject shows of a schedule. after: the frame that was built last, whose it is.

    info: the plan-info by field name, in FlashInfer's order. items: those of the finding's row.
    valid: that row's valid count in that frame, None where it has no such row.
    """

    after: str
    info: tuple[tuple[str, int], ...]
    items: tuple[Item, ...]
    valid: int | None


@dataclass(frozen=True)
class Element:
    """A wrong element of an output. request: None where the row has none."""

    row: int
    request: int | None
    head: int
    dim: int
    got: float
    expected: float
    bound: float


@dataclass(frozen=True)
class Finding:
    """What went wrong. frame: as "turn 3" or "turn 3, draft step 1"; fault: planted there, or "".

    crash: an exception that no check raised. requirement: the id that the check speaks for.
    row: of the batch, with the number of its request; None where it is not one row's doing.
    got, expected: as text. worst: elements of outputs, the worst first. repro: the command.
    """

    frame: str
    fault: str
    message: str
    crash: bool = False
    requirement: str = ""
    row: int | None = None
    request: int | None = None
    got: str = ""
    expected: str = ""
    worst: tuple[Element, ...] = ()
    schedule: Schedule | None = None
    repro: str = ""


@dataclass(frozen=True)
class Scene:
    """Where a history stood. where, fault: as of Finding; frame: None before the first.

    graph: whether a captured forward is replayed. kept: the rows that were held against golden, in
    that order. spared: rows that the fault reaches.
    """

    where: str
    fault: str = ""
    frame: Frame | None = None
    graph: bool = False
    kept: Sequence[int] = ()
    spared: frozenset[int] = frozenset()
    fp8: bool = False
    repro: str = ""

    def request(self, row: int | None) -> int | None:
        """Return the number of the request that a row of the batch is of."""
        if self.frame is None or row is None:
            return None
        owners = self.frame.step.row_requests
        return self.frame.requests[owners[row]] if row < len(owners) else None


def of(problem: Exception, scene: Scene) -> Finding:
    """Return the finding of an exception that ended a history; its schedule is added by `seen`."""
    if not isinstance(problem, CheckFailed):
        text = f"{type(problem).__name__}: {problem}"
        row = min(scene.spared, default=None)
        return Finding(
            scene.where, scene.fault, text, True, requirement_of("", None, None, scene), row,
            scene.request(row), text.partition("\n")[0], "no exception", repro=scene.repro,
        )  # fmt: skip
    worst = []
    for place, head, dim, *numbers in problem.worst:
        row = scene.kept[place] if place < len(scene.kept) else place
        worst.append(Element(row, scene.request(row), head, dim, *numbers))
    row = worst[0].row if worst else _row(problem.got, scene)
    got, expected = _text(problem.got), _text(problem.expected)
    if worst:
        got, expected = f"{worst[0].got:.9g}", f"{worst[0].expected:.9g}"
    return Finding(
        scene.where, scene.fault, str(problem), False,
        requirement_of(problem.what, problem.got, problem.expected, scene), row,
        scene.request(row), got, expected, tuple(worst), repro=scene.repro,
    )  # fmt: skip


def _row(got: Any, scene: Scene) -> int | None:
    """Return the row that a check's value speaks of: that of a read, or the fault's own."""
    first = got[0] if isinstance(got, list) and got else None
    return getattr(first, "row", min(scene.spared, default=None))


def requirement_of(what: str, got: Any, expected: Any, scene: Scene) -> str:
    """Return the requirement that a check speaks for; for an output and a crash, the frame's."""
    for start, id in CHECKS.items():
        if what.startswith(start):
            return id
    if what.startswith("flags after"):
        differing = sorted({*got} ^ {*expected})
        return next((FLAGS[flag] for flag in differing if flag in FLAGS), "LEN-3")
    if scene.fault in PLANTED:
        return PLANTED[scene.fault]
    if scene.frame is None:
        return ALIVE
    if scene.frame.drafting:
        return "DRAFT-1"
    if scene.frame.step.device_q_lens is not None:
        return "DRAFT-3"
    if scene.graph:
        return "GRAPH-3" if scene.frame.step.padded_rows > scene.frame.step.rows else "GRAPH-2"
    return "NUM-2" if scene.fp8 else "NUM-1"


def seen(
    bench: Bench, frame: Frame, where: str, rows: int, row: int | None, log: Log | None
) -> Schedule | None:
    """Return the schedule as it stands, None where the subject shows none.

    frame: the one that was built last, called `where`; rows: those that it computes. log: of that
    frame's reads, if one was kept. Raises nothing, for it must not hide what it illustrates.
    """
    try:
        shown = bench.observe()
        if not shown.plan_info:  # nothing has been planned yet
            return None
        schedule = bench.schedule(shown)
        offsets = [] if shown.kv_indptr is None else shown.kv_indptr.tolist()
        valid = bench.valid(frame.step)[:rows]
        failing = [] if row is None else [row]
        items = draw(schedule, offsets, valid, log, failing)["items"]
        packed = bench.config.num_heads  # each row of the batch is one query token
        width = schedule.info["num_blks_x"] * _TILE_Q
        return Schedule(
            where,
            tuple(schedule.info.items()),
            tuple(
                Item(
                    item["cluster"], (item["q_start"], min(item["q_start"] + width, packed)),
                    (item["kv_start"], item["end"]), item["planned_end"], item["load_end"],
                    tuple(item["touched"]) if item["touched"] else None,
                )
                for item in items if item["row"] == row
            ),
            valid[row] if row is not None and row < len(valid) else None,
        )  # fmt: skip
    except Unobservable:
        return None
    except Exception as problem:
        _log.warning("%s: no schedule: %s", where, problem)
        return None


_TILE_Q = 64
"""Packed query-head pairs of a block (FlashInfer 0.6.18 to 0.7.4, mla_hopper.cuh, CTA_TILE_Q)."""


def _text(value: Any) -> str:
    """Return a check's value; of a list no more than what begins it."""
    if isinstance(value, list):
        shown = [_read(item) for item in value[:_MOST_SHOWN]]
        more = len(value) - len(shown)
        return "; ".join(shown) + (f"; and {more} more" if more else "") if value else "none"
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 300 else f"{text[:300]}... ({len(text)} characters)"


def _read(item: Any) -> str:
    """Return a read that the twin's kernel made, or what else a list has."""
    if not hasattr(item, "position"):
        return str(item)
    return f"row {item.row}, position {item.position}, slot {item.slot} ({item.why.name.lower()})"
