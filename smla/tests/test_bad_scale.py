"""What an FP8 cache must come with is refused if it is bad, and nothing is written."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from smla import errors
from smla.scale import KVScale
from smla.tests.whole_rows import WholeRows
from smla.tests.workbench import FP8_CONFIG, Simulated, assert_refused, undisturbed, workbench

META = torch.device("meta")
BAD_SCALES = [
    None, True, 0, 0.0, -0.5, float("nan"), float("inf"), 1e39, 1e-60, 2.0**41, 2.0**-41, 10**400,
    math.nextafter(2.0**40, math.inf), math.nextafter(2.0**-40, 0), "0.5",
]  # fmt: skip


@pytest.mark.parametrize("scale", BAD_SCALES, ids=lambda scale: str(scale)[:20])
def test_a_bad_scale_of_an_fp8_cache_is_refused(scale):
    bench = workbench(FP8_CONFIG)
    with undisturbed(bench) as step:
        assert_refused(
            lambda: bench.forward(step.call, step.metadata, k_scale=scale),
            errors.ScaleError,
            f"k_scale|{scale!r}|from 2**-40 to 2**40",
        )


BAD_DEVICE_SCALES = [
    (torch.ones(1, dtype=torch.float64), "torch.float64 [1] on cpu"),
    (torch.ones(1, dtype=torch.bfloat16), "torch.bfloat16 [1] on cpu"),
    (torch.ones(2), "torch.float32 [2] on cpu"),
    (torch.empty(0), "torch.float32 [0] on cpu"),
    (torch.ones(1).to(META), "torch.float32 [1] on meta"),
]


@pytest.mark.parametrize(
    ("scale", "found"), BAD_DEVICE_SCALES, ids=[found for _, found in BAD_DEVICE_SCALES]
)
def test_a_bad_scale_on_the_device_is_refused(scale, found):
    bench = workbench(FP8_CONFIG)
    with undisturbed(bench) as step:
        assert_refused(
            lambda: bench.forward(step.call, step.metadata, device_k_scale=scale),
            errors.ScaleError,
            f"device_k_scale|found {found}|torch.float32 [1] on cpu",
        )


def test_a_scale_on_the_device_does_not_replace_the_one_on_the_host():
    bench = workbench(FP8_CONFIG)
    with undisturbed(bench) as step:
        device = torch.tensor([bench.k_scale])
        assert_refused(
            lambda: bench.forward(step.call, step.metadata, k_scale=None, device_k_scale=device),
            errors.ScaleError,
            "k_scale|None|from 2**-40",
        )


def test_an_fp8_cache_is_passed_as_the_bytes_it_is_stored_as():
    bench = workbench(FP8_CONFIG)
    with undisturbed(bench) as step:
        typed = bench.cache.view(torch.float8_e4m3fn)
        assert_refused(
            lambda: bench.forward(step.call, step.metadata, kv_cache=typed),
            errors.DtypeError,
            "kv_cache|torch.float8_e4m3fn|torch.uint8",
        )


@pytest.mark.parametrize("scale", [2.0**-13, 2.0**-40])
def test_a_scale_that_brings_logits_near_a_finite_mask_is_refused(scale):
    # A module that copies by itself is one of before 0.7.0, which masks with -50000.
    bench = workbench(FP8_CONFIG, source=Simulated(WholeRows(copies=True)))
    with undisturbed(bench) as step:
        assert_refused(
            lambda: bench.forward(step.call, step.metadata, k_scale=scale),
            errors.ScaleError,
            f"k_scale|{scale}|{2.0**-12}|install FlashInfer 0.7.0 or newer",
        )


def test_scales_whose_product_leaves_float32_are_refused():
    bench = workbench(replace(FP8_CONFIG, sm_scale=1e38))
    with undisturbed(bench) as step:
        assert_refused(
            lambda: bench.forward(step.call, step.metadata, k_scale=2.0**39),
            errors.ScaleError,
            "k_scale|1e+38|a product that float32 holds",
        )


class OnADevice(torch.Tensor):
    """A tensor whose value costs a wait."""

    def __repr__(self, *, tensor_contents=None):
        raise AssertionError("its value was looked at")


@pytest.mark.parametrize("make", [KVScale.of, partial(KVScale.of_rope, needed=True)])
def test_a_tensor_for_a_scale_is_refused_by_its_type_and_not_looked_at(make):
    scale = torch.tensor(0.5).as_subclass(OnADevice)
    assert_refused(lambda: make(scale), errors.ScaleError, "k_scale|OnADevice|2**-40")
