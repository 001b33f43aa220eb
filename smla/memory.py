"""What a plan state takes of the device's and the host's memory, told before it is allocated."""

from dataclasses import dataclass

from smla.config import SparseMLAConfig
from smla.schedule import ScheduleLayout

_INT32 = 4


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that one plan state takes: on the device, all at construction, and on the host.

    pinned_per_plan: page-locked host memory for each plan in flight (torch's allocator keeps and
    reuses it).
    """

    schedules: int
    float_workspace: int
    kv_indices: int
    kv_indptr: int
    slots: int
    rows: int
    pinned_per_plan: int

    @property
    def device(self) -> int:
        """All of the device memory."""
        return (
            self.schedules + self.float_workspace + self.kv_indices + self.kv_indptr
            + self.slots + self.rows
        )  # fmt: skip


def memory_estimate(config: SparseMLAConfig, num_sms: int = 132) -> MemoryEstimate:
    """Return what a plan state of this configuration will take, before anything is allocated.

    num_sms: the GPU's streaming multiprocessors (132 on H100 SXM and H200).
    """
    layout = ScheduleLayout(config.num_heads, num_sms, config.head_dim_ckv)
    rows, width = config.max_tokens, config.topk_width
    schedules = layout.most_schedules(rows)
    saved = 2 * layout.capacity + sum(map(len, layout.launch_words))
    per_schedule = layout.staged_bytes + saved * _INT32
    return MemoryEstimate(
        schedules=schedules * per_schedule,
        float_workspace=layout.float_bytes,
        kv_indices=rows * width * _INT32,
        kv_indptr=(rows + 1) * _INT32,
        slots=rows * width * _INT32,
        rows=(3 * rows + 2) * _INT32,
        pinned_per_plan=_pinned(layout.staged_bytes + (rows + 1) * _INT32)
        + (schedules - 1) * _pinned(layout.staged_bytes),
    )


def _pinned(size: int) -> int:
    """What torch's host allocator takes for a block: the next power of two."""
    return 1 << (size - 1).bit_length()
