"""A flat cache shows each token's row at its slot, without a copy."""

from dataclasses import replace

import pytest
import torch

from smla.kv_cache import flatten
from smla.tests.workbench import CONFIG, FP8_CONFIG

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
