"""Bad input of a cache write is refused, and nothing is written."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smla
from golden import Draw
from smla import errors
from smla.tests.workbench import assert_refused

META = torch.device("meta")
RUNTIME = smla.CpuRuntime()
Changes = dict[str, Any]


def good(kpe: int = 64) -> Changes:
    """Arguments of a write of 5 tokens into 3 blocks, with a gap of 16 rows behind each."""
    draw, row = Draw("a good write"), 256 + kpe
    storage = torch.full((3 * 80 * row,), 0xA5, dtype=torch.uint8)
    return {
        "ckv": draw.bf16((5, 256)),
        "kpe": draw.bf16((5, kpe)),
        "kv_cache": storage.as_strided((3, 64, row), (80 * row, row, 1)),
        "ckv_scale_arr": torch.ones(2 * 80 + 64, 2),
        "slot_mapping": torch.tensor([0, 64, 191, -1, 5]),
    }


def misaligned(tensor: torch.Tensor) -> torch.Tensor:
    """The same values an element behind an aligned address."""
    room = torch.empty(tensor.numel() + 8, dtype=tensor.dtype)
    moved = room[1 : 1 + tensor.numel()].view(tensor.shape)
    return moved.copy_(tensor)


def expanded(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.repeat_interleave(2, 1)[:, ::2]


BAD: list[tuple[str, Callable[[torch.Tensor], torch.Tensor], type[errors.SmlaError], str]] = [
    ("ckv", lambda t: t.float(), errors.DtypeError, "torch.float32|torch.bfloat16"),
    ("ckv", lambda t: t.to(META), errors.DeviceError, "meta|cpu"),
    ("ckv", lambda t: t[:4], errors.ShapeError, "(4, 256)|[5, channels]"),
    ("ckv", lambda t: t.view(5, 2, 128), errors.ShapeError, "(5, 2, 128)|[5, channels]"),
    ("ckv", lambda t: t[:, :0], errors.ShapeError, "at least one channel"),
    ("ckv", expanded, errors.StrideError, "unit stride"),
    ("ckv", lambda t: torch.cat((t, t[:, :1]), 1)[:, :256], errors.StrideError, "multiples of 8"),
    ("ckv", misaligned, errors.StrideError, "aligned to 16 bytes"),
    ("kpe", lambda t: t.half(), errors.DtypeError, "torch.float16|torch.bfloat16"),
    ("kpe", lambda t: t.to(META), errors.DeviceError, "meta|cpu"),
    ("kpe", lambda t: t.repeat(2, 1), errors.ShapeError, "(10, 64)|[5, channels]"),
    ("kpe", expanded, errors.StrideError, "unit stride"),
    ("kpe", misaligned, errors.StrideError, "aligned to 16 bytes"),
    ("slot_mapping", lambda t: t.int(), errors.DtypeError, "torch.int32|torch.int64"),
    ("slot_mapping", lambda t: t.to(META), errors.DeviceError, "meta|cpu"),
    ("slot_mapping", lambda t: t[:, None], errors.ShapeError, "(5, 1)|[tokens]"),
    ("slot_mapping", lambda t: t.repeat_interleave(2)[::2], errors.StrideError, "unit stride"),
    ("kv_cache", lambda t: t.view(torch.int8), errors.DtypeError, "torch.int8|torch.uint8"),
    ("kv_cache", lambda t: t.to(META), errors.DeviceError, "meta|cpu"),
    ("kv_cache", lambda t: t[..., :256], errors.ShapeError, "(3, 64, 256)|320"),
    ("kv_cache", lambda t: t[0], errors.ShapeError, "(64, 320)|num_blocks"),
    ("kv_cache", lambda t: t[:0], errors.ShapeError, "(0, 64, 320)|num_blocks >= 1"),
    ("kv_cache", lambda t: t.as_strided((2, 64, 320), (20992, 328, 1)), errors.StrideError, "328"),
]
BAD_SCALES: list[tuple[Callable[[torch.Tensor], torch.Tensor], type[errors.SmlaError], str]] = [
    (lambda t: t.half(), errors.DtypeError, "torch.float16|torch.float32"),
    (lambda t: t.to(META), errors.DeviceError, "meta|cpu"),
    (lambda t: t[:192], errors.ShapeError, "(192, 2)|(224, 2)"),
    (lambda t: t[:, :1], errors.ShapeError, "(224, 1)|(224, 2)"),
    (lambda t: t.T.contiguous().T, errors.StrideError, "contiguous"),
]


def refused(
    arguments: Changes, kind: type[errors.SmlaError], words: str, *, grouped: bool, k_scale: object
) -> None:
    """Fail unless the write is refused, and refused before anything is written."""
    scales = arguments["ckv_scale_arr"]
    write: Any = smla.write_per_group
    if not grouped:
        write = smla.write_per_tensor
        arguments = {name: t for name, t in arguments.items() if name != "ckv_scale_arr"}
    assert_refused(lambda: write(RUNTIME, **arguments, k_scale=k_scale), kind, words)
    cache = arguments["kv_cache"]
    assert cache.is_meta or bool((cache.view(torch.uint8) == 0xA5).all())
    assert scales.is_meta or bool((scales == 1).all())


@pytest.mark.parametrize(("name", "spoil", "kind", "words"), BAD)
@pytest.mark.parametrize("grouped", [False, True], ids=["tensor", "group"])
def test_a_bad_tensor_is_refused(name, spoil, kind, words, grouped):
    arguments = good()
    arguments[name] = spoil(arguments[name])
    refused(arguments, kind, f"{name}|{words}", grouped=grouped, k_scale=0.5)


@pytest.mark.parametrize(("spoil", "kind", "words"), BAD_SCALES)
def test_a_bad_scale_array_is_refused(spoil, kind, words):
    arguments = good()
    arguments["ckv_scale_arr"] = spoil(arguments["ckv_scale_arr"])
    refused(arguments, kind, f"ckv_scale_arr|{words}", grouped=True, k_scale=0.5)


@pytest.mark.parametrize("k_scale", [None, 0, -1.0, True, float("nan"), 2.0**41, "1", 10**400])
@pytest.mark.parametrize("grouped", [False, True], ids=["tensor", "group"])
def test_a_bad_scale_is_refused(k_scale, grouped):
    words = f"k_scale|{k_scale!r}|2**-40"
    refused(good(), errors.ScaleError, words, grouped=grouped, k_scale=k_scale)


def test_the_rope_parts_scale_beside_groups_is_a_power_of_two_or_absent_without_one():
    refused(good(), errors.ScaleError, "k_scale|0.3|a power of two", grouped=True, k_scale=0.3)
    smla.write_per_tensor(
        RUNTIME, **{k: v for k, v in good().items() if k != "ckv_scale_arr"}, k_scale=0.3
    )
    smla.write_per_group(RUNTIME, **good(kpe=0))


def test_channels_that_are_no_whole_groups_are_refused():
    arguments = good()
    arguments["ckv"], arguments["kpe"] = (
        arguments["ckv"][:, :192],
        torch.zeros_like(arguments["ckv"][:, :128]),
    )
    words = "ckv|(5, 192)|a multiple of 128|write_per_tensor"
    refused(arguments, errors.ShapeError, words, grouped=True, k_scale=1.0)


@pytest.mark.parametrize(
    ("cache", "kind", "words"),
    [
        (torch.zeros(2, 64, 64, dtype=torch.uint8), errors.ShapeError, "(2, 64, 64)|128 channels"),
        (torch.zeros(64, 576, dtype=torch.uint8), errors.ShapeError, "(64, 576)|num_blocks"),
        (torch.zeros(2, 64, 656, dtype=torch.uint8), errors.ShapeError, "656|fp8_ds_mla|convert"),
        (torch.zeros(2, 64, 576), errors.DtypeError, "torch.float32|torch.uint8"),
        (torch.zeros(2, 64, 576, dtype=torch.uint8, device=META), errors.DeviceError, "meta"),
        (torch.zeros(2, 64, 1152, dtype=torch.uint8)[..., ::2], errors.StrideError, "strides"),
    ],
)
def test_scales_of_what_is_no_fp8_cache_are_not_made(cache, kind, words):
    assert_refused(lambda: smla.new_group_scales(RUNTIME, cache), kind, f"kv_cache|{words}")


def test_the_good_write_is_good():
    arguments = good()
    smla.write_per_group(RUNTIME, **arguments, k_scale=0.5)
    written = (arguments["kv_cache"] != 0xA5).any(-1).nonzero().tolist()
    assert written == [[0, 0], [0, 5], [1, 0], [2, 63]]
    rows = (arguments["ckv_scale_arr"] != 1).any(1).nonzero().flatten().tolist()
    assert rows == [0, 5, 80, 223]
