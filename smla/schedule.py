"""FlashInfer's MLA schedule, typed: plan-info, the arrays of the int workspace, and their rules.

Facts from FlashInfer 0.6.18 to 0.7.4, include/flashinfer/attention/scheduler.cuh (MLAPlanInfo and
MLAPlan); `tests` and the conformance suite hold them against the installed headers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from smla import errors
from smla.lengths import Ints

WORK_CAPACITY = 16384
"""Work items that each per-work array has room for; FlashInfer's C++ never checks it."""

Q_TILE = 64
"""Packed (row, head) pairs of one thread block's query tile."""

_ALIGNMENT = 16
_PER_WORK = frozenset(
    "q_indptr kv_indptr partial_indptr q_len kv_len q_start kv_start kv_end work_indptr".split()
)
_ARRAYS = (
    "q_indptr",
    "kv_indptr",
    "partial_indptr",
    "merge_packed_offset_start",
    "merge_packed_offset_end",
    "merge_partial_packed_offset_start",
    "merge_partial_packed_offset_end",
    "merge_partial_stride",
    "q_len",
    "kv_len",
    "q_start",
    "kv_start",
    "kv_end",
    "work_indptr",
)
PLAN_INFO_FIELDS = ("num_blks_x", "num_blks_y", *_ARRAYS, "partial_o", "partial_lse")
"""The 18 int64 of a plan-info in order: launch grid, then byte offsets (the last two into the
float workspace)."""


@dataclass(frozen=True)
class ScheduleLayout:
    """Where FlashInfer puts a schedule for one GPU and head count; the same for every plan.

    With one query token per row, FlashInfer chooses two thread blocks per cluster iff a row has
    more than 64 (row, head) pairs, so grid and offsets follow from heads and SMs alone.
    """

    num_heads: int
    num_sms: int
    head_dim_ckv: int

    @property
    def capacity(self) -> int:
        """Entries of each per-work array."""
        return WORK_CAPACITY

    @property
    def cluster_size(self) -> int:
        """Thread blocks in x: 1 or 2."""
        return 2 if self.num_heads > Q_TILE else 1

    @property
    def num_clusters(self) -> int:
        """Thread blocks in y."""
        return self.num_sms // self.cluster_size

    @cached_property
    def offsets(self) -> dict[str, int]:
        """Byte offset of each array of the int workspace, and `end`, the staged bytes."""
        result, end = {}, 0
        for name in _ARRAYS:
            start = -(-end // _ALIGNMENT) * _ALIGNMENT
            result[name] = start
            end = start + 4 * (WORK_CAPACITY if name in _PER_WORK else self.num_sms)
        result["end"] = end
        return result

    @cached_property
    def staged_bytes(self) -> int:
        """Bytes of the int workspace that a plan owns."""
        return self.offsets["end"]

    @property
    def partial_rows(self) -> int:
        """Rows of split partials that FlashInfer reserves in the float workspace."""
        return 2 * self.num_clusters * self.cluster_size * Q_TILE

    @property
    def float_bytes(self) -> int:
        """Bytes of float workspace: BF16 partial outputs, float32 partial LSE, alignment."""
        return self.partial_rows * (2 * self.head_dim_ckv + 4) + 2 * _ALIGNMENT

    def at(self, name: str) -> int:
        """Index of an array's first entry in the int workspace seen as int32."""
        return self.offsets[name] // 4

    @cached_property
    def launch_words(self) -> tuple[range, range]:
        """Indices, seen as int32, of the words that let a launch do anything: which packed rows it
        merges, and which work items each cluster runs. With all of them 0 it does nothing."""
        merges = range(self.at("merge_packed_offset_start"), self.at("merge_packed_offset_end"))
        merges = range(merges.start, merges.stop + self.num_sms)
        works = self.at("work_indptr")
        return merges, range(works, works + self.num_clusters + 1)

    @cached_property
    def launch_meta(self) -> dict[str, int]:
        """Where the launch words stand, as the last constants of a kernel that writes them."""
        merges, works = self.launch_words
        return {
            "MERGES_AT": merges.start,
            "MERGES": len(merges),
            "WORKS_AT": works.start,
            "WORKS": len(works),
        }

    @property
    def num_works_at(self) -> int:
        """Index of the number of works (the last used entry of work_indptr) seen as int32."""
        return self.at("work_indptr") + self.num_clusters

    @cached_property
    def plan_info(self) -> list[int]:
        """The plan-info that FlashInfer must return for this layout."""
        partial_o = self.partial_rows * 2 * self.head_dim_ckv
        arrays = [self.offsets[name] for name in _ARRAYS]
        return [self.cluster_size, self.num_clusters, *arrays, 0, partial_o]

    def check(self, info: Sequence[int], staged_bytes: int | None) -> list[int]:
        """Return `info` as ints; raise errors.PlanLayoutError unless it is exactly this layout.

        staged_bytes: None where FlashInfer does not tell.
        """
        got, want = list(info), self.plan_info
        if got == want and staged_bytes in (None, self.staged_bytes):
            return got
        if len(got) != len(want):
            found = f"{len(got)} fields"
        else:
            named = zip(PLAN_INFO_FIELDS, got, want, strict=True)
            wrong = [f"{name} {a} (expected {b})" for name, a, b in named if a != b]
            found = ", ".join(wrong) or f"{staged_bytes} staged bytes"
        raise errors.PlanLayoutError(
            "FlashInfer's plan-info",
            found=found,
            allowed=f"the layout of {len(want)} fields and {self.staged_bytes} staged bytes for "
            f"{self.num_heads} heads on {self.num_sms} SMs",
            remedy="use a FlashInfer version this backend knows; nothing was launched",
        )

    def split_limit(self, lengths: Ints) -> int:
        """Return the KV length above which the planner splits a row, for these row lengths."""
        total = int(lengths.sum(dtype=np.int64)) * self.tiles_per_row
        share = max(-(-total // self.num_clusters), 1)
        for most, limit in ((8, 32), (16, 64), (32, 128), (64, 192)):
            if share <= most:
                return limit
        return -(-share // 256) * 256

    @property
    def tiles_per_row(self) -> int:
        """Query tiles of one row."""
        return -(-self.num_heads // (Q_TILE * self.cluster_size))

    def count_works(self, lengths: Ints) -> int:
        """Return exactly how many work items the planner makes of these row lengths."""
        if lengths.size == 0:
            return 0
        limit = self.split_limit(lengths)
        pieces = np.maximum((lengths + (limit - 1)) // limit, 1)
        return int(pieces.sum(dtype=np.int64)) * self.tiles_per_row

    def most_works(self, rows: int) -> int:
        """Return how many work items `rows` rows make at most, whatever their lengths.

        The split limit is at least every cluster's share of the total, so splitting adds at most
        one work item per cluster to the one that each row and query tile has.
        """
        return rows * self.tiles_per_row + self.num_clusters

    @property
    def most_rows(self) -> int:
        """Rows that fit into one schedule whatever their lengths."""
        return (self.capacity - self.num_clusters) // self.tiles_per_row

    def chunks(self, lengths: Ints) -> list[range]:
        """Return the rows of each schedule that rows of these lengths need: one if they fit."""
        rows = lengths.size
        if rows <= self.most_rows or self.count_works(lengths) <= self.capacity:
            return [range(rows)]
        size = -(-rows // self.most_schedules(rows))
        return [range(first, min(first + size, rows)) for first in range(0, rows, size)]

    def most_schedules(self, rows: int) -> int:
        """Return how many schedules any `rows` rows need at most."""
        return max(-(-rows // self.most_rows), 1)

    def view(self, workspace: Tensor) -> "Schedule":
        """Return the schedule that stands in `workspace` (uint8, at least staged_bytes)."""
        return Schedule(self, workspace)


@dataclass(frozen=True)
class Schedule:
    """A schedule in a host workspace, read by name; for observers and debugging, not hot paths."""

    layout: ScheduleLayout
    workspace: Tensor

    @property
    def num_works(self) -> int:
        """Number of work items."""
        return int(self.workspace.view(torch.int32)[self.layout.num_works_at])

    def array(self, name: str) -> Tensor:
        """Return the used part of one array, int32."""
        length = self.num_works if name in _PER_WORK else self.layout.num_sms
        if name == "work_indptr":
            length = self.layout.num_clusters + 1
        start = self.layout.at(name)
        return self.workspace.view(torch.int32)[start : start + length]
