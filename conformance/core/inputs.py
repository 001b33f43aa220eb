"""From a case to tensors: cache bytes, block tables, selections and queries, drawn once.

Everything is a function of the case id and the width; the same bytes on any machine and device.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from conformance.core import grouped
from conformance.core.case import Case, Config, Step, valid_count
from golden import Draw, Golden, PagedBytes, attend

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
_SPARE_BLOCKS = 3


@dataclass(frozen=True)
class StepInputs:
    """A step's forward inputs on `device`.

    tokens: per live row, the selected token positions in the order listed (int64).
    topk [padded rows, width] int32: those, then -1 (tests may rewrite what stands behind).
    q_nope [padded rows, heads, ckv], q_pe [padded rows, heads, kpe]: BF16.
    """

    tokens: list[Tensor]
    topk: Tensor
    q_nope: Tensor
    q_pe: Tensor


class World:
    """A case's cache and block tables, and the steps drawn in it.

    raw: uint8, the whole storage. block_table: int32 [requests, blocks], physical blocks in
    drawn order, none used twice. longest: tokens that each request has room for. page: the
    storage is a whole number of these bytes. hole: the first page's blocks (block 0, the null
    block of many engines, among them) belong to nobody. scales: float32 [rows of the storage,
    groups], None but for group scales.
    """

    def __init__(
        self,
        case: Case,
        config: Config,
        steps: Sequence[Step],
        device: str,
        *,
        page: int = 1,
        hole: bool = False,
    ) -> None:
        self.case, self.config, self.device = case, config, device
        geometry = config.geometry
        self.requests = max(len(step.q_lens) for step in steps)
        # Bounds may reach further than the cache does: rejected drafts hold no block here.
        self.longest = max(n for step in steps for n in (*step.seq_lens, 1))
        blocks = -(-self.longest // geometry.block_size)
        draw = case.draw.fork("world")
        self.num_blocks = self.requests * blocks + _SPARE_BLOCKS
        head_dim = config.head_dim_ckv + config.head_dim_kpe
        block_bytes = (geometry.block_size + geometry.gap_rows) * head_dim * (2 - config.fp8)
        whole = page // math.gcd(page, block_bytes)
        self.num_blocks = -(-self.num_blocks // whole) * whole
        order = draw.permutation(self.num_blocks)[: self.requests * blocks]
        self.hole_blocks = whole if hole else 0
        self.hole_bytes = self.hole_blocks * block_bytes
        self.num_blocks += self.hole_blocks
        order += self.hole_blocks
        self.block_table = order.view(self.requests, blocks).to(torch.int32)
        self.stride_rows = geometry.block_size + geometry.gap_rows
        rows = self.num_blocks * self.stride_rows
        self.scales: Tensor | None = None
        if config.group_scales:
            self.raw, self.scales = grouped.drawn(draw, rows, config, device)
        elif config.fp8:
            self.raw = draw.e4m3((rows, head_dim), device).view(-1)
        else:
            self.raw = draw.bf16((rows, head_dim), device).view(torch.uint8).view(-1)

    def paged(self, raw: Tensor | None = None) -> PagedBytes:
        """Return the cache as golden reads it."""
        config = self.config
        return PagedBytes(
            data=self.raw if raw is None else raw,
            fmt=config.fmt,
            head_dim_ckv=config.head_dim_ckv,
            head_dim_kpe=config.head_dim_kpe,
            block_size=config.geometry.block_size,
            block_stride_rows=self.stride_rows,
            scale=config.k_scale,
            group_scales=self.scales,
        )

    def cache(self, storage: Tensor) -> Tensor:
        """Return [num_blocks, block_size, head_dim] over `storage`, as a subject is given it."""
        config = self.config
        head_dim = config.head_dim_ckv + config.head_dim_kpe
        typed = storage if config.fp8 else storage.view(torch.bfloat16)
        rows = typed.view(self.num_blocks, self.stride_rows, head_dim)
        return rows[:, : config.geometry.block_size]

    def flat(self, scales: Tensor) -> Tensor:
        """Return group scales of the whole storage as a subject is given them: [flat rows, groups],
        without the rows behind the last block.
        """
        return scales[: scales.shape[0] - self.config.geometry.gap_rows]

    def poisoned(self, slots: Sequence[int], kind: str) -> Tensor:
        """Return the cache's bytes with these rows filled: "nan", "inf" (BF16 only) or "huge"."""
        if self.config.fp8:
            code = {"nan": 0x7F, "inf": 0xFF, "huge": 0x7E}[kind]
            raw = self.raw.clone()
            rows = raw.view(-1, self.config.head_dim_ckv + self.config.head_dim_kpe)
            rows[list(slots)] = code
            return raw
        value = {"nan": float("nan"), "inf": float("inf"), "huge": 3e38}[kind]
        raw = self.raw.clone()
        rows = raw.view(torch.bfloat16).view(
            -1, self.config.head_dim_ckv + self.config.head_dim_kpe
        )
        rows[list(slots)] = value
        return raw

    def unselected(self, step: Step, tokens: Sequence[Tensor]) -> list[int]:
        """Return every cache row that no live row of the step selects."""
        free = torch.ones(self.num_blocks * self.stride_rows, dtype=torch.bool)
        size = self.config.geometry.block_size
        for request, row in zip(step.row_requests, tokens, strict=True):
            blocks = self.block_table[request].long()[row // size]
            free[blocks * self.stride_rows + row % size] = False
        return free.nonzero().flatten().tolist()

    def slot(self, request: int, token: int) -> int:
        """Return the cache row of a request's token."""
        block, offset = divmod(token, self.config.geometry.block_size)
        return int(self.block_table[request, block]) * self.stride_rows + offset

    def draw_step(self, step: Step, label: str = "") -> StepInputs:
        """Draw selections and queries; another `label` gives others for the same lengths."""
        config, geometry = self.config, self.config.geometry
        draw = self.case.draw.fork(f"inputs{label}")
        tokens = self._select(draw, step.contexts())
        topk = torch.full((step.padded_rows, geometry.topk_width), -1, dtype=torch.int32)
        for row, chosen in enumerate(tokens):
            topk[row, : chosen.numel()] = chosen
        rows, heads = step.padded_rows, config.num_heads
        return StepInputs(
            tokens,
            topk,
            draw.bf16((rows, heads, config.head_dim_ckv), self.device),
            draw.bf16((rows, heads, config.head_dim_kpe), self.device),
        )

    def _select(self, draw: Draw, contexts: Sequence[int]) -> list[Tensor]:
        """Draw rows' selections: the newest tokens, which a model always keeps, and others."""
        geometry, lengths, plans = self.config.geometry, [], []
        for context in contexts:
            count = valid_count(context, geometry)
            kept = max(context % geometry.index_kpool, 1) if count < context else 0
            plans.append((context, count, kept))
            lengths += [context - kept, count] if kept else [count]
        drawn = iter(draw.permutations(lengths))
        selections = []
        for context, count, kept in plans:
            if kept:
                others = next(drawn)[: count - kept]
                newest = torch.arange(context - kept, context)
                selections.append(torch.cat([others, newest])[next(drawn)])
            else:
                selections.append(next(drawn))
        return selections

    def golden(
        self,
        step: Step,
        inputs: StepInputs,
        *,
        split: int | None,
        raw: Tensor | None = None,
        tokens: Sequence[Tensor] | None = None,
        rows: Sequence[int] | None = None,
    ) -> Golden:
        """Return the exact answer of the live rows, or of some of them.

        split: the planner's limit, if known.
        """
        device = inputs.q_nope.device
        wanted = list(range(step.rows)) if rows is None else list(rows)
        owners = step.row_requests
        chosen = inputs.tokens if tokens is None else tokens
        return attend(
            inputs.q_nope[wanted],
            inputs.q_pe[wanted],
            self.paged(raw),
            self.block_table.to(device),
            torch.tensor([owners[row] for row in wanted], dtype=torch.int32, device=device),
            [chosen[row].to(device) for row in wanted],
            self.config.sm_scale,
            split=split,
        )
