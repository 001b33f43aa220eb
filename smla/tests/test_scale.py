"""An FP8 cache's scale is applied exactly, and its twin on the device is watched."""

import math
from dataclasses import replace

import pytest
import torch

import smla
from smla import errors
from smla.scale import KVScale
from smla.tests.workbench import CONFIG, FP8_CONFIG, assert_refused, same_bytes, workbench

SCALES = [
    1.0, 0.375, 0.3, 1.9999999, 1 + 2.0**-8, 1 + 3 * 2.0**-9, 3, 1 / 448, 3.7e-5, 127.9, 128.0,
    300.7, 2.0**-40, 2.0**40, math.nextafter(2.0**40, 0),
]  # fmt: skip


@pytest.mark.parametrize("scale", SCALES)
def test_a_scale_is_a_power_of_two_times_a_rest_exactly(scale):
    split = KVScale.of(scale)
    assert split.value == scale and split.power * split.rest == scale
    assert math.frexp(split.power)[0] == 0.5, "the power is none of two"


@pytest.mark.parametrize("scale", SCALES)
def test_no_e4m3_value_times_the_power_leaves_fp16(scale):
    power = KVScale.of(scale).power
    assert 448 * power <= torch.finfo(torch.float16).max
    least = torch.tensor(2.0**-9 * power, dtype=torch.float64)
    assert least.half().double() == least, "E4M3's smallest value is lost in FP16"


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("kpe", [0, 64])
def test_outputs_are_goldens_at_every_scale(scale, kpe):
    # golden's bound allows for no rounding of the scale; the stand-in rounds it, as FlashInfer.
    # Logits of about the same size whatever the scale, or one token has all the weight.
    config = replace(FP8_CONFIG, head_dim_kpe=kpe, sm_scale=min(0.125 / scale, 2.0**30))
    bench = workbench(config)
    bench.k_scale = scale
    bench.good_step()
    bench.good_step(optimism=None)
    assert not bench.state.read_flags()


def test_a_bf16_cache_and_rows_that_are_not_computed_are_not_scaled():
    for config in (CONFIG, FP8_CONFIG):
        bench = workbench(config)
        batch = bench.batch(padded=10)
        call = bench.call(batch)
        before = call["out"].clone()
        metadata = bench.builder.build(batch)
        for _ in range(2):  # a second layer writes the same
            bench.forward(call, metadata)
            bench.check_output(batch, call)
        with bench.runtime.capture() as graph:
            bench.forward(call, metadata)
        graph.replay()
        bench.check_output(batch, call)
        assert same_bytes(before[6:], call["out"][6:]), "a padding row was scaled"


@pytest.mark.parametrize("shape", [(1,), (), (1, 1)], ids=str)
@pytest.mark.parametrize(("device", "flagged"), [(0.375, False), (0.3750001, True)])
def test_another_scale_on_the_device_is_flagged_and_not_used(shape, device, flagged):
    bench = workbench(FP8_CONFIG)
    batch = bench.batch()
    call, metadata = bench.call(batch), bench.builder.build(batch)
    scale = bench.on_device(torch.full(shape, device))
    bench.forward(call, metadata, device_k_scale=scale)
    bench.check_output(batch, call)
    assert bench.state.read_flags() == (smla.Flag.SCALE_CHANGED if flagged else 0)


def test_a_scale_that_float32_rounds_is_the_same_on_the_device():
    bench = workbench(FP8_CONFIG)
    bench.k_scale = 0.1
    batch = bench.batch()
    metadata = bench.builder.build(batch)
    bench.forward(bench.call(batch), metadata, device_k_scale=torch.tensor([0.1]))
    assert not bench.state.read_flags()


def test_without_a_scale_on_the_device_nothing_is_flagged():
    bench = workbench(FP8_CONFIG)
    bench.good_step()
    assert not bench.state.read_flags()


def test_a_graph_flags_a_scale_that_changes_after_its_capture():
    bench = workbench(FP8_CONFIG)
    batch = bench.batch()
    call, metadata = bench.call(batch), bench.builder.build(batch)
    scale = bench.on_device(torch.tensor([bench.k_scale]))
    with bench.runtime.capture() as graph:
        bench.forward(call, metadata, device_k_scale=scale)
    graph.replay()
    bench.check_output(batch, call)
    assert not bench.state.read_flags()
    bench.runtime.write(scale, torch.tensor([0.5]))
    graph.replay()
    assert bench.state.read_flags() == smla.Flag.SCALE_CHANGED


def test_debug_mode_raises_for_another_scale_on_the_device():
    bench = workbench(replace(FP8_CONFIG, debug=True))
    batch = bench.batch()
    call, metadata = bench.call(batch), bench.builder.build(batch)
    assert_refused(
        lambda: bench.forward(call, metadata, device_k_scale=torch.tensor([1.0])),
        errors.FlagError,
        "SCALE_CHANGED",
    )
    bench.good_step()
