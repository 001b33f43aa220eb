"""FlashInfer's MLA work planner (MLAPlan), reproduced byte for byte in Python.

Source: FlashInfer 0.6.18 to 0.7.4, include/flashinfer/attention/scheduler.cuh (MLAPlan), heap.h
(MinHeap) and ../allocator.h; the order of equal costs is libstdc++'s push_heap / pop_heap.
`conformance.twin.compiled` holds this module against the real function.
All offsets are bytes, all staged arrays int32. Only non-causal plans (`causal` False) are covered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import torch

from conformance.twin.errors import NativeError, TwinDomainError

Ints: TypeAlias = Sequence[int] | torch.Tensor

MAX_WORKS = 16384  # fixed capacity of each work array; the C++ code never checks it
CTA_TILE_Q = 64  # packed (query, head) pairs per CTA
INFO_FIELDS = (
    "num_blks_x",
    "num_blks_y",
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
    "partial_o",
    "partial_lse",
)
WORK_FIELDS = (
    "q_indptr",
    "kv_indptr",
    "partial_indptr",
    "q_len",
    "kv_len",
    "q_start",
    "kv_start",
    "kv_end",
)
MERGE_FIELDS = INFO_FIELDS[5:10]
SPLIT_LIMITS = ((8, 32), (16, 64), (32, 128), (64, 192))
"""KV positions per cluster up to which a limit stands, and the limit; beyond, SPLIT_STEP's next
multiple."""
SPLIT_STEP = 256
UNSPLIT = -1  # partial_indptr of a work item that writes the final output itself

_ALIGNMENT = 16
_INT32_BYTES = 4
_PARTIAL_O_BYTES = 2  # partial outputs are BF16
_INT32_MAX = (1 << 31) - 1
_MOST_KV = _INT32_MAX // 2  # MLAPlan multiplies kv_len by the cluster size
_EXACT_FLOAT32 = 1 << 24  # integers up to here are exact in float32


@dataclass(frozen=True)
class Layout:
    """Byte offsets of the staged arrays, by field name, and the number of staged bytes."""

    offsets: dict[str, int]
    staged_bytes: int


@lru_cache
def layout(num_sms: int) -> Layout:
    """Where each array of the int workspace starts; depends on the number of SMs alone."""
    offsets: dict[str, int] = {}
    end = 0
    for name in INFO_FIELDS[2:16]:
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        offsets[name] = start
        count = num_sms if name in MERGE_FIELDS else MAX_WORKS
        end = start + _INT32_BYTES * count
    return Layout(offsets, end)


def split_limit(total_kv: int, num_clusters: int) -> int:
    """KV positions one work item may cover, from the KV positions per cluster."""
    mean = max(-(-total_kv // num_clusters), 1)
    for most, limit in SPLIT_LIMITS:
        if mean <= most:
            return limit
    return -(-mean // SPLIT_STEP) * SPLIT_STEP


class MinHeap:
    """Cluster with the least cost on top; ties resolved as libstdc++ resolves them."""

    def __init__(self, size: int) -> None:
        self._index = list(range(size))
        self._cost = [0.0] * size

    def charge(self, cost: int) -> int:
        """Pop the cheapest cluster, push it back with `cost` more (float32), return its index."""
        index, costs = self._index, self._cost
        chosen, old = index[0], costs[0]
        total = old + cost
        if total > _EXACT_FLOAT32:
            total = float(np.float32(total))
        last_index, last_cost = index[-1], costs[-1]
        size = len(index) - 1
        if size:  # pop_heap: sink the hole at the root to a leaf, then float the last element up
            hole = 0
            child = 2
            while child < size:
                if costs[child] > costs[child - 1]:
                    child -= 1
                index[hole], costs[hole] = index[child], costs[child]
                hole = child
                child = 2 * hole + 2
            if child == size:  # an only (left) child
                index[hole], costs[hole] = index[size - 1], costs[size - 1]
                hole = size - 1
            self._float(hole, last_index, last_cost)
        self._float(size, chosen, total)  # push_heap
        return chosen

    def _float(self, hole: int, value: int, cost: float) -> None:
        index, costs = self._index, self._cost
        while hole:
            parent = (hole - 1) // 2
            if not costs[parent] > cost:
                break
            index[hole], costs[hole] = index[parent], costs[parent]
            hole = parent
        index[hole], costs[hole] = value, cost


def plan(
    qo_indptr: Ints,
    kv_indptr: Ints,
    kv_len: Ints,
    num_heads: int,
    head_dim_o: int,
    num_sms: int,
    staging: torch.Tensor,
    float_bytes: int,
) -> tuple[list[int], int]:
    """Write the int schedule into `staging` (uint8, CPU) and return (plan-info, staged bytes).

    qo_indptr, kv_indptr [rows + 1] and kv_len [rows]: both indptr may start above 0, at the rows
    and entries of a larger batch, and reach the schedule as they are. Plan-info has the 18 integers
    of INFO_FIELDS. Bytes that MLAPlan leaves alone (unused capacity, padding) stay as they were.
    `float_bytes` is the size of the float workspace, which is only measured.

    Raises TwinDomainError without rows, above MAX_WORKS work items, beyond MLAPlan's int32
    arithmetic, or where `staging` is too small; NativeError where MLAPlan throws. Nothing is
    written when an error is raised.
    """
    starts, kv_starts, lengths = _ints(qo_indptr), _ints(kv_indptr), _ints(kv_len)
    rows = len(lengths)
    _check(starts, kv_starts, lengths, num_heads, num_sms)
    q_lens = [starts[i + 1] - starts[i] for i in range(rows)]

    cluster = 2 if sum(q_lens) * num_heads // rows > CTA_TILE_Q else 1
    clusters = num_sms // cluster
    if clusters == 0:
        raise TwinDomainError(f"{num_sms} SMs hold no cluster of {cluster} CTAs; use more SMs")
    tile = cluster * CTA_TILE_Q
    total_kv = sum(
        -(-n * num_heads // tile) * length for n, length in zip(q_lens, lengths, strict=True)
    )
    limit = split_limit(total_kv, clusters)

    where = layout(num_sms)
    if staging.numel() < where.staged_bytes:
        raise TwinDomainError(
            f"staging holds {staging.numel()} bytes; {num_sms} SMs need {where.staged_bytes}"
        )
    partial_o, partial_lse = _float_offsets(clusters * tile, head_dim_o, float_bytes)
    works, merges = _assign(starts, kv_starts, lengths, q_lens, num_heads, cluster, clusters, limit)
    _write(staging, where, works, merges, num_sms)
    info = [cluster, clusters, *where.offsets.values(), partial_o, partial_lse]
    return info, where.staged_bytes


def _assign(
    starts: list[int],
    kv_starts: list[int],
    lengths: list[int],
    q_lens: list[int],
    num_heads: int,
    cluster: int,
    clusters: int,
    limit: int,
) -> tuple[list[list[tuple[int, ...]]], list[tuple[int, ...]]]:
    """Work items per cluster (fields of WORK_FIELDS) and merge jobs (fields of MERGE_FIELDS)."""
    tile = cluster * CTA_TILE_Q
    heap = MinHeap(clusters)
    works: list[list[tuple[int, ...]]] = [[] for _ in range(clusters)]
    merges: list[tuple[int, ...]] = []
    partials = 0
    for row, (q_len, length) in enumerate(zip(q_lens, lengths, strict=True)):
        packed = q_len * num_heads
        for q_start in range((-(-packed // tile) - 1) * tile, -1, -tile):
            width = min(tile, packed - q_start)
            split = length > limit
            if split:
                first = starts[row] * num_heads + q_start
                end = partials + -(-length // limit) * width
                chunk = -(-width // (length * cluster // limit))
                merges += [
                    (first + at, first + min(at + chunk, width), partials + at, end, width)
                    for at in range(0, width, chunk)
                ]
            for kv_start in range(0, max(length, 1), limit):
                covered = min(length - kv_start, limit)
                works[heap.charge(2 * tile + covered)].append(
                    (
                        starts[row],
                        kv_starts[row],
                        partials if split else UNSPLIT,
                        q_len,
                        length,
                        q_start,
                        kv_start,
                        kv_start + covered,
                    )
                )
                partials += width if split else 0
    return works, merges


def _write(
    staging: torch.Tensor,
    where: Layout,
    works: list[list[tuple[int, ...]]],
    merges: list[tuple[int, ...]],
    num_sms: int,
) -> None:
    counts = [len(items) for items in works]
    count = sum(counts)
    if count > MAX_WORKS:
        raise TwinDomainError(f"{count} work items; the int workspace holds {MAX_WORKS}: plan less")
    if len(merges) > num_sms:
        raise NativeError(f"{len(merges)} merge jobs; MLAPlan allows one per SM ({num_sms})")
    staged = staging.numpy()

    def put(name: str, values: np.ndarray) -> None:
        at = where.offsets[name]
        staged[at : at + _INT32_BYTES * len(values)].view(np.int32)[:] = values

    flat = np.array([item for items in works for item in items], np.int64)
    for column, name in enumerate(WORK_FIELDS):
        put(name, flat.reshape(count, len(WORK_FIELDS))[:, column])
    jobs = np.zeros((num_sms, len(MERGE_FIELDS)), np.int64)
    jobs[: len(merges)] = np.array(merges, np.int64).reshape(-1, len(MERGE_FIELDS))
    for column, name in enumerate(MERGE_FIELDS):
        put(name, jobs[:, column])
    put("work_indptr", np.cumsum([0, *counts]))


def _float_offsets(packed_rows: int, head_dim_o: int, float_bytes: int) -> tuple[int, int]:
    """Offsets of partial outputs and partial LSEs: two tiles per cluster."""
    o_bytes = 2 * packed_rows * _PARTIAL_O_BYTES * head_dim_o
    lse_offset = -(-o_bytes // _ALIGNMENT) * _ALIGNMENT
    needed = lse_offset + 2 * packed_rows * 4
    if float_bytes < needed:
        raise NativeError(f"float workspace holds {float_bytes} bytes; the plan needs {needed}")
    return 0, lse_offset


def _check(
    starts: list[int], kv_starts: list[int], lengths: list[int], num_heads: int, num_sms: int
) -> None:
    rows = len(lengths)
    if rows == 0:
        raise TwinDomainError("0 rows: MLAPlan divides by the batch (SIGFPE); plan at least 1 row")
    if len(starts) != rows + 1 or len(kv_starts) < rows:
        raise TwinDomainError(
            f"{len(starts)} qo_indptr and {len(kv_starts)} kv_indptr entries for {rows} rows; "
            f"both need {rows + 1}"
        )
    if num_heads < 1 or num_sms < 1 or min(lengths) < 0:
        raise TwinDomainError(
            f"num_heads {num_heads}, num_sms {num_sms}, shortest kv_len {min(lengths)}: "
            "needed are at least 1, 1 and 0"
        )
    if max(lengths) > _MOST_KV or starts[-1] * num_heads > _INT32_MAX:
        raise TwinDomainError(
            f"kv_len {max(lengths)}, {starts[-1]} query rows of {num_heads} heads: MLAPlan "
            f"overflows its int32 beyond {_MOST_KV} positions or {_INT32_MAX} packed rows"
        )
    for i in range(rows):
        if starts[i + 1] < starts[i]:
            raise NativeError(f"qo_indptr falls from {starts[i]} to {starts[i + 1]} at row {i}")


def _ints(values: Ints) -> list[int]:
    return values.tolist() if isinstance(values, torch.Tensor) else [int(v) for v in values]
