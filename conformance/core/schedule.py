"""Reading a schedule out of a plan-info and an int workspace, from the suite's own knowledge.

Field order: FlashInfer 0.7.2.post1, include/flashinfer/attention/scheduler.cuh, MLAPlanInfo.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

FIELDS = (
    "num_blks_x num_blks_y q_indptr kv_indptr partial_indptr merge_packed_offset_start "
    "merge_packed_offset_end merge_partial_packed_offset_start merge_partial_packed_offset_end "
    "merge_partial_stride q_len kv_len q_start kv_start kv_end work_indptr partial_o partial_lse"
).split()
MERGE_FIELDS = FIELDS[5:10]
WORK_FIELDS = [*FIELDS[2:5], *FIELDS[10:15]]


@dataclass(frozen=True)
class Work:
    """One work item: query rows of batch row `row` against its KV range [start, end)."""

    row: int
    q_start: int
    kv_indptr: int
    kv_len: int
    start: int
    end: int
    partial: int


class ScheduleReader:
    """A schedule by names. Arrays are int32 tensors of the used length."""

    def __init__(self, plan_info: Sequence[int], workspace: Tensor, num_sms: int) -> None:
        self.info = dict(zip(FIELDS, plan_info, strict=True))
        self._words = workspace.view(torch.int32)
        self.num_sms = num_sms
        self.clusters = self.info["num_blks_y"]
        start = self.info["work_indptr"] // 4
        self.work_indptr = self._words[start : start + self.clusters + 1]
        self.num_works = int(self.work_indptr[-1])

    def array(self, field: str) -> Tensor:
        """Return one array: a value per work item, or per SM for the merge arrays."""
        start = self.info[field] // 4
        return self._words[
            start : start + (self.num_sms if field in MERGE_FIELDS else self.num_works)
        ]

    def works(self) -> list[Work]:
        """Return every work item in order."""
        names = ("q_indptr", "q_start", "kv_indptr", "kv_len", "kv_start", "kv_end")
        columns = [self.array(name).tolist() for name in (*names, "partial_indptr")]
        return [Work(*values) for values in zip(*columns, strict=True)]

    def split_limit(self) -> int | None:
        """Return the KV length of the longest planned piece of split rows; None if none is.

        Only meaningful before a clamp shortens pieces: use it on starts, which no clamp moves.
        """
        starts = {work.start for work in self.works()}
        return min((start for start in starts if start > 0), default=None)
