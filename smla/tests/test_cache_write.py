"""What the cache writes leave behind: codes, scales, untouched bytes; both kernel lanes.

What is expected is derived here in rational numbers, by comparing with every code's value.
"""

import bisect
import itertools
import math
from fractions import Fraction

import pytest
import torch

import smla
from golden import Draw, PagedBytes
from smla.tests.interpreter import INTERPRETING, run_interpreted
from smla.tests.sparse import sparse

RUNTIME = smla.CpuRuntime(kernels="interpret" if INTERPRETING else "torch")
NAN_CODE, FOREIGN = 0x7F, 0xA5

if not INTERPRETING:

    def test_the_kernels_in_the_interpreter_do_the_same():
        run_interpreted(__file__)


def magnitudes() -> list[Fraction]:
    """The value of each E4M3 code from 0 to 0x7e."""
    return [
        Fraction(code & 7, 512) if code < 8 else (8 + code % 8) * Fraction(2) ** ((code >> 3) - 10)
        for code in range(NAN_CODE)
    ]


VALUES = magnitudes()
BORDERS = [(low + high) / 2 for low, high in itertools.pairwise(VALUES)]


def float32(number: Fraction) -> Fraction:
    """The float32 next to a positive number, ties to even; subnormal ones included."""
    if not number:
        return number
    exponent = math.floor(math.log2(number)) if number > Fraction(2) ** -1000 else -1000
    exponent += (number >= Fraction(2) ** (exponent + 1)) - (number < Fraction(2) ** exponent)
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    return round(number / unit) * unit  # Python rounds ties to even


def code_of(value: float, scale: Fraction) -> int:
    """The code that must be written for a BF16 value under a float32 scale."""
    if math.isnan(value):
        return NAN_CODE
    sign = 0x80 if math.copysign(1.0, value) < 0 else 0
    if math.isinf(value):
        return sign | 0x7E
    quotient = float32(abs(Fraction(value)) / scale)
    code = bisect.bisect_left(BORDERS, quotient)  # the first border that is not below
    tie = code < len(BORDERS) and BORDERS[code] == quotient
    return sign | (code + code % 2 if tie else code)


def scale_of(group: list[float]) -> Fraction:
    """The scale that must be written for the values of one group."""
    largest = max([abs(Fraction(v)) for v in group if math.isfinite(v)], default=Fraction(0))
    return max(float32(largest / 448), Fraction(2) ** -126) if largest else Fraction(1)


def hard_values(rows: int, width: int) -> torch.Tensor:
    """BF16 rows of every kind: bells over many sizes, zeros, subnormal, infinite, NaN."""
    draw = Draw(f"hard values {rows} {width}")
    values = draw.bf16((rows, width)).float()
    values *= 2.0 ** draw.ints((rows, width), -12, 12).float()
    values[1] = 0.0
    values[1, ::2] = -0.0
    values[2] = 0.0
    values[2, 3] = -math.inf
    values[3] = math.nan
    values[4, 5], values[4, 7] = math.nan, math.inf
    values[5] *= 2.0**-130  # subnormal
    values[6] = 2.0**-133  # BF16's smallest
    values[7] = torch.finfo(torch.bfloat16).max
    values[8] = 448.0
    made = values.bfloat16()
    made[9] = torch.full((width,), -1, dtype=torch.int16).view(torch.bfloat16)  # NaN, negative
    return made


def world(rows: int, *, ckv: int, kpe: int, gap: int = 0, block: int = 4):
    """(cache view, its storage, slots): each token in a block of its own choice; gaps between."""
    row, draw = ckv + kpe, Draw(f"world {rows} {ckv} {kpe} {gap}")
    blocks = rows // block + 2
    storage = torch.full((blocks * (block + gap), row), FOREIGN, dtype=torch.uint8)
    cache = storage.as_strided((blocks, block, row), ((block + gap) * row, row, 1))
    return cache, storage, draw.permutation(blocks * block)[:rows].long()


def physical(slot: int, gap: int, block: int = 4) -> int:
    return slot // block * (block + gap) + slot % block


@pytest.mark.parametrize("gap", [0, 3], ids=["dense", "strided"])
@pytest.mark.parametrize(("ckv", "kpe"), [(128, 64), (512, 64), (384, 0)])
def test_every_code_and_scale_of_a_group_scaled_write(ckv, kpe, gap):
    rows, k_scale = 12, 0.25
    values = hard_values(rows, ckv + kpe)
    cache, storage, slots = world(rows, ckv=ckv, kpe=kpe, gap=gap)
    scales = smla.new_group_scales(RUNTIME, cache)
    assert torch.equal(scales, torch.ones((cache.shape[0] - 1) * (4 + gap) + 4, ckv // 128))
    slots[10], slots[11] = -1, -(2**40)
    smla.write_per_group(
        RUNTIME, values[:, :ckv], values[:, ckv:], cache, scales, slots,
        k_scale=k_scale if kpe else None,
    )  # fmt: skip
    wanted, wanted_scales = torch.full_like(storage, FOREIGN), torch.ones_like(scales)
    for token, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        row, numbers = physical(slot, gap), values[token].tolist()
        for group in range(ckv // 128):
            part = numbers[group * 128 : (group + 1) * 128]
            scale = scale_of(part)
            wanted_scales[row, group] = float(scale)
            wanted[row, group * 128 : (group + 1) * 128] = torch.tensor(
                [code_of(value, scale) for value in part], dtype=torch.uint8
            )
        wanted[row, ckv:] = torch.tensor(
            [code_of(value, Fraction(k_scale)) for value in numbers[ckv:]], dtype=torch.uint8
        )
    assert torch.equal(scales, wanted_scales)
    assert bool(scales.isfinite().all()), "attention multiplies by what stands here"
    assert torch.equal(storage, wanted)


@pytest.mark.parametrize("gap", [0, 3], ids=["dense", "strided"])
@pytest.mark.parametrize("k_scale", [1.0, 0.3, 7, 2.0**-40, 2.0**40, 1 / 448])
@pytest.mark.parametrize(("ckv", "kpe"), [(64, 64), (512, 0), (72, 8)])
def test_every_code_of_a_write_under_one_scale(ckv, kpe, k_scale, gap):
    rows = 12
    values = hard_values(rows, ckv + kpe)
    cache, storage, slots = world(rows, ckv=ckv, kpe=kpe, gap=gap)
    slots[10], slots[11] = -1, cache.shape[0] * 4
    smla.write_per_tensor(RUNTIME, values[:, :ckv], values[:, ckv:], cache, slots, k_scale=k_scale)
    wanted, scale = torch.full_like(storage, FOREIGN), float32(Fraction(k_scale))
    for token, slot in enumerate(slots.tolist()[:10]):
        codes = [code_of(value, scale) for value in values[token].tolist()]
        wanted[physical(slot, gap)] = torch.tensor(codes, dtype=torch.uint8)
    assert torch.equal(storage, wanted)


def test_ties_go_to_even_and_neighbours_of_ties_to_the_nearer_one():
    # Every border between two codes is a BF16; its neighbours are told apart.
    ties = torch.tensor([float(border) for border in BORDERS]).bfloat16()
    assert ties.double().tolist() == [float(border) for border in BORDERS]
    bits = ties.view(torch.int16)
    rows = [(bits + step).view(torch.bfloat16) for step in (-1, 0, 1)]
    values = torch.stack([*rows, *(-row for row in rows)])
    values = torch.nn.functional.pad(values, (0, 128 - values.shape[1]))
    cache, _, _ = world(6, ckv=128, kpe=0)
    kpe, slots = values[:, :0], torch.arange(6)
    smla.write_per_tensor(RUNTIME, values, kpe, cache, slots, k_scale=1.0)
    count = len(BORDERS)
    got = cache.view(-1, 128)[:6, :count]
    code = torch.arange(count, dtype=torch.uint8)
    for sign, below, tie, above in ((0, *got[:3]), (0x80, *got[3:])):
        assert torch.equal(below, code | sign)
        assert torch.equal(tie, code + code % 2 | sign)
        assert torch.equal(above, code + 1 | sign)


def test_a_quotient_is_rounded_and_not_a_product_with_the_reciprocal():
    scale = torch.tensor(0.3)
    values = torch.arange(0x3000, 0x4400, dtype=torch.int16).view(torch.bfloat16).view(40, 128)
    exact = (values.float() / scale).clamp(max=448).to(torch.float8_e4m3fn).view(torch.uint8)
    short = (values.float() * (1 / scale)).clamp(max=448).to(torch.float8_e4m3fn)
    assert not torch.equal(exact, short.view(torch.uint8)), "nothing told apart"
    cache, _, _ = world(40, ckv=128, kpe=0)
    smla.write_per_tensor(RUNTIME, values, values[:, :0], cache, torch.arange(40), k_scale=0.3)
    assert torch.equal(cache.view(-1, 128)[:40], exact)


@pytest.mark.parametrize("slot", [-1, -2, -(2**63), 12, 13, 2**31, 2**32, 2**40, 2**63 - 1])
@pytest.mark.parametrize("grouped", [False, True], ids=["tensor", "group"])
def test_a_slot_outside_of_the_cache_writes_nothing(slot, grouped):
    cache, storage, _ = world(4, ckv=128, kpe=64, gap=5)
    assert cache.shape[0] == 3
    scales = smla.new_group_scales(RUNTIME, cache)
    values = Draw("outside").bf16((2, 192))
    slots = torch.tensor([slot, 6])
    parts = values[:, :128], values[:, 128:]
    if grouped:
        smla.write_per_group(RUNTIME, *parts, cache, scales, slots, k_scale=1.0)
    else:
        smla.write_per_tensor(RUNTIME, *parts, cache, slots, k_scale=1.0)
    rows = [physical(6, 5)]
    assert (storage != FOREIGN).any(1).nonzero().flatten().tolist() == rows
    assert (scales != 1).any(1).nonzero().flatten().tolist() == (rows if grouped else [])


@pytest.mark.parametrize("grouped", [False, True], ids=["tensor", "group"])
def test_no_tokens_write_nothing(grouped):
    cache, storage, _ = world(4, ckv=128, kpe=64)
    empty, none = torch.empty(0, 192, dtype=torch.bfloat16), torch.empty(0, dtype=torch.int64)
    parts = empty[:, :128], empty[:, 128:]
    if grouped:
        scales = smla.new_group_scales(RUNTIME, cache)
        smla.write_per_group(RUNTIME, *parts, cache, scales, none, k_scale=1.0)
    else:
        smla.write_per_tensor(RUNTIME, *parts, cache, none, k_scale=1.0)
    assert bool((storage == FOREIGN).all())


def test_rows_of_padded_inputs_are_read_where_they_stand():
    wide = Draw("wide").bf16((6, 128 + 64 + 24))
    cache, other = (world(6, ckv=128, kpe=64)[0] for _ in range(2))
    slots = torch.arange(6)
    smla.write_per_tensor(RUNTIME, wide[:, :128], wide[:, 128:192], cache, slots, k_scale=0.5)
    packed = wide[:, :128].contiguous(), wide[:, 128:192].contiguous()
    smla.write_per_tensor(RUNTIME, *packed, other, slots, k_scale=0.5)
    assert torch.equal(cache, other) and bool((cache != FOREIGN).any())


def test_a_replay_writes_what_its_buffers_hold_by_then():
    cache, _, slots = world(6, ckv=128, kpe=64)
    scales = smla.new_group_scales(RUNTIME, cache)
    values = Draw("captured").bf16((6, 192))
    parts = values[:, :128], values[:, 128:]
    with RUNTIME.capture() as graph:
        smla.write_per_group(RUNTIME, *parts, cache, scales, slots, k_scale=2.0)
    assert bool((scales == 1).all())
    values *= 3
    graph.replay()
    fresh, _, _ = world(6, ckv=128, kpe=64)
    others = smla.new_group_scales(RUNTIME, fresh)
    smla.write_per_group(RUNTIME, *parts, fresh, others, slots, k_scale=2.0)
    assert torch.equal(cache, fresh) and torch.equal(scales, others)
    assert bool((scales != 1).any())


def test_group_scales_keep_small_channels_that_one_scale_loses():
    # Heavy tails: groups of sizes far apart. What golden decodes is near to what was written.
    draw = Draw("heavy tails")
    sizes = 2.0 ** draw.ints((32, 4), -14, 6).float()
    values = (draw.bf16((32, 512)).float() * sizes.repeat_interleave(128, 1)).bfloat16()
    rope, slots = values[:, :0], torch.arange(32)
    most = float(values.abs().max()) / 448
    errors = {}
    for grouped in (False, True):
        cache, storage, _ = world(32, ckv=512, kpe=0)
        scales = smla.new_group_scales(RUNTIME, cache)
        if grouped:
            smla.write_per_group(RUNTIME, values, rope, cache, scales, slots)
            stored = PagedBytes(storage, "e4m3_group", 512, 0, 4, 4, 1.0, scales)
        else:
            smla.write_per_tensor(RUNTIME, values, rope, cache, slots, k_scale=most)
            stored = PagedBytes(storage, "e4m3", 512, 0, 4, 4, most)
        each = (stored.gather(slots) - values.double()).unflatten(1, (4, 128)).norm(dim=-1)
        errors[grouped] = each / values.double().unflatten(1, (4, 128)).norm(dim=-1)
    assert float(errors[True].max()) < 2.0**-4
    assert float(errors[False].max()) > 0.5, "nothing to lose in these values"


@pytest.mark.parametrize("padding", [16, 80])
@pytest.mark.parametrize("gap", [0, 3], ids=["dense", "strided"])
@pytest.mark.parametrize("grouped", [False, True], ids=["tensor", "group"])
def test_padded_rows_get_the_codes_that_dense_ones_get(padding, gap, grouped):
    rows, row = 12, 128 + 64
    values = hard_values(rows, row)
    cache, storage, slots = world(rows, ckv=128, kpe=64, gap=gap)
    wide = torch.full((storage.shape[0], row + padding), FOREIGN, dtype=torch.uint8)
    padded = wide.as_strided(cache.shape, ((4 + gap) * (row + padding), row + padding, 1))
    made = []
    for target in (cache, padded):
        parts = values[:, :128], values[:, 128:]
        scales = smla.new_group_scales(RUNTIME, target)
        if grouped:
            smla.write_per_group(RUNTIME, *parts, target, scales, slots, k_scale=0.5)
        else:
            smla.write_per_tensor(RUNTIME, *parts, target, slots, k_scale=0.5)
        made.append(scales)
    assert torch.equal(*made)
    assert torch.equal(wide[:, :row], storage)
    assert bool((wide[:, row:] == FOREIGN).all()), "written into the padding"


def test_layers_whose_blocks_alternate_share_one_array_of_scales():
    blocks, size, dim = 3, 64, 128
    storage = torch.full((blocks, 2, size, dim), FOREIGN, dtype=torch.uint8)
    scales = smla.new_group_scales(RUNTIME, storage.flatten(0, 1))
    span, slots = (blocks - 1) * 2 * size + size, torch.arange(blocks * size)
    kpe = torch.empty((len(slots), 0), dtype=torch.bfloat16)
    alone = []
    for layer in range(2):
        ckv = Draw(f"layer {layer}").bf16((len(slots), dim), scale_exp=5 * layer)
        theirs = scales[layer * size :][:span]
        smla.write_per_group(RUNTIME, ckv, kpe, storage[:, layer], theirs, slots)
        cache = torch.full((blocks, size, dim), FOREIGN, dtype=torch.uint8)
        alone.append((cache, smla.new_group_scales(RUNTIME, cache)))
        smla.write_per_group(RUNTIME, ckv, kpe, *alone[-1], slots)
    for layer, (cache, own) in enumerate(alone):
        assert torch.equal(storage[:, layer], cache)
        assert torch.equal(scales.view(blocks, 2, size, 1)[:, layer].reshape(own.shape), own)
    assert not torch.equal(alone[0][1], alone[1][1])


@pytest.mark.parametrize("grouped", [False, True], ids=["tensor", "group"])
def test_slots_on_both_sides_of_2_31_and_2_32_bytes_are_written(grouped):
    blocks, size, dim, stride = 4, 64, 128, 2**24 - 24  # blocks 1 and 2 hold a border each
    rows = (blocks - 1) * stride + size
    storage, scales = sparse(rows * dim), sparse(rows * 4).view(torch.float32).view(rows, 1)
    cache = storage.as_strided((blocks, size, dim), (stride * dim, dim, 1))
    slots = torch.arange(blocks * size)
    ckv = Draw("far").bf16((len(slots), dim))
    kpe = torch.empty((len(slots), 0), dtype=torch.bfloat16)
    near = torch.zeros((blocks, size, dim), dtype=torch.uint8)
    of_near = smla.new_group_scales(RUNTIME, near)
    for target, its_scales in ((cache, scales), (near, of_near)):
        if grouped:
            smla.write_per_group(RUNTIME, ckv, kpe, target, its_scales, slots)
        else:
            smla.write_per_tensor(RUNTIME, ckv, kpe, target, slots, k_scale=0.5)
    assert torch.equal(cache, near) and bool((near != 0).any(-1).all())
    if grouped:
        written = slots // size * stride + slots % size
        assert torch.equal(scales[written], of_near)
