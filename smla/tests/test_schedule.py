"""The typed schedule: where FlashInfer's arrays stand, and how many work items its planner makes.

Literal figures are those of FlashInfer 0.7.2.post1, scheduler.cuh.
"""

import pytest
import torch

from golden import Draw
from smla import errors
from smla.schedule import PLAN_INFO_FIELDS, WORK_CAPACITY, ScheduleLayout
from smla.tests.workbench import INT32, WholeRows, assert_refused, ints

H200 = ScheduleLayout(num_heads=128, num_sms=132, head_dim_ckv=512)


def test_the_arrays_of_132_sms_stand_where_flashinfer_puts_them():
    assert H200.offsets == {
        "q_indptr": 0,
        "kv_indptr": 65536,
        "partial_indptr": 131072,
        "merge_packed_offset_start": 196608,
        "merge_packed_offset_end": 197136,
        "merge_partial_packed_offset_start": 197664,
        "merge_partial_packed_offset_end": 198192,
        "merge_partial_stride": 198720,
        "q_len": 199248,
        "kv_len": 264784,
        "q_start": 330320,
        "kv_start": 395856,
        "kv_end": 461392,
        "work_indptr": 526928,
        "end": 592464,
    }
    assert H200.staged_bytes == 592464


@pytest.mark.parametrize("sms", [132, 114, 78, 8, 3])
def test_arrays_follow_each_other_aligned_to_16_bytes(sms):
    layout = ScheduleLayout(16, sms, 512)
    at = 0
    for name in PLAN_INFO_FIELDS[2:16]:
        at = (at + 15) // 16 * 16
        assert layout.offsets[name] == at and layout.at(name) * 4 == at, name
        at += 4 * (sms if name.startswith("merge") else 16384)
    assert layout.staged_bytes == at


@pytest.mark.parametrize(
    ("heads", "sms", "grid"),
    [
        (1, 132, (1, 132)), (64, 132, (1, 132)), (65, 132, (2, 66)), (128, 132, (2, 66)),
        (128, 114, (2, 57)), (128, 79, (2, 39)), (16, 78, (1, 78)),
    ],
)  # fmt: skip
def test_the_launch_grid_follows_from_heads_and_sms(heads, sms, grid):
    layout = ScheduleLayout(heads, sms, 512)
    assert (layout.cluster_size, layout.num_clusters) == grid == tuple(layout.plan_info[:2])
    assert layout.tiles_per_row == 1, "one query tile holds a row's heads"


def test_plan_info_ends_with_the_float_offsets():
    info = H200.plan_info
    assert len(info) == len(PLAN_INFO_FIELDS) == 18
    assert info[2:16] == [H200.offsets[name] for name in PLAN_INFO_FIELDS[2:16]]
    # Two tiles of 128 packed rows for each of 66 clusters, 512 BF16 each, then their LSE.
    assert info[16:] == [0, 2 * 66 * 128 * 512 * 2]
    assert H200.float_bytes >= info[17] + 2 * 66 * 128 * 4


BORDERS = [(0, 32), (1, 32), (8, 32), (9, 64), (16, 64), (17, 128), (32, 128), (33, 192),
           (64, 192), (65, 256), (256, 256), (257, 512), (512, 512), (513, 768)]  # fmt: skip


@pytest.mark.parametrize(("share", "limit"), BORDERS)
@pytest.mark.parametrize("heads", [16, 128])
def test_the_split_limit_changes_at_its_borders(share, limit, heads):
    layout = ScheduleLayout(heads, 132, 512)
    total = share * layout.num_clusters
    assert layout.split_limit(ints(total)) == limit
    if share:  # the share is rounded up
        least = ints(total - layout.num_clusters + 1)
        assert layout.split_limit(least) == limit


def works_by_hand(lengths, clusters):
    """Walk the rows as MLAPlan does: pieces of at most the limit, one for an empty row."""
    share = -(-sum(lengths) // clusters) or 1
    limit = next((kv for most, kv in ((8, 32), (16, 64), (32, 128), (64, 192)) if share <= most), 0)
    limit = limit or (share + 255) // 256 * 256
    works = 0
    for length in lengths:
        start = 0
        while True:
            works, start = works + 1, start + limit
            if start >= length:
                break
    return works


@pytest.mark.parametrize("seed", range(60))
def test_work_items_are_counted_exactly(seed):
    draw = Draw(f"count works {seed}")
    layout = ScheduleLayout(draw.choice([1, 16, 64, 65, 128]), draw.choice([132, 114, 78]), 512)
    longest = draw.choice([1, 33, 70, 193, 500, 2048, 5000])
    rows = draw.choice([1, 2, 7, 131, 132, 133, 700])
    lengths = ints(*draw.ints((rows,), 0, longest + 1).tolist())
    expected = works_by_hand(lengths.tolist(), layout.num_clusters)
    assert layout.count_works(lengths) == expected, f"lengths up to {longest}, {layout}"


@pytest.mark.parametrize("limit", [32, 64, 128, 192, 256])
@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_work_items_are_exact_where_rows_are_as_long_as_the_limit(limit, extra):
    layout = ScheduleLayout(16, 132, 512)
    rows = {32: 3, 64: 20, 128: 20, 192: 40, 256: 40}[limit]
    lengths = ints(*[limit + extra] * rows)
    assert layout.count_works(lengths) == works_by_hand(lengths.tolist(), 132)


def test_no_rows_make_no_work_items_and_empty_rows_one_each():
    assert H200.count_works(ints()) == 0
    assert H200.count_works(ints(0, 0, 0, 0, 0)) == 5
    assert H200.capacity == WORK_CAPACITY == 16384


def test_its_own_plan_info_is_accepted_as_ints():
    info = H200.check(tuple(H200.plan_info), 592464)
    assert info == H200.plan_info and isinstance(info, list)


@pytest.mark.parametrize("place", range(18))
def test_each_field_of_a_plan_info_is_checked(place):
    info = list(H200.plan_info)
    info[place] += 1
    words = f"{PLAN_INFO_FIELDS[place]} {info[place]} (expected {info[place] - 1})|128 heads"
    assert_refused(lambda: H200.check(info, 592464), errors.PlanLayoutError, words)


@pytest.mark.parametrize(
    ("info", "staged", "words"),
    [
        ([], 592464, "0 fields|18 fields"),
        (H200.plan_info[:17], 592464, "17 fields"),
        ([*H200.plan_info, 0], 592464, "19 fields"),
        (H200.plan_info, 592460, "592460 staged bytes|592464 staged bytes"),
        (ScheduleLayout(128, 114, 512).plan_info, 592464, "num_blks_y 57 (expected 66)|132 SMs"),
    ],
)
def test_other_layouts_are_refused(info, staged, words):
    assert_refused(lambda: H200.check(info, staged), errors.PlanLayoutError, words)


def test_a_schedule_is_read_by_name():
    layout = ScheduleLayout(4, 3, 64)
    workspace = torch.zeros(layout.staged_bytes, dtype=torch.uint8)
    lengths = torch.tensor([5, 0, 7, 9], dtype=INT32)
    indptr = torch.tensor([0, 5, 5, 12, 21], dtype=INT32)
    WholeRows(3).plan(
        torch.empty(layout.float_bytes, dtype=torch.uint8), workspace, workspace,
        torch.arange(5, dtype=INT32), indptr, lengths, 4, 64, False,
    )  # fmt: skip
    schedule = layout.view(workspace)
    assert schedule.num_works == 4
    assert schedule.array("work_indptr").tolist() == [0, 2, 3, 4]
    assert schedule.array("q_indptr").tolist() == [0, 3, 1, 2]
    assert schedule.array("kv_end").tolist() == [5, 9, 0, 7]
    assert schedule.array("merge_partial_stride").tolist() == [0, 0, 0]
