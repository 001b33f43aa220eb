"""Drawn planner inputs, and the classes of planner behaviour that an input reached.

Integers from a seeded `random.Random` only, so that a seed names the same inputs everywhere.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch

from conformance.twin.planner import CTA_TILE_Q
from conformance.twin.workspace import Grid, Works, read_merges, read_works

FLOAT_BYTES = 128 << 20  # FlashInfer's usual float workspace
SM_COUNTS = (132, 114, 78)  # H100 SXM and H200, H100 PCIe, H20
CLASSES = (
    "limit 32",
    "limit 64",
    "limit 128",
    "limit 192",
    "limit 256 and up",
    "cluster 1",
    "cluster 2",
    "merge",
    "tie",
    "zero length",
    "padding row",
    "several query tiles",
    "uneven query tile",
    "cost beyond float32's integers",
    "slice of a larger batch",
    *(f"{count} SMs" for count in SM_COUNTS),
)
# KV positions per cluster that lead to each split limit, low and high (scheduler.cuh, MLAPlan).
_LOADS = ((0, 8), (9, 16), (17, 32), (33, 64), (65, 6000))
# Where both indptr start: the first rows of a batch, and now and then rows behind others.
_FIRST = ((0, 0), (0, 0), (0, 0), (7, 14329), (16384, 1 << 25))
_HUGE_LOAD = (1 << 25, 1 << 26)
_EXACT_FLOAT32 = 1 << 24


@dataclass(frozen=True)
class PlanInput:
    """Arguments of one plan call; `args` has them in the order of `planner.plan`."""

    qo_indptr: tuple[int, ...]
    kv_indptr: tuple[int, ...]
    kv_len: tuple[int, ...]
    num_heads: int
    head_dim_o: int
    num_sms: int

    @property
    def args(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int, int, int]:
        """Everything before `staging`."""
        return (
            self.qo_indptr,
            self.kv_indptr,
            self.kv_len,
            self.num_heads,
            self.head_dim_o,
            self.num_sms,
        )


def draw_inputs(n: int, seed: int) -> list[PlanInput]:
    """`n` inputs inside the planner's domain that reach all of CLASSES, for n of 100 and more."""
    source = random.Random(f"planner inputs {seed}")
    return [_draw(source, i) for i in range(n)]


def _draw(source: random.Random, number: int) -> PlanInput:
    num_sms = SM_COUNTS[number % len(SM_COUNTS)]
    huge = number % 16 == 15
    num_heads = 128 if huge else source.choice((1, 8, 16, 64, 128, source.randint(1, 128)))
    rows = source.choice(
        (1, 2, source.randint(3, 24), source.randint(3, 24), source.randint(60, 150))
    )
    longest_q = 4 if huge else source.choice((1, 1, 1, 4))
    q_lens = [source.randint(1, longest_q) for _ in range(rows)]
    for row in range(rows):  # graph padding, behind the live rows and now and then among them
        if source.randrange(8) == 0:
            q_lens[row] = 0
    if source.randrange(3) == 0:
        q_lens += [0] * source.randint(1, 40)
    low, high = _HUGE_LOAD if huge else _LOADS[number // len(SM_COUNTS) % len(_LOADS)]
    packed = sum(q_lens) * num_heads
    cluster = 2 if packed // len(q_lens) > CTA_TILE_Q else 1
    tiles = [-(-q_len * num_heads // (cluster * CTA_TILE_Q)) for q_len in q_lens]
    budget = source.randint(low, high) * (num_sms // cluster)
    kv_lens = _lengths(source, tiles, budget)
    first_row, first_entry = _FIRST[number % len(_FIRST)]
    return PlanInput(
        tuple(accumulate(q_lens, initial=first_row)),
        tuple(accumulate(kv_lens, initial=first_entry)),
        tuple(kv_lens),
        num_heads,
        source.choice((64, 512)),
        num_sms,
    )


def _lengths(source: random.Random, tiles: list[int], budget: int) -> list[int]:
    """Lengths that spend about `budget` positions over all query tiles, in one of four styles."""
    most = ((1 << 30) - 1) // len(tiles)  # the planner's int32 arithmetic ends here
    mean = budget // max(sum(tiles), 1)
    style = source.randrange(4)
    lengths = []
    for count in tiles:
        if count == 0:
            length = source.choice((0, 0, 7))  # nothing of a padding row is scheduled
        elif style == 0:  # equal lengths: ties
            length = mean
        elif style == 1:
            length = source.randint(0, 2 * mean)
        elif style == 2:  # one long row in about eight
            length = 8 * mean if source.randrange(8) == 0 else source.randint(0, mean // 8 + 1)
        else:  # lengths at the edges of tiles and splits
            length = max(mean // 64 * 64 + source.choice((-1, 0, 1, 32)), 0)
        if source.randrange(12) == 0:
            length = 0
        lengths.append(min(length, most))
    return lengths


def classes(given: PlanInput, info: list[int], staging: torch.Tensor) -> set[str]:
    """Which of CLASSES a planned input reached, read from the schedule alone."""
    grid = Grid.of(info)
    works = read_works(staging, grid)
    cluster = grid.ctas_per_cluster
    found = {f"cluster {cluster}", f"{given.num_sms} SMs"}
    covered = works.kv_end - works.kv_start
    queries = [b - a for a, b in zip(given.qo_indptr, given.qo_indptr[1:], strict=False)]
    packed = [q_len * given.num_heads for q_len in queries]
    live = [n for n, q_len in zip(given.kv_len, queries, strict=True) if q_len]
    if given.qo_indptr[0]:
        found.add("slice of a larger batch")
    if len(live) < len(queries):
        found.add("padding row")
    if 0 in live:
        found.add("zero length")
    if len(read_merges(staging, grid)):
        found.add("merge")
        limit = int(covered.max())
        found.add(f"limit {limit}" if limit < 256 else "limit 256 and up")
    tile = cluster * CTA_TILE_Q
    if max(packed) > tile:
        found.add("several query tiles")
    if any(rows > tile and rows % tile for rows in packed):
        found.add("uneven query tile")
    tie, most = _heap_history(works, covered, tile, grid.clusters)
    if tie:
        found.add("tie")
    if most > _EXACT_FLOAT32:
        found.add("cost beyond float32's integers")
    return found


def _heap_history(
    works: Works, covered: torch.Tensor, tile: int, clusters: int
) -> tuple[bool, float]:
    """Whether two loaded clusters ever tied for the least cost, and the largest cost charged."""
    order = np.lexsort((works.kv_start.numpy(), -works.q_start.numpy(), works.q_indptr.numpy()))
    costs = [np.float32(0)] * clusters
    tie = False
    for length in covered.numpy()[order]:
        least = heapq.heappop(costs)
        tie = tie or bool(costs and costs[0] == least > 0)
        heapq.heappush(costs, least + np.float32(2 * tile + length))
    return tie, float(max(costs))
