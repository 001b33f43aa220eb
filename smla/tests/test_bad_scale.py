"""What an FP8 cache must come with is refused if it is bad, and nothing is written."""

import math

import pytest
import torch

from smla import errors
from smla.tests.workbench import FP8_CONFIG, assert_refused, undisturbed, workbench

META = torch.device("meta")
BAD_SCALES = [
    None, True, 0, 0.0, -0.5, float("nan"), float("inf"), 1e39, 1e-60, 2.0**41, 2.0**-41, 10**400,
    math.nextafter(2.0**40, math.inf), math.nextafter(2.0**-40, 0), "0.5", torch.tensor(0.5),
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
