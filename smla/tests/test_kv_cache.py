"""A flat cache shows each token's row at its slot, without a copy."""

from dataclasses import replace

import pytest
import torch

import smla
from smla import errors
from smla.kv_cache import flatten
from smla.tests.workbench import (
    CONFIG,
    FP8_CONFIG,
    NUM_SMS,
    Simulated,
    Workbench,
    assert_refused,
)  # fmt: skip

CPU = torch.device("cpu")
CKV, ROW, BLOCK = CONFIG.head_dim_ckv, CONFIG.head_dim, CONFIG.block_size


def strided_cache(blocks, gap_rows, dtype=torch.bfloat16, row=ROW):
    """[blocks, BLOCK, row] with `gap_rows` rows between blocks, every element its own address."""
    size = blocks * (BLOCK + gap_rows) * row
    values = (torch.arange(size) % 251).to(dtype)
    return values.as_strided((blocks, BLOCK, row), ((BLOCK + gap_rows) * row, row, 1))


@pytest.mark.parametrize("gap_rows", [0, 1, 64])
@pytest.mark.parametrize("config", [CONFIG, FP8_CONFIG, replace(CONFIG, head_dim_kpe=0)])
def test_every_slot_is_the_row_of_its_block_and_offset(gap_rows, config):
    cache = strided_cache(3, gap_rows, config.storage_dtype, config.head_dim)
    flat = flatten(cache, config, CPU)
    assert (flat.num_blocks, flat.block_stride_rows) == (3, BLOCK + gap_rows)
    assert flat.ckv.dtype == flat.kpe.dtype == config.kv_dtype
    rows = 2 * (BLOCK + gap_rows) + BLOCK
    assert flat.ckv.shape == (rows, 1, CKV)
    assert flat.kpe.shape == (rows, 1, config.head_dim_kpe)
    assert flat.ckv.data_ptr() == cache.data_ptr(), "the cache was copied"
    stored = [part[:, 0].view(config.storage_dtype) for part in (flat.ckv, flat.kpe)]
    for block in range(3):
        for offset in (0, 1, BLOCK - 1):
            slot = block * flat.block_stride_rows + offset
            got = torch.cat([part[slot] for part in stored])
            assert torch.equal(got, cache[block, offset]), f"block {block}, offset {offset}"


def test_the_last_row_is_the_last_of_the_memory():
    cache = torch.zeros(3 * (BLOCK + 2) * ROW - 2 * ROW, dtype=torch.bfloat16)
    blocks = cache.as_strided((3, BLOCK, ROW), ((BLOCK + 2) * ROW, ROW, 1))
    flat = flatten(blocks, CONFIG, CPU)
    assert flat.ckv.shape[0] * ROW == cache.numel()


def test_one_block_may_have_any_block_stride():
    cache = torch.zeros(BLOCK * ROW, dtype=torch.bfloat16).as_strided((1, BLOCK, ROW), (7, ROW, 1))
    flat = flatten(cache, CONFIG, CPU)
    assert (flat.num_blocks, flat.block_stride_rows) == (1, BLOCK)


def test_a_layer_of_an_interleaved_cache_is_served():
    layers = torch.zeros(5, 4, BLOCK, ROW, dtype=torch.bfloat16)
    flat = flatten(layers[:, 2], CONFIG, CPU)
    assert (flat.num_blocks, flat.block_stride_rows) == (5, 4 * BLOCK)


@pytest.mark.parametrize("padding", [16, 64, 128])
@pytest.mark.parametrize("gap_rows", [0, 3])
@pytest.mark.parametrize("config", [CONFIG, FP8_CONFIG, replace(CONFIG, head_dim_kpe=0)])
def test_padded_rows_are_served_where_they_lie(padding, gap_rows, config):
    row = config.head_dim + padding // config.storage_dtype.itemsize
    memory = strided_cache(3, gap_rows, config.storage_dtype, row)
    cache = memory[..., : config.head_dim]
    flat = flatten(cache, config, CPU)
    assert (flat.num_blocks, flat.block_stride_rows) == (3, BLOCK + gap_rows)
    assert flat.ckv.data_ptr() == cache.data_ptr(), "the cache was copied"
    assert flat.ckv.stride(0) == flat.kpe.stride(0) == row
    stored = [part[:, 0].view(config.storage_dtype) for part in (flat.ckv, flat.kpe)]
    for block in range(3):
        for offset in (0, 1, BLOCK - 1):
            slot = block * flat.block_stride_rows + offset
            got = torch.cat([part[slot] for part in stored])
            assert torch.equal(got, cache[block, offset]), f"block {block}, offset {offset}"


@pytest.mark.parametrize("config", [CONFIG, FP8_CONFIG], ids=["bf16", "fp8"])
def test_a_step_over_padded_rows_is_right(config):
    bench = Workbench(config, smla.CpuRuntime(num_sms=NUM_SMS), Simulated())
    wide = torch.full((9, BLOCK, config.head_dim + 32), 0x7F, dtype=torch.uint8)
    wide = wide.to(config.storage_dtype) if config is FP8_CONFIG else wide.bfloat16() * torch.nan
    wide[..., : config.head_dim] = bench.cache
    bench.cache = wide[..., : config.head_dim]
    bench.good_step()


@pytest.mark.parametrize(
    ("config", "row", "unit"),
    [(CONFIG, ROW + 4, 8), (CONFIG, ROW - 8, 8), (FP8_CONFIG, ROW + 8, 16), (CONFIG, 0, 8)],
)
def test_rows_that_a_vector_load_cannot_reach_are_refused(config, row, unit):
    cache = torch.zeros(3 * BLOCK * 2 * ROW, dtype=config.storage_dtype)
    cache = cache.as_strided((3, BLOCK, config.head_dim), (BLOCK * row, row, 1))
    assert_refused(
        lambda: flatten(cache, config, CPU),
        errors.StrideError,
        f"kv_cache|strides ({BLOCK * row}, {row}, 1)|multiple of {unit} from {ROW} on",
    )


def test_blocks_that_start_within_padded_rows_are_refused():
    cache = torch.zeros(3 * BLOCK * 2 * ROW, dtype=torch.bfloat16)
    cache = cache.as_strided((3, BLOCK, ROW), (BLOCK * (ROW + 8) + 8, ROW + 8, 1))
    assert_refused(lambda: flatten(cache, CONFIG, CPU), errors.StrideError, "kv_cache|whole rows")


@pytest.mark.parametrize(("stride_rows", "served"), [(2**31 - BLOCK, True), (2**31 - 63, False)])
def test_slots_are_int32(stride_rows, served):
    """Two blocks, of which the second ends with row 2^31 - 1, or one row behind it."""
    meta = torch.device("meta")
    cache = torch.empty(1, dtype=torch.bfloat16, device=meta)
    cache = cache.as_strided((2, BLOCK, ROW), (stride_rows * ROW, ROW, 1))
    if served:
        assert flatten(cache, CONFIG, meta).ckv.shape[0] == 2**31
    else:
        assert_refused(
            lambda: flatten(cache, CONFIG, meta),
            errors.CapacityError,
            f"kv_cache|{2**31 + 1} rows|at most 2**31",
        )


@pytest.mark.parametrize("config", [CONFIG, FP8_CONFIG], ids=["bf16", "fp8"])
def test_fp8_ds_mla_is_named(config):
    cache = torch.zeros(3, BLOCK, 656, dtype=torch.uint8)
    words = "kv_cache|(3, 64, 656) of uint8|fp8_ds_mla|smla.convert_ds_mla|BF16"
    assert_refused(lambda: flatten(cache, config, CPU), errors.ShapeError, words)
