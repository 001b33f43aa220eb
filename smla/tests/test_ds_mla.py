"""An fp8_ds_mla cache becomes the BF16 cache that its format says, and is served from there.

What is expected is decoded by hand from the bytes. Every lane of the kernel is held against it: its
torch twin, Triton's interpreter, and where one is visible a Hopper GPU.
"""

from dataclasses import replace
from functools import partial

import pytest
import torch

import smla
from golden import Draw
from smla import errors
from smla.tests.interpreter import INTERPRETING, run_interpreted
from smla.tests.sparse import sparse
from smla.tests.workbench import CONFIG, INT32, NUM_SMS, Simulated, Workbench, assert_refused

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
LANES = ["torch", *(["interpret"] if INTERPRETING else ["cuda"] if HOPPER else [])]
DEVICE = {"cuda": torch.device("cuda")}
BF16 = torch.bfloat16
META = torch.device("meta")

if not INTERPRETING:

    def test_the_kernel_does_the_same_in_the_interpreter():
        run_interpreted(__file__, "-k", "interpret")


def e4m3(code):
    """The value of a code, by hand."""
    exponent, mantissa = code >> 3 & 15, code & 7
    if code & 127 == 127:
        return float("nan")
    value = (mantissa + (8 if exponent else 0)) * 2.0 ** (max(exponent, 1) - 10)
    return -value if code & 128 else value


E4M3 = torch.tensor([e4m3(code) for code in range(256)], dtype=torch.float32)
CUT_E4M3 = E4M3.clone()
CUT_E4M3[[127, 255]] = torch.tensor([480.0, -480.0])


def expected_row(stored, lane):
    """int16 [576], the bits of the BF16 row that the 656 bytes of `stored` say."""
    scale = stored[512:528].clone().view(torch.float32).repeat_interleave(128)
    if lane == "interpret":
        # Triton's interpreter (3.9) cuts a float32 off where BF16 ends, and makes 480 of a NaN
        # code; a GPU and the twin do neither.
        bits = ((CUT_E4M3[stored[:512].long()] * scale).view(INT32) >> 16).to(torch.int16)
    else:
        bits = (E4M3[stored[:512].long()] * scale).bfloat16().view(torch.int16)
    return torch.cat([bits, stored[528:].clone().view(torch.int16)])


def blocks_of(memory, blocks, size, width, row, gap):
    """[blocks, size, width] in `memory`, rows `row` apart and `gap` more between blocks."""
    return memory.as_strided((blocks, size, width), (size * row + gap, row, 1))


def runtime_of(lane):
    return smla.CudaRuntime() if lane == "cuda" else smla.CpuRuntime(kernels=lane)


def drawn(seed, blocks, size, row=656, gap=0, lane="torch"):
    """[blocks, size, 656] of random bytes, with sound scales; what lies between is random too."""
    draw = Draw(f"ds_mla {seed}")
    memory = draw.bits((blocks * (size * row + gap) // 8 + 1,)).view(torch.uint8)
    memory = memory.to(DEVICE.get(lane, "cpu"))
    rows = blocks_of(memory, blocks, size, 656, row, gap)
    scales = (draw.ints((blocks, size, 4), 1, 2**24).float() / 2**24).clamp(min=2.0**-9)
    scales *= 2.0 ** draw.ints((blocks, size, 4), -12, 9).float()
    rows[..., 512:528] = scales.view(torch.uint8).to(rows.device)
    return rows


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize(
    ("row", "gap", "to_row", "to_gap"),
    [(656, 0, 576, 0), (672, 48, 576, 16), (656, 656 * 3, 640, 640 * 2), (656, 16, 576, 576)],
)
@pytest.mark.parametrize("listed", [None, 0, 1, 23, 30])
@pytest.mark.parametrize("seed", range(3))
def test_listed_rows_are_converted_and_nothing_else_is_written(
    lane, row, gap, to_row, to_gap, listed, seed
):
    blocks, size = 3, 5
    source = drawn(seed, blocks, size, row, gap, lane)
    given = source.cpu()
    slots = None
    if listed is not None:
        slots = Draw(f"slots {seed}").ints((listed,), -2, blocks * size + 3).long()
        slots[1::5], slots[2::7] = 2**32 + seed, -(2**40)
    apart = size * to_row + to_gap
    before = Draw("before").bits((blocks * apart // 4 + 4,)).view(torch.int16)[: blocks * apart]
    memory = before.to(source.device, copy=True)
    target = blocks_of(memory.view(BF16), blocks, size, 576, to_row, to_gap)
    placed = None if slots is None else slots.to(source.device)
    smla.convert_ds_mla(runtime_of(lane), source, target, placed)
    memory = memory.cpu()

    expected, values = before.clone(), torch.zeros(before.shape, dtype=torch.bool)
    for slot in range(blocks * size) if slots is None else set(slots.tolist()):
        if 0 <= slot < blocks * size:
            first = slot // size * apart + slot % size * to_row
            expected[first : first + 576] = expected_row(given[slot // size, slot % size], lane)
            values[first : first + 512] = True
    # Of a value that is NaN the bits are of no matter; everything else is held bit for bit.
    nan = [bits.view(BF16).isnan() & values for bits in (memory, expected)]
    assert torch.equal(*nan), "a NaN where none is, or none where one is"
    assert torch.equal(memory[~nan[0]], expected[~nan[0]])
    assert torch.equal(source.cpu(), given), "the source was written"


@pytest.mark.parametrize("lane", [lane for lane in LANES if lane != "interpret"])
def test_a_replay_converts_what_is_there_by_then(lane):
    runtime = runtime_of(lane)
    source = drawn(1, 2, 4, lane=lane)
    target = torch.zeros(2, 4, 576, dtype=BF16, device=source.device)
    slots = torch.tensor([-1, -1], device=source.device)
    smla.convert_ds_mla(runtime, source, target, slots)  # compiles
    slots[0] = 5
    with runtime.capture() as graph:
        smla.convert_ds_mla(runtime, source, target, slots)
    assert not target.view(torch.int16).any(), "run while it was captured"
    source.copy_(drawn(2, 2, 4))
    slots[0] = 6
    graph.replay()
    found = target.view(torch.int16).cpu()
    assert torch.equal(found[1, 2, 512:], expected_row(source[1, 2].cpu(), "torch")[512:])
    assert not found[0].any() and not found[1, [0, 1, 3]].any()


@pytest.mark.parametrize("to_row", [576, 640])
def test_a_converted_cache_is_served(to_row):
    config = replace(CONFIG, head_dim_ckv=512, head_dim_kpe=64)
    bench = Workbench(config, smla.CpuRuntime(num_sms=NUM_SMS), Simulated(), num_blocks=4)
    draw, shape = Draw("served"), (4, config.block_size)
    source = drawn(3, *shape)
    source[..., :512] = draw.e4m3((*shape, 512))
    source[..., 512:528] = (2.0 ** draw.ints((*shape, 4), -3, 2).float() * 0.77).view(torch.uint8)
    source[..., 528:] = draw.bf16((*shape, 64)).view(torch.uint8)
    memory = torch.full((4 * 64 * to_row,), torch.nan, dtype=BF16)
    bench.cache = blocks_of(memory, *shape, 576, to_row, 0)
    smla.convert_ds_mla(bench.runtime, source, bench.cache)
    assert_refused(
        lambda: bench.forward({**bench.call(bench.batch()), "kv_cache": source}, build(bench)),
        errors.ShapeError,
        "kv_cache|(4, 64, 656)|fp8_ds_mla|smla.convert_ds_mla",
    )
    batch = bench.batch(seq_lens=(7, 40, 100), q_lens=(1, 3, 2))
    call = bench.call(batch)
    bench.forward(call, bench.builder.build(batch))
    rows = torch.stack([expected_row(row, "torch") for row in source.view(-1, 656)])
    bench.bytes = rows.view(torch.uint8)
    bench.check_output(batch, call)


def build(bench):
    return bench.builder.build(bench.batch())


SOURCE, TARGET = torch.zeros(3, 4, 656, dtype=torch.uint8), torch.zeros(3, 4, 576, dtype=BF16)


def strided(tensor, *strides):
    return torch.zeros(99999, dtype=tensor.dtype).as_strided(tensor.shape, strides)


def odd(tensor):
    return torch.zeros(9999, dtype=tensor.dtype)[1:][: tensor.numel()].view(tensor.shape)


BAD = [
    ("source of rank 2", {"ds_mla_cache": SOURCE.view(12, 656)}, errors.ShapeError,
     "ds_mla_cache|(12, 656)|num_blocks, block_size, 656"),
    ("source of E4M3 rows", {"ds_mla_cache": SOURCE[..., :576]}, errors.ShapeError,
     "ds_mla_cache|(3, 4, 576)|656"),
    ("source without blocks", {"ds_mla_cache": SOURCE[:0]}, errors.ShapeError, "(0, 4, 656)"),
    ("source of int8", {"ds_mla_cache": SOURCE.view(torch.int8)}, errors.DtypeError,
     "ds_mla_cache|torch.int8|torch.uint8"),
    ("source elsewhere", {"ds_mla_cache": SOURCE.to(META)}, errors.DeviceError, "meta|cpu"),
    ("source of unaligned rows", {"ds_mla_cache": strided(SOURCE, 4 * 664, 664, 1)},
     errors.StrideError, "ds_mla_cache|664|multiples of 16"),
    ("source of unaligned blocks", {"ds_mla_cache": strided(SOURCE, 4 * 656 + 8, 656, 1)},
     errors.StrideError, "ds_mla_cache|2632|multiples of 16"),
    ("source at an odd address", {"ds_mla_cache": odd(SOURCE)}, errors.StrideError,
     "ds_mla_cache|aligned to 16"),
    ("target of other blocks", {"kv_cache": TARGET[:2]}, errors.ShapeError,
     "kv_cache|(2, 4, 576)|[3, 4, 576]"),
    ("target of another block size", {"kv_cache": TARGET.view(4, 3, 576)}, errors.ShapeError,
     "kv_cache|(4, 3, 576)|[3, 4, 576]"),
    ("target without a rope part", {"kv_cache": TARGET[..., :512]}, errors.ShapeError,
     "kv_cache|(3, 4, 512)|576"),
    ("target of float16", {"kv_cache": TARGET.half()}, errors.DtypeError,
     "kv_cache|torch.float16|torch.bfloat16"),
    ("target elsewhere", {"kv_cache": TARGET.to(META)}, errors.DeviceError, "kv_cache|meta"),
    ("target whose rows overlap", {"kv_cache": strided(TARGET, 2304, 568, 1)}, errors.StrideError,
     "kv_cache|568|at least 576"),
    ("target whose blocks overlap", {"kv_cache": strided(TARGET, 2296, 576, 1)},
     errors.StrideError, "kv_cache|2296|do not overlap"),
    ("target of one block for all", {"kv_cache": TARGET[:1].expand(3, 4, 576)},
     errors.StrideError, "kv_cache|(0, 576, 1)"),
    ("target with gaps", {"kv_cache": torch.zeros(3, 4, 1152, dtype=BF16)[..., ::2]},
     errors.StrideError, "kv_cache|(4608, 1152, 2)"),
    ("target at an odd address", {"kv_cache": odd(TARGET)}, errors.StrideError, "aligned to 16"),
    ("slots of int32", {"slot_mapping": torch.zeros(3, dtype=INT32)}, errors.DtypeError,
     "slot_mapping|torch.int32|torch.int64"),
    ("slots elsewhere", {"slot_mapping": torch.zeros(3, dtype=torch.int64, device=META)},
     errors.DeviceError, "slot_mapping|meta"),
    ("slots of rank 2", {"slot_mapping": torch.zeros(3, 1, dtype=torch.int64)},
     errors.ShapeError, "slot_mapping|(3, 1)"),
    ("slots with gaps", {"slot_mapping": torch.zeros(6, dtype=torch.int64)[::2]},
     errors.StrideError, "slot_mapping|(2,)"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "kind", "words"), [c[1:] for c in BAD], ids=[c[0] for c in BAD])
def test_a_bad_call_is_refused(change, kind, words):
    class Untouched(smla.CpuRuntime):
        def launch(self, *_):
            raise AssertionError("queued before it was refused")

    call = {"ds_mla_cache": SOURCE, "kv_cache": TARGET, "slot_mapping": None, **change}
    assert_refused(lambda: smla.convert_ds_mla(Untouched(), **call), kind, words)


class Elsewhere(smla.CpuRuntime):
    def __init__(self):
        super().__init__()
        self.device = META


def test_strides_that_32_bits_do_not_hold_are_refused():
    source = torch.empty(1, dtype=torch.uint8, device=META)
    source = source.as_strided((2, 4, 656), (2**35, 656, 1))
    target = torch.empty(2, 4, 576, dtype=BF16, device=META)
    assert_refused(
        lambda: smla.convert_ds_mla(Elsewhere(), source, target),
        errors.StrideError,
        f"ds_mla_cache|{2**35}|2**31 * 16",
    )


def test_rows_that_32_bits_do_not_count_are_refused():
    source = torch.empty(2**25, 64, 656, dtype=torch.uint8, device=META)
    target = torch.empty(2**25, 64, 576, dtype=BF16, device=META)
    assert_refused(
        lambda: smla.convert_ds_mla(Elsewhere(), source, target),
        errors.CapacityError,
        f"{2**31} rows|slices of its blocks",
    )


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("of_blocks", [False, True], ids=["many-blocks", "far-blocks"])
def test_caches_beyond_32_bits_are_addressed_right(lane, of_blocks):
    """Rows on both sides of byte and element 2^31 and 2^32 of each side."""
    size = 64
    if of_blocks:  # few blocks that lie far apart
        blocks, apart, to_apart = 4, 2**31 - 656 * 32 + 16 * 5, 2**31 - 576 * 32
    else:
        apart, to_apart = size * 656, size * 576
        blocks = 2**32 // to_apart + 3
    bytes_of = partial(torch.zeros, dtype=torch.uint8, device="cuda") if lane == "cuda" else sparse
    source = blocks_of(bytes_of(blocks * apart + 656), blocks, size, 656, 656, apart - size * 656)
    target = bytes_of(2 * (blocks * to_apart + 576)).view(BF16)
    target = blocks_of(target, blocks, size, 576, 576, to_apart - size * 576)
    near: set[int] = set()
    for step, row in ((apart, 656), (to_apart, 576)):
        for border in (2**30, 2**31, 2**32):
            block, behind = divmod(border, step)
            slot = block * size + min(behind // row, size - 1)
            near |= {slot - 1, slot, slot + 1}
    slots = torch.tensor(sorted(slot for slot in near if slot < blocks * size))
    content = drawn(5, len(slots), 1)[:, 0]
    slots = slots.to(source.device)
    where = (slots // size, slots % size)
    source[where] = content.to(source.device)
    smla.convert_ds_mla(runtime_of(lane), source, target, slots)
    expected = torch.stack([expected_row(row, lane) for row in content])
    found = target[where].view(torch.int16).cpu()
    nan = [bits.view(BF16).isnan() for bits in (found, expected)]
    assert torch.equal(*nan) and not nan[0].all(1).any()
    assert torch.equal(found[~nan[0]], expected[~nan[0]])
