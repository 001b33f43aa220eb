"""A group-scaled FP8 cache: attended to as golden says, its scales checked, slot 0's watched."""

import logging
from dataclasses import replace

import pytest
import torch

import smla
from smla import errors
from smla.engines.flashinfer import compat
from smla.engines.flashinfer.engine import FlashInferEngine
from smla.group_scales import check_group_scales
from smla.kv_cache import FlatCache
from smla.scale import KVScale
from smla.tests.whole_rows import WholeRows
from smla.tests.workbench import (
    CONFIG,
    FP8_CONFIG,
    GROUP_CONFIG,
    Simulated,
    assert_refused,
    same_bytes,
    undisturbed,
    workbench,
)

META = torch.device("meta")


class Noting(WholeRows):
    """Keeps the scales and the output's dtype of each run."""

    def __init__(self):
        super().__init__()
        self.runs = []

    def run(self, *args):
        self.runs.append((*args[15:18], args[8].dtype))
        super().run(*args)


@pytest.mark.parametrize("ckv", [128, 256, 384])
@pytest.mark.parametrize("kpe", [0, 64])
def test_outputs_are_goldens(ckv, kpe):
    bench = workbench(replace(GROUP_CONFIG, head_dim_ckv=ckv, head_dim_kpe=kpe))
    bench.good_step()
    bench.good_step(q_lens=(2, 0, 5), seq_lens=(64, 9, 200), padded=10)
    bench.good_step(optimism=None)
    assert not bench.state.read_flags()


@pytest.mark.parametrize("exponent", [-40, -3, 0, 40])
def test_the_rope_part_has_a_scale_of_its_own(exponent):
    bench = workbench(replace(GROUP_CONFIG, sm_scale=0.125 * 2.0 ** -max(exponent, 0)))
    bench.k_scale = 2.0**exponent
    bench.good_step()


def test_without_a_rope_part_no_scale_is_needed_and_a_good_one_taken():
    bench = workbench(replace(GROUP_CONFIG, head_dim_kpe=0))
    for k_scale in (None, 1.0, 2, 0.25):
        batch = bench.batch()
        call = bench.call(batch)
        bench.forward(call, bench.builder.build(batch), k_scale=k_scale)
        bench.check_output(batch, call)


def test_the_module_gets_the_callers_array_and_writes_bf16_that_nothing_rescales():
    module = Noting()
    bench = workbench(GROUP_CONFIG, source=Simulated(module))
    assert bench.backend.engine.out_dtype == torch.bfloat16
    bench.good_step()
    _, kpe_scale, array, dtype = module.runs[-1]
    assert kpe_scale == bench.k_scale and dtype == torch.bfloat16
    assert array.data_ptr() == bench.scale_arr.data_ptr(), "a copy, which a graph would keep"
    plain = Noting()
    workbench(FP8_CONFIG, source=Simulated(plain)).good_step()
    assert plain.runs[-1][2:] == (None, torch.float16)


def test_the_module_is_asked_for_with_bf16_outputs():
    assert compat.out_dtype(GROUP_CONFIG) == compat.out_dtype(CONFIG) == torch.bfloat16
    assert compat.out_dtype(FP8_CONFIG) == torch.float16
    assert "fp8_group" in FlashInferEngine.capabilities


def test_construction_is_told_with_the_scaling(caplog):
    caplog.set_level(logging.INFO, "smla")
    workbench(GROUP_CONFIG)
    workbench(FP8_CONFIG)
    grouped, plain = (record.getMessage() for record in caplog.records)
    assert "float8_e4m3fn cache with group scales" in grouped
    assert "with group scales" not in plain


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("group", [0, 1])
def test_a_scale_of_slot_0_that_is_not_finite_is_flagged_by_run_and_replay(value, group):
    bench = workbench(GROUP_CONFIG)
    batch = bench.batch()
    call, metadata = bench.call(batch), bench.builder.build(batch)
    with bench.runtime.capture() as graph:
        bench.forward(call, metadata)
    graph.replay()
    assert not bench.state.read_flags()
    kept = bench.scale_arr[0, group].clone()
    bench.scale_arr[0, group] = value
    graph.replay()
    assert bench.state.read_flags() == smla.Flag.SLOT_ZERO_SCALE
    bench.state.clear_flags()
    bench.forward(call, metadata)
    assert bench.state.read_flags() == smla.Flag.SLOT_ZERO_SCALE
    bench.state.clear_flags()
    bench.scale_arr[0, group] = kept
    graph.replay()
    assert not bench.state.read_flags()
    bench.check_output(batch, call)


@pytest.mark.parametrize("value", [0.0, -1.0, 1e-45, torch.finfo(torch.float32).max])
def test_any_finite_scale_of_slot_0_is_fine(value):
    bench = workbench(GROUP_CONFIG)
    bench.scale_arr[0] = value
    batch = bench.batch()
    bench.forward(bench.call(batch), bench.builder.build(batch))
    assert not bench.state.read_flags()


def test_scales_of_other_slots_that_no_row_selects_are_not_looked_at():
    bench = workbench(GROUP_CONFIG)
    batch = bench.batch()
    call, metadata = bench.call(batch), bench.builder.build(batch)
    bench.forward(call, metadata)
    clean, slots = call["out"].clone(), bench.state.kv_indices
    selected = slots[: int(bench.state.kv_indptr[-1])].unique()
    foreign = torch.ones(len(bench.scale_arr), dtype=torch.bool)
    foreign[selected] = foreign[0] = False
    bench.scale_arr[foreign] = torch.nan
    bench.forward(call, metadata)
    assert same_bytes(clean, call["out"]) and not bench.state.read_flags()
    assert int(foreign.sum()) > 400


def test_debug_mode_raises_for_slot_0():
    bench = workbench(replace(GROUP_CONFIG, debug=True))
    batch = bench.batch()
    call, metadata = bench.call(batch), bench.builder.build(batch)
    spoiled = bench.scale_arr.clone()
    spoiled[0, 1] = torch.nan
    assert_refused(
        lambda: bench.forward(call, metadata, ckv_scale_arr=spoiled),
        errors.FlagError,
        "SLOT_ZERO_SCALE",
    )
    bench.good_step()


def test_a_scale_on_the_device_is_watched_beside_group_scales():
    bench = workbench(GROUP_CONFIG)
    batch = bench.batch()
    call, metadata = bench.call(batch), bench.builder.build(batch)
    bench.forward(call, metadata, device_k_scale=torch.tensor([bench.k_scale]))
    assert not bench.state.read_flags()
    bench.forward(call, metadata, device_k_scale=torch.tensor([0.25]))
    assert bench.state.read_flags() == smla.Flag.SCALE_CHANGED
    bench.check_output(batch, call)


def test_what_was_written_is_attended_to():
    bench = workbench(GROUP_CONFIG)
    config, runtime = bench.config, bench.runtime
    tokens = bench.num_blocks * config.block_size
    sizes = 2.0 ** bench.draw.ints((tokens, 1), -9, 9).float()
    values = (bench.draw.bf16((tokens, config.head_dim)).float() * sizes).bfloat16()
    parts = values[:, : config.head_dim_ckv], values[:, config.head_dim_ckv :]
    bench.scale_arr = smla.new_group_scales(runtime, bench.cache)
    slots = bench.draw.permutation(tokens).long()
    smla.write_per_group(
        runtime, *parts, bench.cache, bench.scale_arr, slots, k_scale=bench.k_scale
    )
    # golden reads the bytes and scales that were written.
    bench.bytes, bench.group_scales = bench.cache.clone(), bench.scale_arr.clone()
    bench.good_step()
    bench.good_step(optimism=None)


SHAPES = (576, 2)
BAD_ARRAYS = [
    (lambda s: s.double(), errors.DtypeError, "torch.float64|torch.float32"),
    (lambda s: s.bfloat16(), errors.DtypeError, "torch.bfloat16|torch.float32"),
    (lambda s: s.to(META), errors.DeviceError, "meta|cpu"),
    (lambda s: s[:-1], errors.ShapeError, "(575, 2)|(576, 2)|new_group_scales"),
    (lambda s: torch.cat((s, s[:1])), errors.ShapeError, "(577, 2)|(576, 2)"),
    (lambda s: s[:, :1].contiguous(), errors.ShapeError, "(576, 1)|(576, 2)"),
    (lambda s: s.view(9, 64, 2), errors.ShapeError, "(9, 64, 2)|(576, 2)"),
    (lambda s: s.view(-1), errors.ShapeError, "(1152,)|(576, 2)"),
    (lambda s: s.T.contiguous().T, errors.StrideError, "(1, 576)|contiguous"),
    (lambda s: s[:1].expand(576, 2), errors.StrideError, "(0, 1)|contiguous"),
    (lambda s: torch.cat((s, s), 1)[:, :2], errors.StrideError, "(4, 1)|contiguous"),
    (
        lambda s: torch.zeros(s.nbytes + 4, dtype=torch.uint8).numpy()[2:-2].view("float32"),
        errors.StrideError,
        "aligned to 4 bytes",
    ),
    (lambda s: None, errors.ScaleError, "None|'group'|write_per_group"),
]


@pytest.mark.parametrize(("spoil", "kind", "words"), BAD_ARRAYS)
def test_bad_group_scales_are_refused(spoil, kind, words):
    bench = workbench(GROUP_CONFIG)
    assert tuple(bench.scale_arr.shape) == SHAPES
    bad = spoil(bench.scale_arr)
    if bad is not None and not isinstance(bad, torch.Tensor):
        bad = torch.from_numpy(bad).view(SHAPES)
    with undisturbed(bench) as step:
        assert_refused(
            lambda: bench.forward(step.call, step.metadata, ckv_scale_arr=bad),
            kind,
            f"ckv_scale_arr|{words}",
        )


@pytest.mark.parametrize(("rows", "fits"), [(2**30, True), (2**30 + 1, False)])
def test_scales_beyond_32_bits_are_refused(rows, fits):
    # A cache of half a terabyte, which exists by name alone.
    row = torch.empty(rows, 1, 512, dtype=torch.float8_e4m3fn, device=META)
    cache = FlatCache(row, row[..., :0], rows // 64, 64)
    scales = torch.empty(rows, 4, device=META)
    if fits:
        check_group_scales(scales, cache, META)
    else:
        assert_refused(
            lambda: check_group_scales(scales, cache, META),
            errors.CapacityError,
            f"ckv_scale_arr|{4 * rows} scales|at most 2**32",
        )


@pytest.mark.parametrize("config", [CONFIG, FP8_CONFIG], ids=["bf16", "fp8"])
def test_group_scales_that_are_not_configured_are_refused(config):
    bench = workbench(config)
    with undisturbed(bench) as step:
        assert_refused(
            lambda: bench.forward(step.call, step.metadata, ckv_scale_arr=torch.ones(576, 1)),
            errors.ScaleError,
            "ckv_scale_arr|an array|None where kv_scaling is 'tensor'|kv_scaling='group'",
        )


@pytest.mark.parametrize(
    "scale", [None, 0.375, 3, 1.0000001, 2.0**-41, 2.0**41, 0, -1.0, True, float("nan"),
              float("inf"), 10**400, "1.0"], ids=lambda s: str(s)[:16],
)  # fmt: skip
def test_a_rope_scale_that_is_no_power_of_two_is_refused(scale):
    bench = workbench(GROUP_CONFIG)
    with undisturbed(bench) as step:
        assert_refused(
            lambda: bench.forward(step.call, step.metadata, k_scale=scale),
            errors.ScaleError,
            f"k_scale|{scale!r}|a power of two from 2**-40 to 2**40|write the rope part with",
        )


def test_a_scale_on_the_device_alone_is_refused():
    bench = workbench(replace(GROUP_CONFIG, head_dim_kpe=0))
    with undisturbed(bench) as step:
        assert_refused(
            lambda: bench.forward(
                step.call, step.metadata, k_scale=None, device_k_scale=torch.tensor([1.0])
            ),
            errors.ScaleError,
            "device_k_scale|None for k_scale|pass k_scale too",
        )


def test_a_power_of_two_is_the_rope_parts_scale_itself():
    for exponent in range(-40, 41):
        scale = 2.0**exponent
        assert KVScale.of_rope(scale, needed=True) == KVScale(scale, scale, 1.0)
        assert torch.tensor(scale).bfloat16().item() == scale


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"kv_scaling": "token"}, errors.ScaleError, "kv_scaling|'token'|'tensor' or 'group'"),
        ({"kv_scaling": None}, errors.ScaleError, "kv_scaling|None|'tensor' or 'group'"),
        (
            {"kv_dtype": torch.bfloat16},
            errors.ScaleError,
            "kv_scaling|'group' for kv_dtype torch.bfloat16|float8_e4m3fn",
        ),
        ({"head_dim_ckv": 64}, errors.ShapeError, "head_dim_ckv|64|a multiple of 128"),
        ({"head_dim_ckv": 320}, errors.ShapeError, "head_dim_ckv|320|a multiple of 128"),
    ],
)
def test_a_bad_scaling_is_refused(changes, kind, words):
    assert_refused(lambda: replace(GROUP_CONFIG, **changes), kind, words)


def test_a_config_says_how_many_scales_a_row_has():
    assert (GROUP_CONFIG.scale_groups, FP8_CONFIG.scale_groups, CONFIG.scale_groups) == (2, 0, 0)
    assert CONFIG.kv_scaling == FP8_CONFIG.kv_scaling == "tensor"
