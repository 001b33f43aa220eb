"""The int and float workspaces as the kernel sees them: work items, merge jobs, partial results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from conformance.twin.errors import TwinDomainError
from conformance.twin.planner import INFO_FIELDS, MERGE_FIELDS, WORK_FIELDS

_UNSIGNED_FIELDS = np.array([name != "partial_indptr" for name in WORK_FIELDS])


@dataclass(frozen=True)
class Grid:
    """Plan-info by name; num_blks_x * num_blks_y CTAs are launched."""

    info: dict[str, int]

    @classmethod
    def of(cls, info: Sequence[int]) -> Grid:
        """Name the 18 integers of plan-info."""
        if len(info) != len(INFO_FIELDS):
            raise TwinDomainError(
                f"plan-info has {len(info)} integers; this layout has {len(INFO_FIELDS)}"
            )
        return cls(dict(zip(INFO_FIELDS, (int(v) for v in info), strict=True)))

    @property
    def ctas_per_cluster(self) -> int:
        """CTAs that share a work item, each with its own 64 packed query rows."""
        return self.info["num_blks_x"]

    @property
    def clusters(self) -> int:
        """Clusters, each of which runs one range of work items."""
        return self.info["num_blks_y"]


@dataclass(frozen=True)
class Works:
    """Work items in launch order: int64 [8, items], one row per field of planner.WORK_FIELDS."""

    table: torch.Tensor

    def __len__(self) -> int:
        return self.table.shape[1]

    def __getitem__(self, index: torch.Tensor | slice) -> Works:
        return Works(self.table[:, index])

    @property
    def q_indptr(self) -> torch.Tensor:
        """First query row of the batch row."""
        return self.table[0]

    @property
    def kv_indptr(self) -> torch.Tensor:
        """Where the batch row's entries start in kv_indices."""
        return self.table[1]

    @property
    def partial_indptr(self) -> torch.Tensor:
        """First packed row among the partial results; planner.UNSPLIT: the output is final."""
        return self.table[2]

    @property
    def q_len(self) -> torch.Tensor:
        """Query rows of the batch row."""
        return self.table[3]

    @property
    def kv_len(self) -> torch.Tensor:
        """KV positions of the batch row."""
        return self.table[4]

    @property
    def q_start(self) -> torch.Tensor:
        """First packed (query, head) pair of the item's query tile."""
        return self.table[5]

    @property
    def kv_start(self) -> torch.Tensor:
        """First KV position."""
        return self.table[6]

    @property
    def kv_end(self) -> torch.Tensor:
        """One past the last KV position that counts."""
        return self.table[7]


def read_works(int_ws: torch.Tensor, grid: Grid) -> Works:
    """The work items that the launch runs: work_indptr[y] .. work_indptr[y + 1] of each cluster y.

    Raises TwinDomainError on a range outside the workspace or a negative coordinate, which the
    kernel would take as a huge unsigned number.
    """
    memory = as_bytes(int_ws).numpy()
    indptr = _int32(memory, grid.info["work_indptr"], 0, grid.clusters + 1)
    if not 0 <= int(indptr.min()) <= int(indptr.max()) <= memory.size // 4:
        raise TwinDomainError(
            f"clusters run work items {int(indptr.min())}..{int(indptr.max())}, which leave the "
            f"int workspace of {memory.size} bytes"
        )
    steps = np.diff(indptr)
    order = None
    low, high = int(indptr[0]), int(indptr[-1])
    if (steps < 0).any():  # a later cluster starts before an earlier one ends
        order = np.concatenate(
            [np.arange(a, a + max(n, 0)) for a, n in zip(indptr, steps, strict=False)]
        )
        low, high = (int(order.min()), int(order.max()) + 1) if len(order) else (0, 0)
    table = np.empty((len(WORK_FIELDS), high - low), np.int64)
    for column, name in enumerate(WORK_FIELDS):
        table[column] = _int32(memory, grid.info[name], low, high - low)
    if order is not None:
        table = table[:, order - low]
    negative = (table < 0) & _UNSIGNED_FIELDS[:, None]
    if negative.any():
        column, item = (int(x[0]) for x in negative.nonzero())
        raise TwinDomainError(
            f"work item {item} has {WORK_FIELDS[column]} {table[column, item]}; the kernel reads "
            "it unsigned: schedule only items from 0"
        )
    return Works(torch.from_numpy(table))


def read_merges(int_ws: torch.Tensor, grid: Grid) -> np.ndarray:
    """Merge jobs that have rows, int64 [jobs, 5] in the order of planner.MERGE_FIELDS."""
    memory = as_bytes(int_ws).numpy()
    ctas = grid.ctas_per_cluster * grid.clusters
    columns = [_int32(memory, grid.info[name], 0, ctas) for name in MERGE_FIELDS]
    jobs = np.stack(columns, 1).astype(np.int64)
    return jobs[jobs[:, 1] > jobs[:, 0]]


def partial_views(
    float_ws: torch.Tensor, grid: Grid, head_dim: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Partial outputs [packed rows, head_dim] and float32 partial LSEs (base 2), as views.

    dtype: the output's, BF16 or FP16.
    """
    memory = as_bytes(float_ws)
    o_at, lse_at = grid.info["partial_o"], grid.info["partial_lse"]
    rows = (lse_at - o_at) // (2 * head_dim)
    if o_at < 0 or rows < 0 or lse_at + 4 * rows > memory.numel():
        raise TwinDomainError(
            f"partial results at {o_at} and {lse_at} do not fit the float workspace of "
            f"{memory.numel()} bytes"
        )
    partial_o = memory[o_at : o_at + 2 * head_dim * rows].view(dtype)
    partial_lse = memory[lse_at : lse_at + 4 * rows].view(torch.float32)
    return partial_o.view(rows, head_dim), partial_lse


def as_bytes(buffer: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous buffer, flat and shared."""
    return buffer.reshape(-1).view(torch.uint8)


def _int32(memory: np.ndarray, offset: int, first: int, count: int) -> np.ndarray:
    start = offset + 4 * first
    if start < 0 or count < 0 or start + 4 * count > memory.size:
        raise TwinDomainError(
            f"schedule entries {first}..{first + count} at byte {offset} leave the int workspace "
            f"of {memory.size} bytes"
        )
    return memory[start : start + 4 * count].view(np.int32)
