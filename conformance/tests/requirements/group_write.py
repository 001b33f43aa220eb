"""The cache write held against E4M3 derived anew: nearest codes, ties to even, scales, places."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from conformance.core.bench import Bench
from conformance.core.case import SCALE_GROUP, Step
from conformance.core.inputs import StepInputs, World
from conformance.core.lab import Lab
from golden import Draw, PagedBytes, attend

LARGEST = 448.0
LEAST = 2.0**-126
"""The smallest scale: FlashInfer's kernel is built with fast math, which takes less for zero."""

FAR = 18
"""Binades between the loudest and the quietest group: E4M3 under one scale has 15 normal ones."""

LOUD = 2**6

GENTLE = 8.0
"""The largest logit where errors of values are compared. Where logits are far apart, one that is a
few percent off moves a row to another token, and every output with it."""

TOKENS = 23
"""No multiple of anything that a kernel may take at once."""

EDGES = (-126, -118, -110, -100, -60, -51, -50, 10, 59, 60, 100, 119)
"""Binades of the largest value of all groups of a write, on both sides of those from which on a
quotient may be had otherwise than by division."""

_VALUES = [
    (code % 8 + (8 if code >= 8 else 0)) * 2.0 ** (max(code // 8, 1) - 10) for code in range(127)
]
MAGNITUDES = torch.tensor(_VALUES, dtype=torch.float64)
"""Of the codes 0 to 126, in order: 3 bits of mantissa, binades 2^-6 to 2^8, no infinity."""

TIES = (MAGNITUDES[1:] + MAGNITUDES[:-1]) / 2
"""Between each two neighbours."""


@dataclass(frozen=True)
class Tokens:
    """What is to be written, and where. ckv, kpe: BF16 [tokens, width].

    slots: int64 [tokens], logical; -1 for padding. rows: the cache row of each token, -1 alike.
    """

    ckv: Tensor
    kpe: Tensor
    slots: Tensor
    rows: Tensor


def nearest(magnitude: Tensor) -> Tensor:
    """The code of the nearest value, the even one of two, at most 448's."""
    at = torch.searchsorted(TIES, magnitude)
    tie = (at < len(TIES)) & (TIES[at.clamp(max=len(TIES) - 1)] == magnitude)
    return at + (tie & (at % 2 == 1)).long()


def check_codes(lab: Lab, codes: Tensor, values: Tensor, scales: Tensor, what: str) -> None:
    """Assert that codes [n, d] are of values [n, d] over scales, which broadcast to them."""
    # A quotient of doubles, rounded to float32, is the float32 quotient: 53 >= 2 * 24 + 2 bits.
    quotient = (values.double() / scales.double()).float().double()
    size, wanted = codes.long() & 0x7F, nearest(quotient.abs())
    wanted = wanted.masked_fill(values.isnan(), 0x7F)
    signs = (codes >= 128) == (values.signbit() & ~values.isnan())
    wrong = ((size != wanted) | ~signs).nonzero()
    first = tuple(wrong[0].tolist()) if len(wrong) else ()
    lab.check(
        not first,
        f"{what}: {len(wrong)} of {codes.numel()} codes, the first",
        got=f"{int(codes[first]):#x} for {float(values[first])!r}" if first else "",
        expected=f"its sign and {int(wanted[first]):#x} of quotient {float(quotient[first])!r}"
        if first
        else "",
    )


def tokens_of(lab: Lab, world: World, label: str, count: int = TOKENS) -> Tokens:
    """Draw tokens for slots far apart and out of order, some of them padding; one is none."""
    config, draw = world.config, lab.case.draw.fork(f"write {label}")
    size = config.geometry.block_size
    slots = torch.tensor(draw.sample(world.num_blocks * size, count))
    rows = slots // size * world.stride_rows + slots % size
    padding = (draw.ints((count,), 0, 6) == 0) & (count > 1)
    slots, rows = slots.masked_fill(padding, -1), rows.masked_fill(padding, -1)
    kpe = draw.bf16((count, config.head_dim_kpe)) * config.k_scale
    loud = draw.ints(kpe.shape, 0, 16) == 0  # beyond 448: it saturates
    kpe = torch.where(loud, kpe * 2**11, kpe)
    return Tokens(latents(draw, count, config.groups), kpe, slots, rows)


def latents(draw: Draw, count: int, groups: int) -> Tensor:
    """Draw BF16 [count, groups * 128] group by group: of any size, zero, or all of it ties."""
    shape = (count, groups, SCALE_GROUP)
    powers = torch.tensor([2.0**n for n in range(-40, 31)])
    size = powers[draw.ints((count, groups, 1), 0, len(powers))]
    values = draw.bf16(shape).float() * size
    loud = draw.ints(shape, 0, 64) == 0  # a few channels far above the others
    values = torch.where(loud, values * 2**7, values)
    ties = TIES[draw.ints(shape, 0, len(TIES))].float() * (1 - 2 * draw.ints(shape, 0, 2))
    ties[..., draw.randint(0, SCALE_GROUP)] = LARGEST  # so that the scale is the power of two
    kind = draw.ints((count, groups, 1), 0, 8)
    values = torch.where(kind < 2, ties * size, values)
    values = torch.where(kind == 2, 0.0, values)
    return values.flatten(1).bfloat16()


def written(lab: Lab, bench: Bench, tokens: Tokens, k_scale: float, *, grouped: bool) -> Tensor:
    """Write; hold what must not change against what was. Returns the tokens' bytes [live, dim]."""
    dim = bench.config.head_dim_ckv + bench.config.head_dim_kpe
    bytes_before, scales_before = bench.cache_bytes().clone(), bench.group_scales().clone()
    bench.write_cache(tokens.ckv, tokens.kpe, tokens.slots, k_scale, grouped=grouped)
    bytes_after, scales_after = bench.cache_bytes(), bench.group_scales()
    live = tokens.rows[tokens.rows >= 0]
    changed = (bytes_before != bytes_after).view(-1, dim).any(1)
    rescaled = (scales_before.view(torch.int32) != scales_after.view(torch.int32)).any(1)
    if grouped:
        rescaled[live] = False
    changed[live] = False
    lab.expect(int(changed.sum()), 0, "cache rows written beside the tokens'")
    lab.expect(int(rescaled.sum()), 0, "scales written beside the tokens'")
    return bytes_after.view(-1, dim)[live]


def check_scales(lab: Lab, bench: Bench, values: Tensor, rows: Tensor) -> Tensor:
    """Assert that rows' scales are of values [n, groups, 128]; return them, [n, groups]."""
    size = values.double().abs()
    largest = torch.where(size.isfinite(), size, 0.0).amax(-1)
    wanted = (largest / LARGEST).clamp(min=LEAST).masked_fill(largest == 0, 1.0).float()
    scales = bench.group_scales()[rows]
    wrong = int((scales != wanted).sum())
    lab.expect(wrong, 0, f"scales that are not the largest / 448, of {scales.numel()}")
    return scales


def check_groups(lab: Lab) -> None:
    """Scales and codes of every token, of one alone, and of groups of one size, some of them twice
    over the same slots."""
    lab.needs("cache-write")
    step = lab.step()
    bench = lab.bench(step)
    config, draw, number = bench.config, lab.case.draw.fork("edges"), lab.case.number
    binades = [EDGES[(number + n) % len(EDGES)] for n in (0, len(EDGES) // 2)]
    writes = [("first", TOKENS, None), ("second", TOKENS, None), ("single", 1, None)]
    for label, count, binade in [*writes, *((f"2^{n}", TOKENS, n) for n in binades)]:
        tokens = tokens_of(lab, bench.world, label, count)
        if binade is not None:
            even = draw.bf16((count, config.groups, SCALE_GROUP)).float()
            even /= even.abs().amax(-1, keepdim=True)
            even *= 1 + draw.ints((count, config.groups, 1), 0, 128) / 128
            tokens = replace(tokens, ckv=(even * 2.0**binade).flatten(1).bfloat16())
        codes = written(lab, bench, tokens, config.k_scale, grouped=True)
        live = tokens.rows >= 0
        values = tokens.ckv[live].view(-1, config.groups, SCALE_GROUP)
        scales = check_scales(lab, bench, values, tokens.rows[live])
        ckv, kpe = codes[:, : config.head_dim_ckv], codes[:, config.head_dim_ckv :]
        spread, what = scales.repeat_interleave(SCALE_GROUP, 1), f"{label} write"
        check_codes(lab, ckv, values.flatten(1), spread, f"compressed part, {what}")
        check_codes(lab, kpe, tokens.kpe[live], torch.tensor(config.k_scale), f"rope part, {what}")


def check_per_tensor(lab: Lab) -> None:
    """One scale for both parts, powers of two, others, and one near the end of their range;
    values beyond 448 saturate."""
    lab.needs("cache-write")
    step = lab.step()
    bench = lab.bench(step)
    config, draw = bench.config, lab.case.draw.fork("per tensor")
    far = draw.choice((-40, -39, 38, 39))
    for scale, power in (
        (2.0 ** draw.randint(-20, 12), 0),
        (float(draw.randint(3, 2**20)) * 2.0**-16, 0),
        (float(draw.randint(2**23, 2**24)) * 2.0 ** (far - 23), far),
    ):
        tokens = tokens_of(lab, bench.world, f"{scale}")
        ckv = latents(draw, TOKENS, config.groups) * 2.0 ** (power + draw.randint(-8, 8))
        tokens = replace(tokens, ckv=ckv)
        codes = written(lab, bench, tokens, scale, grouped=False)
        live = tokens.rows >= 0
        values = torch.cat([tokens.ckv, tokens.kpe], 1)[live]
        exact = torch.tensor(scale, dtype=torch.float32)
        check_codes(lab, codes, values, exact, f"both parts at k_scale {scale!r}")


def check_strange(lab: Lab) -> None:
    """NaN, infinities and the smallest numbers among others: scales stay finite, the rest right."""
    lab.needs("cache-write")
    bench = lab.bench(lab.step())
    config, draw = bench.config, lab.case.draw.fork("strange")
    tokens = tokens_of(lab, bench.world, "strange")
    ckv, kpe = tokens.ckv.clone(), tokens.kpe.clone()
    kinds = [torch.nan, -torch.nan, torch.inf, -torch.inf, 3.3e38, -3.3e38, 1e-40, -0.0]
    odd = torch.tensor(kinds).bfloat16()
    for part in (ckv, kpe):
        strange = draw.ints(part.shape, 0, 100) == 0
        part[strange] = odd[draw.ints((int(strange.sum()),), 0, len(odd))]
    ckv[0, :SCALE_GROUP], ckv[1, :SCALE_GROUP], ckv[2, :SCALE_GROUP] = torch.nan, 1e-39, torch.inf
    rows = tokens.rows.clone()
    codes = written(lab, bench, replace(tokens, ckv=ckv, kpe=kpe), config.k_scale, grouped=True)
    live = rows >= 0
    values = ckv[live].view(-1, config.groups, SCALE_GROUP)
    scales = check_scales(lab, bench, values, rows[live]).repeat_interleave(SCALE_GROUP, 1)
    check_codes(lab, codes[:, : config.head_dim_ckv], ckv[live], scales, "compressed part")
    check_codes(
        lab, codes[:, config.head_dim_ckv :], kpe[live], torch.tensor(config.k_scale), "rope part"
    )


def check_attention(lab: Lab) -> None:
    """Write, then attend: nearer to the values that were written than one scale per tensor is.

    Their groups of channels lie binades apart, so the figure is the mean over groups of the
    relative error of a group's outputs.
    """
    lab.needs("cache-write")
    draw = lab.case.draw.fork("attend")
    rows = draw.randint(2, 4)
    lengths = tuple(draw.randint(20, 60) for _ in range(rows))
    step = Step((1,) * rows, lengths, lengths, rows)
    bench = lab.bench(step)
    config, world = bench.config, bench.world
    size = config.geometry.block_size
    slots = torch.cat(
        [
            world.block_table[row].long()[torch.arange(length) // size] * size
            + torch.arange(length) % size
            for row, length in enumerate(lengths)
        ]
    )
    spread = [2.0 ** -(FAR * n / (config.groups - 1)) for n in range(config.groups)]
    level = torch.tensor(draw.shuffle(spread))[:, None]
    ckv = draw.bf16((len(slots), config.groups, SCALE_GROUP)).float() * level
    ckv[draw.randint(0, len(slots))] *= 2.0**5  # one token far above the others
    kpe = draw.bf16((len(slots), config.head_dim_kpe)) * config.k_scale
    # Large, as one scale writes FP16 outputs: the quiet groups' are no subnormal ones there.
    values, kpe = (ckv.flatten(1) * LOUD).bfloat16(), kpe * LOUD
    rows_written = torch.cat([values, kpe], 1)
    inputs = gentle(world.draw_step(step), rows_written, lengths, config.sm_scale)
    exact = exact_of(bench, step, inputs, slots, rows_written)
    errors = {}
    largest = float(max(values.abs().max(), kpe.abs().max() if kpe.numel() else 0))
    for grouped in (True, False):
        scale = config.k_scale if grouped else largest / LARGEST
        used = bench if grouped else per_tensor(lab, step, scale)
        bench.write_cache(values, kpe, slots, scale, grouped=grouped)
        used.world.raw = bench.cache_bytes().to(world.raw)
        if world.scales is not None and grouped:
            world.scales = bench.group_scales().to(world.scales)
        used.set_cache(used.world.raw)
        out = lab.judged_run(used, step, inputs).cpu().double()
        groups = (*out.shape[:2], config.groups, SCALE_GROUP)
        off, whole = (out - exact).view(groups), exact.view(groups)
        errors[grouped] = float((off.norm(dim=-1) / whole.norm(dim=-1)).mean())
    lab.history = {
        "figures": {
            "mean relative error of a group of channels, written and attended to": {
                "group scales": errors[True],
                "one scale per tensor": errors[False],
            }
        }
    }
    lab.check(
        errors[True] < 0.75 * errors[False],
        "mean relative error of a group of channels",
        got=f"{errors[True]:.3e}",
        expected=f"below three quarters of {errors[False]:.3e}, the error with one scale",
    )


def gentle(
    inputs: StepInputs, written: Tensor, lengths: Sequence[int], sm_scale: float
) -> StepInputs:
    """The same step with queries divided by a power of two, so that no logit is beyond GENTLE.

    written: the tokens of all rows [sum of lengths, ckv + kpe], one row of queries for each length.
    """
    queries = torch.cat([inputs.q_nope, inputs.q_pe], -1)[: len(lengths)].cpu().double()
    keys = written.double().split(list(lengths))
    logits = [q @ k.T * sm_scale for q, k in zip(queries, keys, strict=True)]
    by = 2.0 ** math.ceil(math.log2(max(float(each.abs().max()) for each in logits) / GENTLE))
    return replace(inputs, q_nope=inputs.q_nope / by, q_pe=inputs.q_pe / by)


def per_tensor(lab: Lab, step: Step, scale: float) -> Bench:
    """The same case with one scale for the whole cache."""
    return lab.bench(step, changes={"group_scales": False, "k_scale": scale})


def exact_of(bench: Bench, step: Step, inputs: StepInputs, slots: Tensor, rows: Tensor) -> Tensor:
    """Attention over the BF16 values themselves, float64 [rows, heads, ckv]."""
    config, world = bench.config, bench.world
    size, stride = config.geometry.block_size, world.stride_rows
    data = torch.zeros((world.num_blocks * stride, rows.shape[1]), dtype=torch.bfloat16)
    data[slots // size * stride + slots % size] = rows
    dims = (config.head_dim_ckv, config.head_dim_kpe)
    plain = PagedBytes(data.view(torch.uint8).view(-1), "bf16", *dims, size, stride)
    return attend(
        inputs.q_nope[: step.rows].cpu(),
        inputs.q_pe[: step.rows].cpu(),
        plain,
        world.block_table,
        torch.tensor(step.row_requests, dtype=torch.int32),
        inputs.tokens,
        config.sm_scale,
        split=None,
    ).out
