"""The access log is exact: which entries, rows and scales are read, and which are not."""

from __future__ import annotations

import math

import pytest
import torch

from conformance.tests.twin.bench import SLOTS, Step
from conformance.twin.access import FOREIGN_SLOT, Why

MIXED = [300, 1, 64, 0, 65, 128, 31, 209]
VALID = [290, 1, 5, 0, 65, 100, 0, 31]


@pytest.mark.parametrize("heads", [16, 64, 128])
def test_an_exact_plan_reads_each_entry_and_nothing_else(heads: int) -> None:
    step = Step(MIXED, heads=heads)
    step.run()
    spans = step.log.spans()
    for row, length in enumerate(MIXED):
        assert step.log.touched_positions(row) == set(range(length))
        parts = [set(range(first, stop)) for first, stop in spans.get(row, [])]
        assert set().union(*parts) == set(range(length)), f"row {row}, by tile"
        assert all(0 < len(part) <= 64 for part in parts)
    assert step.log.spans({0, 3}) == {0: spans[0]}, "of the rows asked for"
    assert step.log.touched_slots() == set(step.indices.tolist())
    assert not step.log.negative_slots()
    assert not step.log.foreign_slots()
    assert not step.log.behind(MIXED)
    assert not step.log.scale_slots()


@pytest.mark.parametrize("num_sms", [2, 8, 132])
@pytest.mark.parametrize("fp8", [False, True], ids=["bf16", "fp8"])
def test_both_clamped_nothing_behind_the_prefix_is_touched(fp8: bool, num_sms: int) -> None:
    step = Step(MIXED, fp8=fp8, num_sms=num_sms)
    step.clamp(VALID)
    step.tail(VALID, -1)
    step.run()
    assert step.log.reach() == {row: count for row, count in enumerate(VALID) if count}
    assert not step.log.behind(VALID)
    assert not step.log.negative_slots()
    used = {
        slot
        for row, count in enumerate(VALID)
        for slot in step.indices[step.starts[row] : step.starts[row] + count].tolist()
    }
    assert step.log.touched_slots() == used


@pytest.mark.parametrize(
    ("planned", "valid", "end"),
    [(300, 70, 128), (100, 70, 100), (300, 64, 64), (300, 65, 128), (300, 0, 0), (300, 300, 300)],
)
def test_kv_end_alone_reads_to_the_end_of_its_tile(planned: int, valid: int, end: int) -> None:
    step = Step([planned], heads=64, num_sms=1)  # one item
    step.clamp([valid], kv_len=False)
    step.run()
    assert step.log.touched_positions(0) == set(range(end))
    whys = {touch.position: touch.why for touch in step.log.touches(0)}
    assert all((whys[at] is Why.USED) == (at < valid) for at in whys)
    assert [touch.position for touch in step.log.behind([valid])] == list(range(valid, end))


def test_items_of_32_clamped_empty_still_read_a_tile_at_odd_multiples() -> None:
    step = Step([300])  # items of 32; tiles are 64 wide whatever the item's length
    step.clamp([70], kv_len=False)
    step.run()
    masked = {touch.position for touch in step.log.touches(0) if touch.why is Why.MASKED}
    # Item 64..70 reads its tile; items 96, 160, 224, 288 are empty but run one tile each.
    spans = [(70, 128), (96, 160), (160, 224), (224, 288), (288, 300)]
    also = [(32, 64), (64, 70)]  # items 0..32 and 32..64 read past their end as well
    expected = {at for low, high in spans + also for at in range(low, high)}
    assert masked == expected


def test_a_negative_slot_is_logged_and_poisons_its_row_alone() -> None:
    step = Step([100, 100], kpe=64)
    step.indices[40] = -1
    out = step.run()
    assert bool(out[0].isnan().all())
    assert bool(out[1].isfinite().all())
    # Items of 64 or less overlap in what they read, so an entry may be read more than once.
    assert {(t.row, t.position, t.slot) for t in step.log.negative_slots()} == {(0, 40, -1)}


def test_a_negative_slot_in_fp8_is_logged_and_stays_finite() -> None:
    step = Step([100], fp8=True)
    step.indices[40] = -5
    assert bool(step.run().isfinite().all())
    assert {t.slot for t in step.log.negative_slots()} == {-5}


@pytest.mark.parametrize("slot", [SLOTS, 2**31 - 1, -(2**31)])
def test_foreign_slots_are_logged(slot: int) -> None:
    step = Step([100])
    step.indices[99] = slot
    assert bool(step.run().isnan().all())
    assert {t.slot for t in step.log.foreign_slots()} == {slot}


def test_entries_behind_kv_indices_are_foreign() -> None:
    step = Step([100])
    step.indices = step.indices[:90].clone()
    assert bool(step.run().isnan().all())
    found = {(t.position, t.slot) for t in step.log.foreign_slots()}
    assert found == {(at, FOREIGN_SLOT) for at in range(90, 100)}


def test_scales_are_read_for_every_lane() -> None:
    step = Step([40], ckv=128, fp8=True, scales=torch.ones(SLOTS, 1), num_sms=1)
    step.run()
    assert step.log.scale_slots() == {0, *step.indices.tolist()}
    assert step.log.touched_slots() == set(step.indices.tolist())
    assert {(t.position, t.cache) for t in step.log.stand_ins()} == {
        (at, False) for at in range(40, 64)
    }


def test_a_negative_slot_reads_a_foreign_scale() -> None:
    step = Step([64], ckv=128, fp8=True, scales=torch.ones(SLOTS, 1), num_sms=1)
    step.indices[3] = -1
    assert bool(step.run().isnan().all())


def test_whole_unused_cache_rows_never_matter() -> None:
    step = Step(MIXED, kpe=64)
    first = step.run()
    used = step.log.touched_slots()
    for slot in set(range(SLOTS)) - used:
        step.cache[slot] = math.nan
    assert step.run().equal(first)


def test_the_log_adds_up_and_clears() -> None:
    step = Step([64])
    step.run()
    once = len(step.log.touches())
    step.run()
    assert len(step.log.touches()) == 2 * once
    step.log.clear()
    assert not step.log.touches()
    assert step.log.reach() == {}


def test_behind_accepts_a_mapping_and_counts_missing_rows_as_empty() -> None:
    step = Step([3, 2])
    step.run()
    assert {(t.row, t.position) for t in step.log.behind({0: 2})} == {(0, 2), (1, 0), (1, 1)}
