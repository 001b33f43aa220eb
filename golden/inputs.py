"""Inputs of a canonical case, drawn from its recipe, with their digests."""

import ctypes
import hashlib
from dataclasses import dataclass

import torch

from golden.answer import Golden
from golden.cache import GROUP, PagedBytes
from golden.draw import Draw
from golden.numerics import Drawn, harden
from golden.oracle import attend
from golden.recipe import Recipe


@dataclass(frozen=True, eq=False)
class Inputs:
    """One decode step, on the CPU.

    q_nope [rows, heads, ckv], q_pe [rows, heads, kpe]: BF16.
    cache: the storage, its format and layout; group scales where the format has them.
    block_table: int32 [requests, blocks]; entries behind a request's last block are 0.
    request: int32 [rows]. contexts: int32 [rows], the tokens that each row sees.
    tokens: for each row the selected positions, int64, in drawn order.
    topk: int32 [rows, topk_width], the same with -1 behind them.
    """

    recipe: Recipe
    q_nope: torch.Tensor
    q_pe: torch.Tensor
    cache: PagedBytes
    block_table: torch.Tensor
    request: torch.Tensor
    contexts: torch.Tensor
    tokens: list[torch.Tensor]
    topk: torch.Tensor

    def attend(self, *, split: int | None = None) -> Golden:
        """The exact answer; `split` as in `golden.oracle.attend`."""
        return attend(
            *(self.q_nope, self.q_pe, self.cache, self.block_table, self.request, self.tokens),
            self.recipe.sm_scale,
            split=split,
        )

    def slots(self) -> list[torch.Tensor]:
        """For each row the cache rows (int64) of its tokens, as kernels take them."""
        return _slots(self.recipe, self.block_table, self.tokens)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Everything that was drawn, by the names that the manifest has."""
        named = {
            name: getattr(self, name)
            for name in ("q_nope", "q_pe", "block_table", "request", "contexts", "topk")
        }
        named["cache"] = self.cache.data
        if self.cache.group_scales is not None:
            named["group_scales"] = self.cache.group_scales
        return named

    def kept(self) -> list[tuple[int, int]]:
        """The (row, head) pairs whose outputs the golden set stores: two heads of each row."""
        draw, heads = Draw(self.recipe.key).fork("kept"), self.recipe.num_heads
        return [
            (row, head)
            for row in range(self.recipe.rows)
            for head in sorted(draw.sample(heads, min(2, heads)))
        ]


def draw_inputs(recipe: Recipe) -> Inputs:
    """The inputs that a recipe describes."""
    draw = Draw(recipe.key)
    cache_rows = recipe.blocks * recipe.block_stride_rows
    dim = recipe.head_dim_ckv + recipe.head_dim_kpe
    stored = draw.fork("cache")
    if recipe.fmt == "bf16":
        raw = stored.bf16([cache_rows, dim]).view(torch.uint8)
    else:
        raw = stored.e4m3([cache_rows, dim])
    table, tokens = _block_table(recipe, draw.fork("table")), _select(recipe, draw.fork("tokens"))
    drawn = Drawn(
        q=draw.fork("q").bf16([recipe.rows, recipe.num_heads, dim], scale_exp=recipe.q_exp),
        raw=raw,
        scales=_group_scales(recipe, draw.fork("scales"), cache_rows),
        ckv=recipe.head_dim_ckv,
        slots=_slots(recipe, table, tokens),
    )
    harden(recipe.numerics, drawn, draw.fork("numerics"))
    topk = torch.full((recipe.rows, recipe.topk_width), -1, dtype=torch.int32)
    for row, chosen in enumerate(tokens):
        topk[row, : len(chosen)] = chosen
    cache = PagedBytes(
        *(drawn.raw, recipe.fmt, recipe.head_dim_ckv, recipe.head_dim_kpe),
        *(recipe.block_size, recipe.block_stride_rows, recipe.scale),
        group_scales=drawn.scales,
    )
    return Inputs(
        recipe=recipe,
        q_nope=drawn.q[..., : recipe.head_dim_ckv].contiguous(),
        q_pe=drawn.q[..., recipe.head_dim_ckv :].contiguous(),
        cache=cache,
        block_table=table,
        request=torch.tensor(recipe.requests, dtype=torch.int32),
        contexts=torch.tensor(recipe.row_contexts, dtype=torch.int32),
        tokens=tokens,
        topk=topk,
    )


def digest(tensor: torch.Tensor) -> str:
    """SHA-256 of a CPU tensor's elements in order, as bytes (little-endian)."""
    flat = tensor.contiguous()
    content = (ctypes.c_char * flat.nbytes).from_address(flat.data_ptr()) if flat.nbytes else b""
    return hashlib.sha256(content).hexdigest()


def _group_scales(recipe: Recipe, draw: Draw, rows: int) -> torch.Tensor | None:
    """m * 2**e: exact products, for e keeps them normal."""
    if recipe.fmt != "e4m3_group":
        return None
    shape = [rows, recipe.head_dim_ckv // GROUP]
    mantissas = draw.ints(shape, 2**23, 2**24).float() * 2.0**-23
    least, largest = recipe.scale_exps
    powers = torch.tensor([2.0**e for e in range(least, largest + 1)])
    return mantissas * powers[draw.ints(shape, 0, largest - least + 1)]


def _block_table(recipe: Recipe, draw: Draw) -> torch.Tensor:
    needed = [-(-context // recipe.block_size) for context in recipe.contexts]
    table = torch.zeros(len(needed), max(needed), dtype=torch.int32)
    if sum(needed) <= recipe.blocks:
        parts = draw.permutation(recipe.blocks)[: sum(needed)].split(needed)
    else:
        parts = draw.ints([sum(needed)], 0, recipe.blocks).split(needed)
    for request, blocks in enumerate(parts):
        table[request, : len(blocks)] = blocks
    return table


def _select(recipe: Recipe, draw: Draw) -> list[torch.Tensor]:
    """What an indexer selects: all, or the newest tokens and drawn others, in drawn order."""
    selected = []
    for context in recipe.row_contexts:
        count = recipe.count(context)
        newest = max(context % recipe.index_kpool, 1) if count < context else 0
        chosen = draw.permutation(context - newest)[: count - newest]
        chosen = torch.cat([chosen, torch.arange(context - newest, context)])
        selected.append(chosen[draw.permutation(count)])
    return selected


def _slots(recipe: Recipe, table: torch.Tensor, tokens: list[torch.Tensor]) -> list[torch.Tensor]:
    size, stride = recipe.block_size, recipe.block_stride_rows
    return [
        table[request].long()[chosen // size] * stride + chosen % size
        for request, chosen in zip(recipe.requests, tokens, strict=True)
    ]
