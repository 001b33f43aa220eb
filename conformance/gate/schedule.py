"""How two plans of one input differ, in the words of a schedule: grid, layout, split, order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conformance.gate.planner_child import Plan
from conformance.twin.planner import INFO_FIELDS, MERGE_FIELDS, WORK_FIELDS

Words = NDArray[np.int32]

KINDS = {
    "dies": "the planner ends its process",
    "refuses": "the planner refuses an input that it planned before",
    "accepts": "the planner accepts an input that it refused before",
    "length": "plan-info has another number of integers",
    "grid": "the launch grid is another",
    "layout": "the layout of plan-info and int workspace is another",
    "float": "partial results have another place in the float workspace",
    "split": "the KV range is split otherwise",
    "items": "work items cover the same ranges and say something else of them",
    "order": "the same work items are assigned to clusters in another order",
    "partials": "partial results are numbered otherwise",
    "merge": "the merge list is another",
    "stray": "bytes outside of the schedule's arrays are written",
}
"""In the order in which one explains the next: of the arrays' kinds the first alone is told."""

MEANING = {
    "num_blks_x": "CTAs per cluster, half of the launch grid, which a captured graph holds",
    "num_blks_y": "clusters, half of the launch grid, which a captured graph holds",
    "q_indptr": "the first query row of a work item",
    "kv_indptr": "where a work item's entries start in kv_indices",
    "partial_indptr": "the first packed row of a work item's partial results, -1 where unsplit",
    "merge_packed_offset_start": "the first packed row of the output that a merge job writes",
    "merge_packed_offset_end": "one past the last packed row that a merge job writes",
    "merge_partial_packed_offset_start": "the first partial row that a merge job reads",
    "merge_partial_packed_offset_end": "one past the last partial row that a merge job reads",
    "merge_partial_stride": "partial rows between the splits that a merge job joins",
    "q_len": "query rows of a work item's batch row",
    "kv_len": "KV positions of a work item's batch row, which bound the kernel's loads",
    "q_start": "the first packed (query, head) pair of a work item's query tile",
    "kv_start": "the first KV position of a work item",
    "kv_end": "one past the last KV position of a work item",
    "work_indptr": "where each cluster's work items start",
    "partial_o": "the byte offset of partial outputs in the float workspace",
    "partial_lse": "the byte offset of partial LSEs in the float workspace",
}

_GRID = INFO_FIELDS[:2]
_OFFSETS = INFO_FIELDS[2:16]
_RANGES = ("q_indptr", "q_start", "kv_start", "kv_end")
_WORDS = ("kv_end", "kv_start", "q_start", "q_indptr", "kv_len", "q_len", "kv_indptr")


@dataclass(frozen=True)
class Difference:
    """What differs first. kind: of KINDS. field: as a finding's key has it, such as
    `plan-info/q_len` or `array/kv_end`. element: of the array, None where there is none.
    others: further fields of the kind.
    """

    kind: str
    field: str
    element: int | None = None
    others: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The field without what it is a field of."""
        return self.field.rpartition("/")[2]


@dataclass(frozen=True)
class Schedule:
    """A plan by the names of its arrays; empty where its offsets lead out of the staging."""

    info: Mapping[str, int]
    arrays: Mapping[str, Words]

    @classmethod
    def of(cls, plan: Plan, num_sms: int) -> Schedule:
        """Read a plan of the known number of integers."""
        info = dict(zip(INFO_FIELDS, plan.info, strict=False))
        if len(plan.info) != len(INFO_FIELDS):
            return cls(info, {})
        memory = plan.memory()
        clusters = info["num_blks_y"]
        indptr = _array(memory, info["work_indptr"], clusters + 1)
        works = int(indptr[-1]) if len(indptr) else 0
        arrays = {name: _array(memory, info[name], works) for name in WORK_FIELDS}
        arrays |= {name: _array(memory, info[name], num_sms) for name in MERGE_FIELDS}
        return cls(info, {**arrays, "work_indptr": indptr})

    def ranges(self) -> list[tuple[int, ...]]:
        """What work items cover, in an order of their own."""
        return self._sorted(_RANGES)

    def items(self) -> list[tuple[int, ...]]:
        """Work items without the number of their partial results, in an order of their own."""
        return self._sorted([name for name in WORK_FIELDS if name != "partial_indptr"])

    def assigned(self) -> list[tuple[int, ...]]:
        """Work items in the schedule's order."""
        columns = [self.arrays[name] for name in WORK_FIELDS if name != "partial_indptr"]
        return list(zip(*(column.tolist() for column in columns), strict=False))

    def _sorted(self, names: Sequence[str]) -> list[tuple[int, ...]]:
        columns = [self.arrays[name].tolist() for name in names]
        return sorted(zip(*columns, strict=False))


def _array(memory: Words, offset: int, count: int) -> Words:
    first = offset // 4
    if offset % 4 or not 0 <= first <= first + count <= len(memory):
        return np.zeros(0, np.int32)
    return memory[first : first + count]


def differences(before: Plan, after: Plan, num_sms: int) -> tuple[Difference, ...]:
    """Everything that differs, at most one of a kind; empty where the plans are the same."""
    if before.same(after):
        return ()
    for kind, one, other in (
        ("dies", before.died, after.died),
        ("refuses", before.refused, after.refused),
    ):
        if other and not one:
            return (Difference(kind, kind),)
    if before.died:
        return ()
    if before.refused:
        return (Difference("accepts", "accepts"),)
    if len(before.info) != len(after.info):
        return (Difference("length", "plan-info/length"),)
    return tuple(_of_plans(before, after, num_sms))


def _of_plans(before: Plan, after: Plan, num_sms: int) -> Iterator[Difference]:
    one, other = Schedule.of(before, num_sms), Schedule.of(after, num_sms)
    yield from _of_info("grid", _GRID, one, other)
    moved = list(_of_info("layout", _OFFSETS, one, other))
    if not moved and before.staged != after.staged:
        moved = [Difference("layout", "plan-info/staged_bytes")]
    yield from moved
    yield from _of_info("float", INFO_FIELDS[16:], one, other)
    if any(one.info[name] != other.info[name] for name in _GRID):
        return  # all arrays follow from the grid
    found = list(_of_arrays(one, other))
    yield from found
    if not found and not moved and not _same_places(before, after):
        yield Difference("stray", "bytes")


def _of_info(
    kind: str, names: Sequence[str], one: Schedule, other: Schedule
) -> Iterator[Difference]:
    changed = [name for name in names if one.info[name] != other.info[name]]
    if changed:
        yield Difference(kind, f"plan-info/{changed[0]}", others=tuple(changed[1:]))


def _of_arrays(one: Schedule, other: Schedule) -> Iterator[Difference]:
    names: tuple[str, ...]
    if one.ranges() != other.ranges():
        kind, names = "split", (*_WORDS, "work_indptr")
    elif one.items() != other.items():
        kind, names = "items", ("kv_len", "q_len", "kv_indptr")
    elif one.assigned() != other.assigned() or _changed(one, other, ("work_indptr",)):
        kind, names = "order", ("work_indptr", *_WORDS)
    elif _changed(one, other, ("partial_indptr",)):
        kind, names = "partials", ("partial_indptr",)
    else:
        kind, names = "merge", MERGE_FIELDS
    changed = _changed(one, other, names) or _changed(one, other, WORK_FIELDS)
    if changed:
        element = _first(one.arrays[changed[0]], other.arrays[changed[0]])
        yield Difference(kind, f"array/{changed[0]}", element, tuple(changed[1:]))


def _changed(one: Schedule, other: Schedule, names: Sequence[str]) -> list[str]:
    return [n for n in names if not np.array_equal(one.arrays[n], other.arrays[n])]


def _first(one: Words, other: Words) -> int:
    both = min(len(one), len(other))
    places = np.flatnonzero(one[:both] != other[:both])
    return int(places[0]) if len(places) else both


def _same_places(before: Plan, after: Plan) -> bool:
    assert before.places is not None and after.places is not None
    return np.array_equal(before.places, after.places)


def shown(plan: Plan, num_sms: int, difference: Difference) -> str:
    """What stands in a plan where it differs, short."""
    if plan.died:
        return plan.died
    if plan.refused:
        return f"refused: {' '.join(plan.refused.split())[:200]}"
    if difference.kind in ("dies", "refuses", "accepts"):
        return "planned"
    if difference.kind == "length":
        return f"{len(plan.info)} integers"
    if difference.name == "staged_bytes":
        return f"{plan.staged} bytes"
    if difference.kind == "stray":
        return f"{0 if plan.places is None else len(plan.places)} words written"
    schedule = Schedule.of(plan, num_sms)
    if difference.element is None:
        return str(schedule.info.get(difference.name, "none"))
    values = schedule.arrays.get(difference.name, np.zeros(0, np.int32))
    return str(values[difference.element]) if difference.element < len(values) else "none"


def place(difference: Difference) -> str:
    """Which number differs, and what it is, in words."""
    name = difference.name
    if difference.kind in ("dies", "refuses", "accepts", "length", "stray"):
        return ""
    if name == "staged_bytes":
        return "the number of bytes that must reach the device"
    if difference.field.startswith("plan-info/"):
        offset = "byte offset of the array: " if name in _OFFSETS else ""
        return f"plan-info's {name} ({offset}{MEANING[name]})"
    what = {"work_indptr": "cluster"}.get(
        name, "merge job" if name in MERGE_FIELDS else "work item"
    )
    return f"{name} of {what} {difference.element} ({MEANING[name]})"
