"""The kernel twin computes attention: against float64, split and unsplit, clamped, empty, FP8."""

from __future__ import annotations

import math

import pytest
import torch

from conformance.tests.twin.bench import BACKGROUND, SLOTS, SM_SCALE, VERSIONS, Step
from conformance.twin.errors import TwinDomainError, TwinFault
from conformance.twin.planner import INFO_FIELDS

MIXED = [300, 1, 64, 0, 65, 128, 31, 209]


@pytest.mark.parametrize("fp8", [False, True], ids=["bf16", "fp8"])
@pytest.mark.parametrize("kpe", [0, 64])
@pytest.mark.parametrize("heads", [1, 16, 64, 100, 128])
def test_output_is_softmax_attention(heads: int, kpe: int, fp8: bool) -> None:
    step = Step(MIXED, heads=heads, kpe=kpe, fp8=fp8)
    step.check(step.run())


@pytest.mark.parametrize("num_sms", [1, 2, 8, 78, 132])
def test_every_split_limit_gives_attention(num_sms: int) -> None:
    step = Step([700, 1000, 3, 0, 640], heads=64, num_sms=num_sms)
    step.check(step.run())


@pytest.mark.parametrize("lengths", [[2048, 2048], [1, 2, 3], [0], [500]])
def test_real_dimensions(lengths: list[int]) -> None:
    step = Step(lengths, heads=64, ckv=512, kpe=64)
    step.check(step.run())


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("fp8", [False, True], ids=["bf16", "fp8"])
def test_every_version_gives_attention(version: str, fp8: bool) -> None:
    step = Step(MIXED, heads=64, kpe=64, fp8=fp8, version=version)
    step.check(step.run())


@pytest.mark.parametrize("heads", [16, 48, 128])
def test_several_query_tokens_in_one_batch_row(heads: int) -> None:
    step = Step([100, 0, 257], heads=heads, q_len=5)
    step.check(step.run())


def test_lse_in_base_two_is_scaled() -> None:
    natural, binary = Step(MIXED), Step(MIXED, lse_base_e=False)
    assert torch.equal(natural.run(), binary.run())
    torch.testing.assert_close(binary.lse * math.log(2), natural.lse)


def test_rerun_is_bitwise_the_same() -> None:
    step = Step(MIXED, heads=128, kpe=64)
    first, lse = step.run(), step.lse.clone()
    assert torch.equal(step.run(), first)
    assert torch.equal(step.lse, lse)


@pytest.mark.parametrize("version", VERSIONS)
def test_empty_rows_are_exactly_zero(version: str) -> None:
    step = Step([0, 40, 0], heads=128, version=version)
    out = step.run()
    assert not out[[0, 2]].any()
    assert bool((step.lse[[0, 2]] == -math.inf).all())


def test_rows_without_work_keep_their_contents() -> None:
    step = Step([50, 60])
    step.array("work_indptr", 133).clamp_(max=int(step.array("work_indptr", 133)[1]))
    step.array("merge_packed_offset_end", 132).zero_()
    out = step.run()
    written = (out != BACKGROUND).flatten(1).any(1)
    assert written.sum() < 2


def test_an_empty_schedule_does_nothing() -> None:
    step = Step(MIXED)
    step.array("work_indptr", 133).zero_()
    for name in INFO_FIELDS[5:7]:
        step.array(name, 132).zero_()
    assert bool((step.run() == BACKGROUND).all())
    assert not step.log.touches()


VALID = [290, 1, 5, 0, 65, 100, 0, 31]


@pytest.mark.parametrize("kv_len", [True, False], ids=["both clamped", "kv_end clamped"])
@pytest.mark.parametrize("num_sms", [2, 8, 132])
@pytest.mark.parametrize("heads", [16, 128])
def test_clamped_plans_attend_to_the_prefix(heads: int, num_sms: int, kv_len: bool) -> None:
    step = Step(MIXED, heads=heads, num_sms=num_sms)
    step.clamp(VALID, kv_len)
    step.check(step.run(), VALID)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("valid", [5, 20, 31, 32, 90, 96, 100, 160])
def test_fully_masked_tiles_contribute_nothing(valid: int, version: str) -> None:
    # 132 SMs: items of 32; those clamped empty at 32, 96, ... run a masked tile
    step = Step([300], version=version)
    step.clamp([valid], kv_len=False)
    step.check(step.run(), [valid])


@pytest.mark.parametrize("num_sms", [1, 132], ids=["unsplit", "split"])
@pytest.mark.parametrize("kv_len", [True, False], ids=["both clamped", "kv_end clamped"])
@pytest.mark.parametrize("version", VERSIONS)
def test_rows_clamped_empty_are_zero_and_their_lse_is_the_versions(
    version: str, kv_len: bool, num_sms: int
) -> None:
    step = Step([300], num_sms=num_sms, lse_base_e=False, version=version)
    step.clamp([0], kv_len)
    assert not step.run().any()
    # An unsplit row is recognised as empty; a merge of empty states keeps where it began.
    merged = num_sms > 1 and version == "0.6.18"
    assert bool((step.lse == (-5e4 if merged else -math.inf)).all())


@pytest.mark.parametrize("version", VERSIONS)
def test_logits_below_the_finite_sentinel_are_lost_in_0_6_alone(version: str) -> None:
    step = Step([40], num_sms=1, version=version)
    step.q_nope.fill_(-100)
    step.cache.fill_(10)  # every logit is -64000
    lost = version == "0.6.18"
    assert bool((step.run() == (0 if lost else 10)).all())
    lse = -math.inf if lost else -64000 * SM_SCALE + math.log(40)
    assert float(step.lse[0, 0]) == pytest.approx(lse)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_slice_of_a_batch_attends_at_its_own_rows(version: str) -> None:
    step = Step(MIXED, heads=64, kpe=64, num_sms=8, first_row=5, first_entry=77, version=version)
    step.check(step.run())
    assert bool((step.out[:5] == BACKGROUND).all())
    assert bool((step.lse[:5] == BACKGROUND).all())
    assert set(step.log.reach()) == {5 + row for row, length in enumerate(MIXED) if length}
    step.clamp(VALID)
    step.check(step.run(), VALID)


@pytest.mark.parametrize("fp8", [False, True], ids=["bf16", "fp8"])
def test_both_clamped_output_ignores_the_tail_bitwise(fp8: bool) -> None:
    step = Step(MIXED, fp8=fp8)
    step.clamp(VALID)
    first = step.run()
    for slot in (-1, SLOTS, 2**31 - 1, -(2**31)):
        step.tail(VALID, slot)
        assert torch.equal(step.run(), first)


def test_nan_behind_kv_end_poisons_bf16() -> None:
    step = Step([300])
    step.cache[17] = math.nan
    step.tail([90], 17)
    step.clamp([90], kv_len=False)
    assert bool(step.run().isnan().all())


def test_nan_codes_behind_kv_end_are_invisible_in_fp8() -> None:
    step = Step([300], fp8=True)
    step.clamp([90], kv_len=False)
    first = step.run()
    step.cache.view(torch.uint8)[17] = 0x7F
    step.tail([90], 17)
    assert torch.equal(step.run(), first)


def test_fp8_nan_codes_read_as_480() -> None:
    step = Step([1], fp8=True)
    step.cache.view(torch.uint8)[int(step.indices[0])] = 0xFF
    assert bool((step.run() == -480).all())


def test_fp8_scale_and_product_are_rounded_to_bf16() -> None:
    step = Step([1], fp8=True, ckv_scale=0.0123)  # one position: the output is its value
    scale = torch.tensor(0.0123).bfloat16().float()
    value = step.cache[int(step.indices[0]), 0].float()
    assert torch.equal(step.run()[0, 0], (value * scale).bfloat16())
    assert float(scale) != pytest.approx(0.0123, rel=1e-4)


def test_fp8_scales_apply_to_both_parts() -> None:
    step = Step([200, 64], heads=64, kpe=64, fp8=True, ckv_scale=0.0123, kpe_scale=0.0123)
    step.check(step.run())


def test_kpe_scale_alone_changes_the_result() -> None:
    step = Step([200, 64], heads=64, kpe=64, fp8=True, ckv_scale=0.5, kpe_scale=2.0)
    step.check(step.run())


def test_nan_and_infinity_follow_the_arithmetic() -> None:
    step = Step([100, 100, 100], num_sms=8)
    for row, value in enumerate((math.nan, math.inf)):
        step.cache[row + 1, 0, 3] = value
        step.indices[step.starts[row] : step.starts[row + 1]].clamp_(min=10)
        step.indices[step.starts[row] + 50] = row + 1
    step.indices[step.starts[2] :].clamp_(min=10)
    out = step.run()
    assert bool(out[0].isnan().all())
    assert bool(out[1, :, 3].isfinite().logical_not().any())
    assert bool(out[2].isfinite().all())


def test_group_scales() -> None:
    scales = torch.rand(SLOTS, 2, generator=torch.Generator().manual_seed(5)) + 0.5
    step = Step(MIXED, heads=64, ckv=256, kpe=64, fp8=True, scales=scales)
    step.check(step.run())


def test_group_scales_of_slot_zero_poison_partial_tiles() -> None:
    scales = torch.ones(SLOTS, 1)
    scales[0] = math.nan
    step = Step([40, 64], ckv=128, fp8=True, scales=scales, num_sms=2)
    out = step.run()
    assert bool(out[0].isnan().all())
    assert bool(out[1].isfinite().all())


def test_strided_tensors() -> None:
    plain, strided = Step(MIXED, kpe=64), Step(MIXED, kpe=64)
    expected = plain.run()
    rows = len(MIXED)
    q = torch.zeros(rows, 3, 16, 160, dtype=torch.bfloat16)[:, 1]
    q[..., :64], q[..., 64:128] = strided.q_nope, strided.q_pe
    strided.q_nope, strided.q_pe = q[..., :64], q[..., 64:128]
    cache = torch.zeros(SLOTS, 2, 200, dtype=torch.bfloat16)[:, :1, 8:136]
    cache.copy_(strided.cache)
    strided.cache = cache
    strided.out = torch.zeros(16, rows, 96, dtype=torch.bfloat16).transpose(0, 1)[..., 16:80]
    assert torch.equal(strided.run(), expected)


def test_unpredicated_tiles_load_slot_zero_behind_the_bound() -> None:
    step = Step([256], num_sms=1, heads=64)
    step.array("kv_len").fill_(70)  # kv_end stays 256: tiles 0, 1, 2 are not predicated
    step.cache[0] = math.nan
    assert bool(step.run().isnan().all())
    stand_ins = step.log.stand_ins()
    assert {touch.position for touch in stand_ins} == set(range(70, 192))
    assert {touch.slot for touch in stand_ins} == {0}


def test_work_outside_the_query_is_a_fault() -> None:
    step = Step([10])
    step.array("q_indptr").fill_(1)
    with pytest.raises(TwinFault, match="query row 1 of 1"):
        step.run()


def test_partial_results_outside_the_workspace_are_a_fault() -> None:
    step = Step([300])
    step.array("partial_indptr").fill_(2 * 132 * 64)
    with pytest.raises(TwinFault, match="float workspace"):
        step.run()


@pytest.mark.parametrize("name", ["kv_start", "kv_end", "kv_len", "q_start", "kv_indptr"])
def test_negative_coordinates_are_refused(name: str) -> None:
    step = Step([10])
    step.array(name).fill_(-1)
    with pytest.raises(TwinDomainError, match=name):
        step.run()


def test_ranges_outside_the_workspace_are_refused() -> None:
    step = Step([10])
    step.array("work_indptr", 133)[-1] = 1 << 28
    with pytest.raises(TwinDomainError, match="int workspace"):
        step.run()


def test_clusters_may_run_items_out_of_order() -> None:
    step = Step([64, 64, 64], num_sms=3)
    expected = step.run()
    step.array("work_indptr", 4).copy_(torch.tensor([1, 3, 0, 1]))  # 1..3, none, 0..1
    assert torch.equal(step.run(), expected)


def test_ranges_that_rise_and_fall_beyond_the_workspace_are_refused_at_once() -> None:
    step = Step([64, 64, 64], num_sms=3)
    step.array("work_indptr", 4).copy_(torch.tensor([0, 2**31 - 1, 0, 2**31 - 1]))
    with pytest.raises(TwinDomainError, match="int workspace"):
        step.run()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("merge_packed_offset_end", "merge writes row"),
        ("merge_partial_packed_offset_end", "float workspace"),
    ],
)
def test_merges_of_any_size_are_a_fault_at_once(name: str, said: str) -> None:
    step = Step([300])
    step.array("merge_packed_offset_end", 1).fill_(16)
    step.array("merge_partial_packed_offset_end", 1).fill_(16)
    step.array("merge_partial_stride", 1).fill_(1)
    step.array(name, 1).fill_(2**31 - 1)
    with pytest.raises(TwinFault, match=said):
        step.run()
