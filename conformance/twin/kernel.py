"""The FA3 MLA kernel: executes an int workspace, work item by work item, then merges the splits.

Source: FlashInfer, include/flashinfer/attention/mla_hopper.cuh (loads, masks, softmax, output),
mla.cuh (DevicePersistentMergeStates) and state.cuh; what differs by version is data, in
`conformance.twin.semantics`. Reproduced exactly: which work items run, what each of their tiles
reads, what is masked, which values are rounded to BF16, what is written where, and what NaN and
infinity do. Not reproduced to the last bit: the order of float32 sums and the approximate exp2,
log2 and reciprocal of the hardware.

A tile's lanes read index entries only below the load bound. The last tile, processed first, zero-
fills the lanes behind the bound; every other tile would load the stand-in slot's row there.

Query rows (q_indptr, merge_packed_offset_*) and index entries (kv_indptr) are absolute: the native
run adds them to the first row of its tensors, so a plan may cover a slice of a larger batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from conformance.twin.access import FOREIGN_SLOT, AccessLog, TileReads
from conformance.twin.errors import TwinDomainError, TwinFault
from conformance.twin.memory import Cache, GroupScales
from conformance.twin.merge import combine
from conformance.twin.planner import UNSPLIT
from conformance.twin.semantics import Semantics
from conformance.twin.workspace import Grid, Works, partial_views, read_merges, read_works

LOG2E = 1.44269504088896340736
LN2 = 0.693147180559945309417
_LOWEST = torch.finfo(torch.float32).min
_CHUNK_ELEMENTS = 1 << 20  # float32 values of one tile step held at a time


@dataclass(frozen=True)
class Call:
    """The arguments of the native run, checked by `conformance.twin.surface`."""

    float_ws: torch.Tensor
    int_ws: torch.Tensor
    info: Sequence[int]
    q_nope: torch.Tensor  # [rows, heads, ckv] BF16
    q_pe: torch.Tensor  # [rows, heads, kpe] BF16
    ckv: torch.Tensor  # [slots, 1, ckv]
    kpe: torch.Tensor  # [slots, 1, kpe]
    kv_indices: torch.Tensor  # int32
    out: torch.Tensor  # [rows, heads, ckv] BF16 or FP16, as the module was compiled; written
    lse: torch.Tensor | None  # [rows, heads] float32, written
    sm_scale: float
    lse_base_e: bool
    ckv_scale: float
    kpe_scale: float
    ckv_scale_arr: torch.Tensor | None


def execute(call: Call, semantics: Semantics, log: AccessLog | None) -> None:
    """Run the schedule in `call.int_ws`; writes out, lse and the partial results."""
    grid = Grid.of(call.info)
    works = read_works(call.int_ws, grid)
    writer = _Writer(call, semantics, grid)
    reader = _Reader(call, semantics, log)
    heads = call.q_nope.shape[1]
    tile = semantics.tile_kv
    tiles = ((works.kv_end + tile - 1) // tile - works.kv_start // tile).clamp(min=0)
    widths = (works.q_len * heads - works.q_start).clamp(
        0, semantics.tile_q * grid.ctas_per_cluster
    )
    for chunk in _chunks(tiles, widths, call, tile):
        some = works[chunk]
        packed = _PackedRows.of(some, widths[chunk], heads)
        o, lse = _attend(call, semantics, reader, some, tiles[chunk], packed)
        writer.store(some, packed, o, lse)
    writer.merge(read_merges(call.int_ws, grid))


@dataclass(frozen=True)
class _PackedRows:
    """Query rows and heads [items, width] of each work item's packed (query, head) pairs."""

    valid: torch.Tensor
    row: torch.Tensor  # 0 where not valid
    head: torch.Tensor
    whole: torch.Tensor | None  # the query rows, where each item has all heads of one

    @classmethod
    def of(cls, works: Works, widths: torch.Tensor, heads: int) -> _PackedRows:
        lane = torch.arange(int(widths.max()))
        valid = lane < widths[:, None]
        packed = works.q_start[:, None] + lane
        row = (works.q_indptr[:, None] + packed // heads) * valid
        aligned = bool((widths == heads).all()) and not bool((works.q_start % heads).any())
        return cls(valid, row, packed % heads * valid, row[:, 0] if aligned else None)

    def pick(self, queries: torch.Tensor) -> torch.Tensor:
        """Float32 [items, width, dim] of queries [rows, heads, dim]."""
        if self.whole is not None:
            return queries.index_select(0, self.whole).float()
        return queries[self.row, self.head].float()


def _chunks(
    tiles: torch.Tensor, widths: torch.Tensor, call: Call, tile: int
) -> Iterator[torch.Tensor]:
    """Work items in falling order of tiles, in pieces that bound the memory in use."""
    if len(tiles) == 0:
        return
    order = torch.argsort(tiles, descending=True, stable=True)
    lanes = max(tile, int(widths.max()))
    size = max(1, _CHUNK_ELEMENTS // (lanes * (call.ckv.shape[2] + call.kpe.shape[2])))
    yield from order.split(size)


def _attend(
    call: Call,
    semantics: Semantics,
    reader: _Reader,
    works: Works,
    tiles: torch.Tensor,
    packed: _PackedRows,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalised float32 output [items, width, ckv] and base-2 LSE [items, width].

    `tiles` falls, so that the items still running at any step are a prefix.
    """
    limit = min(call.q_nope.shape[0], call.out.shape[0])
    if packed.row.numel() and int(packed.row.max()) >= limit:
        raise TwinFault(f"work items reach query row {int(packed.row.max())} of {limit}")
    scale = float(torch.tensor(call.sm_scale).float() * torch.tensor(LOG2E).float())
    q_nope = packed.pick(call.q_nope)
    q_pe = packed.pick(call.q_pe) if reader.has_kpe else None
    peak = torch.full(packed.row.shape, semantics.minus_inf)
    total = torch.full(packed.row.shape, semantics.initial_sum)
    o = torch.zeros(q_nope.shape)
    for step in range(int(tiles[0])):
        active = int((tiles > step).sum())
        now = slice(0, active)
        ckv, kpe, masked = reader.tile(works[now], tiles[now] - 1 - step, last=step == 0)
        s = torch.bmm(q_nope[now], ckv.transpose(1, 2))
        if q_pe is not None and kpe is not None:
            s.baddbmm_(q_pe[now], kpe.transpose(1, 2))
        if masked is not None:
            s = torch.where(masked[:, None, :], semantics.minus_inf, s)
        before = peak[now]
        after = torch.fmax(before, _max_ignoring_nan(s))
        anchor = after * scale
        if semantics.clamps_peak:
            anchor.clamp_(min=_LOWEST)
        p = s.mul_(scale).sub_(anchor[..., None]).exp2_()
        decay = (before * scale).sub_(anchor).exp2_()
        peak[now] = after
        total[now] = (total[now] * decay).add_(p.sum(-1))
        o[now] = torch.baddbmm(o[now] * decay[..., None], p.bfloat16().float(), ckv)
    empty = peak == semantics.minus_inf
    o *= torch.where(empty, 0.0, 1 / total)[..., None]
    lse = torch.where(empty, -torch.inf, total.log2() + peak * scale)
    return o, lse


def _max_ignoring_nan(s: torch.Tensor) -> torch.Tensor:
    """Maximum over the last axis with CUDA's fmax rule: NaN loses against any number."""
    largest = s.amax(-1)
    if bool(largest.isnan().any()):
        largest = s.masked_fill(s.isnan(), -torch.inf).amax(-1)
    return largest


class _Reader:
    """Index entries, cache rows and scales of one tile per work item, logged as they are read."""

    def __init__(self, call: Call, semantics: Semantics, log: AccessLog | None) -> None:
        self._ckv = Cache(call.ckv, call.ckv_scale)
        self.has_kpe = call.kpe.shape[2] > 0
        self._kpe = Cache(call.kpe, call.kpe_scale)
        array = call.ckv_scale_arr
        self._scales = None if array is None else GroupScales(array, self._ckv.dim)
        self._indices = call.kv_indices
        self._semantics = semantics
        self._log = log
        self._lanes = torch.arange(semantics.tile_kv)

    def tile(
        self, works: Works, index: torch.Tensor, last: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Rows [items, 64, dim] of tile `index` of each item, and its masked lanes.

        `last` tiles are predicated: their lanes behind the load bound are zeros.
        """
        rules = self._semantics
        tile = rules.tile_kv
        bound: torch.Tensor = getattr(works, rules.load_bound)
        first = works.kv_start + index * tile
        position = first[:, None] + self._lanes
        inside = position < bound[:, None]
        complete = bool(inside.all())
        slots = self._slots(works.kv_indptr[:, None] + position, None if complete else inside)
        # Tiles below the one that holds kv_end are not masked, except the last ones processed.
        mask_from = works.kv_end // tile - works.kv_start // tile
        masks = (index >= mask_from) | (index < rules.num_stages)
        masked = (position >= works.kv_end[:, None]) & masks[:, None]
        if self._log is not None:
            self._log.record(
                TileReads(
                    rows=works.q_indptr,
                    first=first,
                    bound=bound,
                    kv_end=works.kv_end,
                    masks=masks,
                    slots=slots,
                    zero_fill=last,
                    scales=self._scales is not None,
                    num_slots=self._ckv.num_slots,
                )
            )
        present = inside if last and not complete else None
        if present is not None and rules.minus_inf == -math.inf:
            # Lanes that no item loads add exact zeros to its sums, where they are masked in all.
            used = int((bound - first).clamp(0, tile).max())
            if used and bool(masked[:, used:].all()):
                slots, present, masked = slots[:, :used], present[:, :used], masked[:, :used]
        scales = None if self._scales is None else self._scales.read(slots)
        ckv = self._ckv.read(slots, present, scales)
        kpe = self._kpe.read(slots, present) if self.has_kpe else None
        return ckv, kpe, masked if bool(masked.any()) else None

    def _slots(self, entry: torch.Tensor, inside: torch.Tensor | None) -> torch.Tensor:
        foreign = entry >= self._indices.numel()
        if inside is not None:
            foreign &= inside
            entry = entry.masked_fill(~inside, 0)
        if bool(foreign.any()):
            entry = entry.masked_fill(foreign, 0)
        if self._indices.numel() == 0:
            slots = torch.zeros_like(entry)
        else:
            slots = self._indices[entry].long()
        slots.masked_fill_(foreign, FOREIGN_SLOT)
        if inside is not None:
            slots.masked_fill_(~inside, self._semantics.stand_in_slot)
        return slots


class _Writer:
    """Final and partial results: the kernel's last step per work item, and the merge of splits."""

    def __init__(self, call: Call, semantics: Semantics, grid: Grid) -> None:
        self._semantics = semantics
        self._out, self._lse = call.out, call.lse
        self._base = LN2 if call.lse_base_e else 1.0
        _, self._heads, dim = call.q_nope.shape
        self._partial_o, self._partial_lse = partial_views(call.float_ws, grid, dim, call.out.dtype)

    def store(self, works: Works, packed: _PackedRows, o: torch.Tensor, lse: torch.Tensor) -> None:
        """Write each valid packed row to the output, or to its place among the partial results."""
        unsplit = works.partial_indptr == UNSPLIT
        if packed.whole is not None:
            self._store_rows(packed.whole, works.partial_indptr, unsplit, o, lse)
            return
        whole = unsplit[:, None]
        final = packed.valid & whole
        if bool(final.any()):
            self._finish(packed.row[final], packed.head[final], o[final], lse[final])
        part = packed.valid & ~whole
        if bool(part.any()):
            at = (works.partial_indptr[:, None] + torch.arange(part.shape[1]))[part]
            self._check_partial(at)
            self._partial_o[at] = o[part].to(self._out.dtype)
            self._partial_lse[at] = lse[part]

    def _store_rows(
        self,
        row: torch.Tensor,
        partial: torch.Tensor,
        unsplit: torch.Tensor,
        o: torch.Tensor,
        lse: torch.Tensor,
    ) -> None:
        """The same for items that have all heads of a row each."""
        o = o.to(self._out.dtype)
        final = unsplit.nonzero().flatten()
        if len(final):
            some = row[final]
            self._out[some] = o[final]
            if self._lse is not None:
                self._lse[some] = lse[final] * self._base
        part = (~unsplit).nonzero().flatten()
        if len(part):
            at = (partial[part][:, None] + torch.arange(self._heads)).flatten()
            self._check_partial(at)
            self._partial_o[at] = o[part].flatten(0, 1)
            self._partial_lse[at] = lse[part].flatten()

    def merge(self, jobs: np.ndarray) -> None:
        """Combine the partial results of split rows; a job is one CTA's (planner.MERGE_FIELDS)."""
        if len(jobs) == 0:
            return
        if jobs[:, 4].min() <= 0:
            raise TwinDomainError("a merge job has stride 0: the kernel would never end")
        # Looked at before anything of their size is made: a job may hold any numbers.
        last, rows = (int(jobs[:, 1].max()) - 1) // self._heads, self._out.shape[0]
        if last >= rows:
            raise TwinFault(f"the merge writes row {last} of {rows}")
        least, most = int(jobs[:, 2].min()), int(jobs[:, 3].max()) - 1
        self._check_partial(torch.tensor([least, max(least, most)]))
        counts = jobs[:, 1] - jobs[:, 0]
        start, _, first, end, stride = np.repeat(jobs, counts, axis=0).T
        local = np.arange(len(start)) - np.repeat(counts.cumsum() - counts, counts)
        packed, first = start + local, first + local
        pieces = max(int(((end - first + stride - 1) // stride).max()), 1)
        at = first[:, None] + stride[:, None] * np.arange(pieces)
        inside = at < end[:, None]
        self._check_partial(torch.from_numpy(at[inside]))
        at *= inside
        row, head = packed // self._heads, packed % self._heads
        size = max(1, _CHUNK_ELEMENTS // (pieces * self._partial_o.shape[1]))
        for low in range(0, len(at), size):
            some = slice(low, low + size)
            o, lse = self._combine(torch.from_numpy(at[some]), torch.from_numpy(inside[some]))
            self._finish(torch.from_numpy(row[some]), torch.from_numpy(head[some]), o, lse)

    def _combine(self, at: torch.Tensor, inside: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        lse = self._partial_lse[at]
        values = self._partial_o.index_select(0, at.flatten()).float().view(*at.shape, -1)
        if not bool(inside.all()):
            lse[~inside], values[~inside] = -torch.inf, 0
        return combine(lse, values, self._semantics)

    def _finish(
        self, row: torch.Tensor, head: torch.Tensor, o: torch.Tensor, lse: torch.Tensor
    ) -> None:
        if int(row.max()) >= self._out.shape[0]:
            raise TwinFault(f"the merge writes row {int(row.max())} of {self._out.shape[0]}")
        self._out[row, head] = o.to(self._out.dtype)
        if self._lse is not None:
            self._lse[row, head] = lse * self._base

    def _check_partial(self, at: torch.Tensor) -> None:
        rows = len(self._partial_lse)
        if at.numel() and not 0 <= int(at.min()) <= int(at.max()) < rows:
            raise TwinFault(
                f"partial results {int(at.min())}..{int(at.max())} leave the {rows} that the float "
                "workspace holds"
            )
