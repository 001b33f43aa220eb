"""Writes into a vast cache: the rows next to its borders, whose codes are known beforehand.

What is written is what golden reads of the case's own cache already, decoded: values that are
codes times scales are quantized to those codes. The rows are NaN until they are written.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from conformance.core.bench import Bench
from conformance.core.case import SCALE_GROUP
from conformance.core.inputs import World
from conformance.core.lab import Lab
from conformance.core.vast import Vast, borders, pitch
from golden import Draw

EACH_SIDE = 2
"""Rows of a border that are written below it, and as many above."""

OTHERS = 3
"""Further tokens of each request that are written."""

LARGEST_CODE = 0x7E
"""448: the value that a group's scale is made of."""


@dataclass(frozen=True)
class Tokens:
    """What is to be written, in drawn order. requests, tokens: of each, as the block table counts.

    here: the tokens' rows (int64) in the world's cache.
    """

    requests: list[int]
    tokens: list[int]
    here: Tensor


def tokens_of(
    lab: Lab, bench: Bench, blocks: Sequence[Sequence[int]], gap_rows: int, padding: int
) -> Tokens:
    """Draw what is to be written; make the world's groups of these such that a write gives them."""
    config, draw = bench.config, lab.case.draw.fork("vast write")
    size, between = config.geometry.block_size, pitch(config, padding)
    chosen = []
    for request, (border, table) in enumerate(zip(borders(config), blocks, strict=True)):
        slots = [block * (size + gap_rows) + at for block in table for at in range(size)]
        order = sorted(range(len(slots)), key=slots.__getitem__)
        # The border's own row belongs to both sides: its end lies above.
        below = [token for token in order if slots[token] * between + between - 1 < border]
        above = order[len(below) :]
        tokens = {*below[-EACH_SIDE:], *above[:EACH_SIDE], *draw.sample(len(slots), OTHERS)}
        chosen += [(request, token) for token in sorted(tokens)]
    chosen = draw.shuffle(chosen)
    world = bench.world
    here = torch.tensor([world.slot(*pair) for pair in chosen], device=world.device)
    if world.scales is not None:
        _settle(draw, world, here)
        bench.set_cache(world.raw)
        bench.set_group_scales(world.scales)
    return Tokens([pair[0] for pair in chosen], [pair[1] for pair in chosen], here)


def _settle(draw: Draw, world: World, here: Tensor) -> None:
    """Make these rows' group scales powers of two, and one code of each group the largest."""
    assert world.scales is not None, "a cache without group scales"
    config = world.config
    rows = world.raw.view(-1, config.head_dim_ckv + config.head_dim_kpe)
    codes = rows[here, : config.head_dim_ckv].unflatten(1, (config.groups, SCALE_GROUP))
    channel = draw.ints((len(here), config.groups, 1), 0, SCALE_GROUP, world.device)
    codes.scatter_(2, channel, LARGEST_CODE)
    rows[here, : config.head_dim_ckv] = codes.flatten(1)
    mantissa, exponent = torch.frexp(world.scales[here])
    world.scales[here] = torch.ldexp(torch.full_like(mantissa, 0.5), exponent)


def write(bench: Bench, place: Vast, tokens: Tokens) -> None:
    """Have the subject write the tokens, the rows of which are NaN before."""
    config, size = bench.config, bench.config.geometry.block_size
    physical, logical = [], []
    for request, token in zip(tokens.requests, tokens.tokens, strict=True):
        physical.append(int(place.slots(request, torch.tensor(token))))
        logical.append(int(place.table[request, token // size]) * size + token % size)
    place.blank(torch.tensor(physical, device=bench.world.device))
    values = bench.world.paged().gather(tokens.here).bfloat16().cpu()
    ckv, kpe = values[:, : config.head_dim_ckv], values[:, config.head_dim_ckv :]
    slots = torch.tensor(logical)
    bench.write_cache(
        ckv.contiguous(), kpe.contiguous(), slots, config.k_scale, grouped=config.group_scales
    )
