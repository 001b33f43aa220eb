"""A stand-in for FlashInfer's native module, simple enough to be right by reading it."""

import itertools
from typing import Any

import torch
from torch import Tensor

from smla.schedule import ScheduleLayout

INT32 = torch.int32
NUM_SMS = 8


class WholeRows:
    """FlashInfer's native module, simplified: one work item per row, attention in float64.

    copies: like 0.6.18, `plan` writes the int workspace by itself and returns plan-info alone;
    else, like 0.7, the caller does and is told the staged bytes.
    `tamper` changes the plan-info that the planner returns; None leaves it alone.
    """

    WRITES = tuple(
        "q_indptr kv_indptr partial_indptr q_len kv_len q_start kv_start kv_end work_indptr".split()
    )
    """The arrays of a schedule that its plan writes, each as far as it is used."""

    def __init__(self, num_sms: int = NUM_SMS, *, copies: bool = False) -> None:
        self.num_sms, self.copies = num_sms, copies
        self.tamper: Any = None

    def plan(
        self, float_ws: Tensor, int_ws: Tensor, pinned: Tensor, qo_indptr: Tensor,
        kv_indptr: Tensor, kv_len: Tensor, num_heads: int, head_dim_o: int, causal: bool,
    ) -> list[int] | tuple[list[int], int]:  # fmt: skip
        layout = ScheduleLayout(num_heads, self.num_sms, head_dim_o)
        assert not causal and float_ws.nbytes >= layout.float_bytes, "not what FlashInfer needs"
        assert int_ws.nbytes >= layout.staged_bytes, "the int workspace is too small"
        assert layout.count_works(kv_len.numpy()) <= layout.capacity, "past FlashInfer's arrays"
        rows, clusters, first_row = kv_len.numel(), layout.num_clusters, int(qo_indptr[0])
        assert qo_indptr.tolist() == [*range(first_row, first_row + rows + 1)], "one token per row"
        assert kv_indptr.numel() == rows + 1, "each row's start, and the end"
        dealt = [range(first, rows, clusters) for first in range(clusters)]
        order = torch.tensor([*itertools.chain(*dealt)], dtype=torch.int64)
        ends = [0, *itertools.accumulate(map(len, dealt))]
        schedule = pinned.view(INT32)
        zeros, lengths = torch.zeros(rows), kv_len[order]
        written = (
            first_row + order,
            kv_indptr[order],
            torch.full((rows,), -1),
            torch.ones(rows),
            lengths,
            zeros,
            zeros,
            lengths,
            torch.tensor(ends),
        )
        for name, values in zip(self.WRITES, written, strict=True):
            schedule[layout.at(name) :][: values.numel()] = values.to(INT32)
        info = layout.plan_info
        info = self.tamper(info) if self.tamper else info
        if self.copies:
            int_ws[: layout.staged_bytes] = pinned[: layout.staged_bytes]
            return info
        return info, layout.staged_bytes

    def run(
        self, float_ws: Tensor, int_ws: Tensor, info: list[int], q_nope: Tensor, q_pe: Tensor,
        ckv: Tensor, kpe: Tensor, kv_indices: Tensor, out: Tensor, lse: Tensor | None,
        mask_mode: int, num_heads: int, page_size: int, sm_scale: float, base_e: bool,
        ckv_scale: float, kpe_scale: float, ckv_scale_arr: Tensor | None,
    ) -> None:  # fmt: skip
        layout = ScheduleLayout(num_heads, self.num_sms, q_nope.shape[2])
        schedule = layout.view(int_ws)
        items = (schedule.array(n).tolist() for n in ("q_indptr", "kv_indptr", "kv_end", "kv_len"))
        for row, start, end, length in zip(*items, strict=True):
            slots = kv_indices[start : start + min(end, length)].long()
            assert not slots.numel() or int(slots.min()) >= 0, f"row {row} reads a negative slot"
            values = _scaled(ckv[slots, 0], ckv_scale)
            if ckv_scale_arr is not None:
                values = _in_groups(ckv[slots, 0], ckv_scale_arr[slots])
                if min(end, length) % 64:  # masked positions are zeros times slot 0's scales
                    values = values + 0.0 * ckv_scale_arr[0].double().repeat_interleave(128)
            logits = q_nope[row].double() @ values.T
            logits += q_pe[row].double() @ _scaled(kpe[slots, 0], kpe_scale).T
            out[row] = (torch.softmax(logits * sm_scale, -1) @ values).to(out.dtype)


def _in_groups(stored: Tensor, scales: Tensor) -> Tensor:
    """As FlashInfer's kernel does it: the product is float32, rounded to BF16 once."""
    return (stored.float() * scales.repeat_interleave(128, -1)).bfloat16().double()


def _scaled(stored: Tensor, scale: float) -> Tensor:
    """As FlashInfer's kernel does it: scale and products are rounded to BF16."""
    return (stored.bfloat16() * torch.tensor(scale).bfloat16()).double()
