"""Clamp: end every planned work item at its row's valid count, on the device.

FlashInfer's SM90 MLA kernel masks logits at a work item's kv_end and bounds its loads by the same
item's kv_len (mla_hopper.cuh), so both are rewritten: with both clamped no index and no cache row
behind the valid prefix is touched. The first clamp of a plan saves the planned values, and every
later one starts from those, so a row may grow again under the same plan. The launch words are saved
and written back too: a forward of too few rows stops its launch by clearing them.
"""

import triton
import triton.language as tl
from torch import Tensor

from smla.flags import Flag
from smla.kernels import Kernel
from smla.runtime import Runtime
from smla.schedule import ScheduleLayout

_BLOCK = 256


@triton.jit(do_not_specialize=["row_at", "kv_start_at", "kv_end_at", "kv_len_at"])
def _clamp_triton(
    schedule,
    planned_kv_end,
    planned_kv_len,
    planned_launch,
    row_context,
    flags,
    row_at,
    kv_start_at,
    kv_end_at,
    kv_len_at,
    TOPK: tl.constexpr,
    KPOOL: tl.constexpr,
    ABOVE_PLAN: tl.constexpr,
    FRESH: tl.constexpr,
    BLOCK: tl.constexpr,
    MERGES_AT: tl.constexpr,
    MERGES: tl.constexpr,
    WORKS_AT: tl.constexpr,
    WORKS: tl.constexpr,
):
    if tl.program_id(0) == 0:
        for first in range(0, MERGES + WORKS, BLOCK):
            word = first + tl.arange(0, BLOCK)
            at = schedule + tl.where(word < MERGES, MERGES_AT + word, WORKS_AT + word - MERGES)
            known = word < MERGES + WORKS
            if FRESH:
                tl.store(planned_launch + word, tl.load(at, mask=known), mask=known)
            else:
                tl.store(at, tl.load(planned_launch + word, mask=known), mask=known)
    work = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    # The last of them is the number of work items.
    if FRESH:
        inside = work < tl.load(schedule + WORKS_AT + WORKS - 1)
    else:
        inside = work < tl.load(planned_launch + MERGES + WORKS - 1)
    row = tl.load(schedule + row_at + work, mask=inside, other=0)
    context = tl.load(row_context + row, mask=inside, other=0)
    valid = tl.where(context <= TOPK, context, TOPK + context % KPOOL)
    start = tl.load(schedule + kv_start_at + work, mask=inside, other=0)
    if FRESH:
        end = tl.load(schedule + kv_end_at + work, mask=inside, other=0)
        length = tl.load(schedule + kv_len_at + work, mask=inside, other=0)
        tl.store(planned_kv_end + work, end, mask=inside)
        tl.store(planned_kv_len + work, length, mask=inside)
    else:
        end = tl.load(planned_kv_end + work, mask=inside, other=0)
        length = tl.load(planned_kv_len + work, mask=inside, other=0)
    tl.store(schedule + kv_end_at + work, tl.maximum(start, tl.minimum(end, valid)), mask=inside)
    tl.store(schedule + kv_len_at + work, tl.minimum(length, valid), mask=inside)
    too_long = tl.max(tl.where(inside & (valid > length), 1, 0), 0)
    if too_long > 0:
        tl.atomic_or(flags, ABOVE_PLAN)


def _clamp_torch(
    schedule: Tensor,
    planned_kv_end: Tensor,
    planned_kv_len: Tensor,
    planned_launch: Tensor,
    row_context: Tensor,
    flags: Tensor,
    row_at: int,
    kv_start_at: int,
    kv_end_at: int,
    kv_len_at: int,
    TOPK: int,
    KPOOL: int,
    ABOVE_PLAN: int,
    FRESH: bool,
    BLOCK: int,
    MERGES_AT: int,
    MERGES: int,
    WORKS_AT: int,
    WORKS: int,
) -> None:
    merging = schedule[MERGES_AT : MERGES_AT + MERGES]
    running = schedule[WORKS_AT : WORKS_AT + WORKS]
    if FRESH:
        planned_launch[:MERGES], planned_launch[MERGES:] = merging, running
    else:
        merging[:], running[:] = planned_launch[:MERGES], planned_launch[MERGES:]
    works = int(running[-1])
    if FRESH:
        planned_kv_end[:works] = schedule[kv_end_at : kv_end_at + works]
        planned_kv_len[:works] = schedule[kv_len_at : kv_len_at + works]
    context = row_context[schedule[row_at : row_at + works].long()]
    valid = context.where(context <= TOPK, TOPK + context % KPOOL)
    start = schedule[kv_start_at : kv_start_at + works]
    length = planned_kv_len[:works]
    schedule[kv_end_at : kv_end_at + works] = start.maximum(planned_kv_end[:works].minimum(valid))
    schedule[kv_len_at : kv_len_at + works] = length.minimum(valid)
    flags |= ABOVE_PLAN * int((valid > length).any())


CLAMP = Kernel("clamp", _clamp_triton, _clamp_torch)


def clamp(
    runtime: Runtime,
    schedule: Tensor,
    planned_kv_end: Tensor,
    planned_kv_len: Tensor,
    planned_launch: Tensor,
    row_context: Tensor,
    flags: Tensor,
    *,
    layout: ScheduleLayout,
    most_works: int,
    index_topk: int,
    index_kpool: int,
    fresh: bool,
) -> None:
    """Rewrite kv_end and kv_len of every work item of `schedule` from the planned values.

    schedule: the int workspace as int32; planned_kv_end, planned_kv_len: int32 [capacity], and
    planned_launch: int32 [as many as layout.launch_words], saved from the schedule itself when it
    is `fresh` from the planner; most_works: the schedule has no more work items; row_context:
    int32 [max_tokens].
    kv_end := max(kv_start, min(planned kv_end, valid)) and
    kv_len := min(planned kv_len, valid), with valid from the row's context.
    """
    args = (
        schedule,
        planned_kv_end,
        planned_kv_len,
        planned_launch,
        row_context,
        flags,
        layout.at("q_indptr"),
        layout.at("kv_start"),
        layout.at("kv_end"),
        layout.at("kv_len"),
    )
    meta = {
        "TOPK": index_topk,
        "KPOOL": index_kpool,
        "ABOVE_PLAN": int(Flag.VALID_ABOVE_PLAN),
        "FRESH": fresh,
        "BLOCK": _BLOCK,
        **layout.launch_meta,
    }
    runtime.launch(CLAMP, (triton.cdiv(most_works, _BLOCK),), args, meta)
