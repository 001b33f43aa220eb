"""Configurations, FlashInfer versions and runtimes that cannot serve, and what they are told."""

from dataclasses import replace

import pytest
import torch

import smla
from smla import errors
from smla.engines.flashinfer import compat
from smla.schedule import WORK_CAPACITY
from smla.tests.workbench import CONFIG, NUM_SMS, Simulated, assert_refused, workbench

REAL = replace(CONFIG, head_dim_ckv=512, num_heads=16)

BAD_VALUES = [
    ({"num_heads": 0}, errors.ShapeError, "num_heads|found 0|>= 1"),
    ({"num_heads": True}, errors.ShapeError, "num_heads|True"),
    ({"index_topk": 0}, errors.ShapeError, "index_topk|found 0"),
    ({"index_kpool": 0}, errors.ShapeError, "index_kpool|found 0"),
    ({"max_tokens": 0}, errors.ShapeError, "max_tokens|found 0"),
    ({"head_dim_ckv": 0}, errors.ShapeError, "head_dim_ckv|found 0"),
    ({"head_dim_kpe": -64}, errors.ShapeError, "head_dim_kpe|found -64|>= 0"),
    ({"block_size": 64.0}, errors.ShapeError, "block_size|64.0"),
    ({"plan_slack": -1}, errors.ShapeError, "plan_slack|found -1"),
    ({"topk_width": 18}, errors.BufferWidthError, "topk_width|found 18|>= index_topk|= 19"),
    ({"topk_width": 24.0}, errors.ShapeError, "topk_width|24.0|an int"),
    (
        {"kv_dtype": torch.float8_e5m2},
        errors.DtypeError,
        "float8_e5m2|float8_e4m3fn|as E4M3 or BF16|no other decoder",
    ),
    (
        {"kv_dtype": torch.float16},
        errors.DtypeError,
        "kv_dtype|torch.float16|torch.bfloat16|in BF16",
    ),
    (
        {"kv_dtype": torch.uint8},
        errors.DtypeError,
        "torch.uint8|stored as uint8|fp8_ds_mla|smla.convert_ds_mla",
    ),
    ({"kv_dtype": "bfloat16"}, errors.DtypeError, "kv_dtype|bfloat16"),
    ({"sm_scale": 0.0}, errors.ScaleError, "sm_scale|0.0|above 0"),
    ({"sm_scale": -1.0}, errors.ScaleError, "sm_scale|-1.0"),
    ({"sm_scale": float("nan")}, errors.ScaleError, "sm_scale|nan"),
    ({"sm_scale": float("inf")}, errors.ScaleError, "sm_scale|inf"),
    ({"sm_scale": 1e39}, errors.ScaleError, "sm_scale|1e+39"),
    ({"sm_scale": True}, errors.ScaleError, "sm_scale|True"),
    ({"max_graph_tokens": -1}, errors.ShapeError, "max_graph_tokens|found -1|>= 0"),
    ({"max_graph_tokens": True}, errors.ShapeError, "max_graph_tokens|True"),
    ({"sm_scale": None}, errors.ScaleError, "sm_scale|None"),
]


@pytest.mark.parametrize(
    ("changes", "kind", "words"), BAD_VALUES, ids=[str(c[0]) for c in BAD_VALUES]
)
def test_values_no_engine_could_serve_are_refused(changes, kind, words):
    assert_refused(lambda: replace(CONFIG, **changes), kind, words)


def test_the_narrowest_sufficient_buffer_is_served():
    workbench(replace(CONFIG, topk_width=CONFIG.max_valid)).good_step()


LIMITS = [
    ({}, (8, 0), "compute capability 8.0: the kernel needs 9.0"),
    ({}, (10, 0), "compute capability 10.0: the kernel needs 9.0"),
    ({}, (9, 1), "compute capability 9.1"),
    ({"num_heads": 129}, (9, 0), "129 heads: the kernel takes 1 to 128"),
    ({"head_dim_kpe": 32}, (9, 0), "qk_rope_head_dim 32: the kernel takes 0 or 64"),
    ({"head_dim_kpe": 128}, (9, 0), "qk_rope_head_dim 128: the kernel takes 0 or 64"),
    ({"head_dim_ckv": 128}, (9, 0), "kv_lora_rank 128: the kernel takes 512"),
    ({"head_dim_ckv": 256}, (9, 0), "kv_lora_rank 256: the kernel takes 512"),
    ({"block_size": 1}, (9, 0), "block size 1: must be a multiple of 64"),
    ({"block_size": 96}, (9, 0), "block size 96: must be a multiple of 64"),
    (
        {"max_graph_tokens": WORK_CAPACITY - NUM_SMS + 1},
        (9, 0),
        "captured forwards of up to 16377 rows: a graph runs one schedule of 16384 work items, "
        "which holds any 16376 rows",
    ),
]


@pytest.mark.parametrize(("changes", "capability", "reason"), LIMITS, ids=[c[2] for c in LIMITS])
def test_each_missed_limit_is_a_reason_and_no_module_is_loaded(changes, capability, reason):
    source = Simulated(head_dims_ckv=compat.InstalledFlashInfer.head_dims_ckv)
    runtime = smla.CpuRuntime(num_sms=NUM_SMS, capability=capability)
    config = replace(REAL, **changes)
    (found,) = smla.SparseMLABackend.reasons(config, runtime, source)
    assert reason in found, f"got {found!r}, expected {reason!r}"
    assert_refused(
        lambda: smla.SparseMLABackend(config, runtime=runtime, source=source),
        errors.UnsupportedError,
        reason,
    )
    assert source.loads == 0, "a module was loaded for a configuration that is refused"


def test_all_missed_limits_are_told_at_once():
    source = Simulated(head_dims_ckv=frozenset({512}))
    config = replace(REAL, num_heads=200, head_dim_kpe=32, head_dim_ckv=256, block_size=32)
    with pytest.raises(errors.UnsupportedError) as caught:
        runtime = smla.CpuRuntime(capability=(12, 0))
        smla.SparseMLABackend(config, runtime=runtime, source=source)
    words = ["12.0", "200 heads", "qk_rope_head_dim 32", "kv_lora_rank 256", "block size 32"]
    assert len(caught.value.reasons) == len(words), caught.value.reasons
    for word, reason in zip(words, caught.value.reasons, strict=True):
        assert word in reason and reason in str(caught.value)


@pytest.mark.parametrize("heads", [1, 64, 65, 128])
@pytest.mark.parametrize("kpe", [0, 64])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_the_limits_themselves_are_admitted(heads, kpe, dtype):
    config = replace(REAL, num_heads=heads, head_dim_kpe=kpe, kv_dtype=dtype, block_size=128)
    source = Simulated(head_dims_ckv=compat.InstalledFlashInfer.head_dims_ckv)
    assert smla.SparseMLABackend.reasons(config, smla.CpuRuntime(), source) == []


def test_a_cuda_runtime_without_a_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert_refused(smla.CudaRuntime, errors.KernelModeError, "no visible CUDA device|CpuRuntime")


def test_packed_offsets_that_would_overflow_are_refused():
    with pytest.raises(errors.CapacityError, match="2\\*\\*31"):
        replace(CONFIG, max_tokens=2**20, topk_width=2**11)
