"""A drawn attention problem and an emulation of a BF16 tensor-core engine on it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from golden import Draw, Golden, PagedBytes, attend

BLOCK = 64


@dataclass(frozen=True)
class Case:
    """lengths: selected tokens per row. scale_exp: of the queries, so of the logits."""

    key: str
    lengths: Sequence[int]
    heads: int = 16
    ckv: int = 64
    kpe: int = 16
    fmt: str = "bf16"
    scale: float = 1.0
    split: int | None = 128
    scale_exp: int = 0
    context: int = 0  # tokens to select from; as many as are selected where 0
    stride: int = BLOCK
    device: str = "cpu"
    spread: int = 3  # group scales: bf16-drawn mantissas times powers of two, this far apart
    q: torch.Tensor = field(init=False)
    cache: PagedBytes = field(init=False)
    block_table: torch.Tensor = field(init=False)
    request: torch.Tensor = field(init=False)
    tokens: list[torch.Tensor] = field(init=False)

    def __post_init__(self):
        draw = Draw(self.key)
        rows, dim, device = len(self.lengths), self.ckv + self.kpe, self.device
        blocks = max(1, -(-max([self.context, *self.lengths]) // BLOCK))
        total = 2 * blocks  # two requests, the rows take turns
        elements = draw.fork("cache")
        if self.fmt == "bf16":
            stored = elements.bf16([total * self.stride, dim], device).view(torch.uint8)
        else:
            stored = elements.e4m3([total * self.stride, dim], device)
        put = object.__setattr__
        scales = None
        if self.fmt == "e4m3_group":
            shape = [total * self.stride, self.ckv // 128]
            fine, coarse = draw.fork("fine"), draw.fork("coarse")
            mantissas = 1 + fine.ints(shape, 0, 2**23, device).float() * 2.0**-23
            exponents = coarse.ints(shape, -self.spread, self.spread + 1, device)
            scales = torch.ldexp(mantissas, exponents.int())
        put(
            self,
            "cache",
            PagedBytes(
                *(stored, self.fmt, self.ckv, self.kpe, BLOCK, self.stride, self.scale),
                group_scales=scales,
            ),
        )
        put(self, "q", draw.fork("q").bf16([rows, self.heads, dim], device, self.scale_exp))
        table = draw.fork("table").permutation(total, device).view(2, blocks)
        put(self, "block_table", table)
        put(self, "request", torch.arange(rows, device=device) % 2)
        picks = draw.fork("tokens")
        select = max([self.context, *self.lengths])
        put(
            self,
            "tokens",
            [picks.permutation(select, device)[:length] for length in self.lengths],
        )

    @property
    def sm_scale(self) -> float:
        return 1 / (self.scale * math.sqrt(self.ckv + self.kpe))

    def attend(self, **changes) -> Golden:
        known: dict[str, Any] = {
            "q_nope": self.q[..., : self.ckv],
            "q_pe": self.q[..., self.ckv :],
            "cache": self.cache,
            "block_table": self.block_table,
            "request": self.request,
            "tokens": self.tokens,
            "sm_scale": self.sm_scale,
            "split": self.split,
        }
        return attend(**(known | changes))

    def keys(self, row: int, tokens: torch.Tensor) -> torch.Tensor:
        """float32 [n, dim] as the engine sees them: decoded, scaled, rounded to BF16."""
        table = self.block_table[self.request[row]]
        slots = table[tokens // BLOCK] * self.stride + tokens % BLOCK
        plain = replace(self.cache, fmt="e4m3", scale=1.0, group_scales=None)
        if self.fmt == "bf16":
            return self.cache.gather(slots).float()
        values = plain.gather(slots).float()
        factor = torch.tensor(self.scale).bfloat16().float().expand(values.shape)
        if self.cache.group_scales is not None:
            groups = self.cache.group_scales[slots].repeat_interleave(128, 1)
            factor = torch.cat([groups, factor[:, self.ckv :]], 1)
        return (values * factor).bfloat16().float()


def flash(case: Case, *, tile: int = 64) -> torch.Tensor:
    """bfloat16 [rows, heads, ckv]: what an engine makes that walks tiles with a running
    maximum, BF16 weights, float32 sums, and merges BF16 partial results of the pieces."""
    out = torch.zeros(len(case.tokens), case.heads, case.ckv, dtype=torch.bfloat16)
    for row, tokens in enumerate(case.tokens):
        if not len(tokens):
            continue
        pieces = tokens.split(case.split or 96)
        keys = [case.keys(row, piece) for piece in pieces]
        partial = [_piece(case, case.q[row].float(), k, tile) for k in keys]
        if len(partial) > 1:
            partial = [(o.bfloat16().float(), lse) for o, lse in partial]
        lse = torch.stack([lse for _, lse in partial])
        weights = torch.exp2(lse - torch.logsumexp(lse * 0.6931472, 0) / 0.6931472)
        out[row] = sum(
            w[:, None] * o for w, (o, _) in zip(weights, partial, strict=True)
        ).bfloat16()
    return out


def _piece(case, q, keys, tile):
    top = torch.full((case.heads,), -torch.inf)
    total, acc = torch.zeros(case.heads), torch.zeros(case.heads, case.ckv)
    for k in reversed(keys.split(tile)):
        s = q @ k.T * (case.sm_scale * 1.44269504)
        new = torch.maximum(top, s.amax(1))
        shrink, p = torch.exp2(top - new), torch.exp2(s - new[:, None])
        total = total * shrink + p.sum(1)
        acc = acc * shrink[:, None] + p.bfloat16().float() @ k[:, : case.ckv]
        top = new
    return acc / total[:, None], top + total.log2()
