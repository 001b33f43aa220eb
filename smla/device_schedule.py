"""One schedule on the device, and the planned values that its clamp starts from."""

import torch
from torch import Tensor

from smla.config import SparseMLAConfig
from smla.engines.base import Engine
from smla.kernels.clamp import clamp
from smla.runtime import Runtime


class DeviceSchedule:
    """The int workspace that FlashInfer's kernel reads, at an address that never changes.

    workspace: uint8 [staged bytes]; words: the same as int32. rest: int32 [extra] right behind it,
    which a plan's one copy fills too.
    """

    def __init__(
        self, config: SparseMLAConfig, runtime: Runtime, engine: Engine, *, extra: int = 0
    ) -> None:
        self._config, self._runtime, self._engine = config, runtime, engine
        self._staged = engine.layout.staged_bytes
        self._block = runtime.zeros((self._staged + 4 * extra,), torch.uint8)
        self.workspace = self._block[: self._staged]
        self.rest = self._block[self._staged :].view(torch.int32)
        self.words = self.workspace.view(torch.int32)
        # As planned; kept apart because what runs on the device overwrites them in place.
        capacity, launch = engine.layout.capacity, sum(map(len, engine.layout.launch_words))
        saved = runtime.zeros((2 * capacity + launch,), torch.int32)
        self._planned_kv_end, self._planned_kv_len = saved[:capacity], saved[capacity:][:capacity]
        self._planned_launch = saved[2 * capacity :]
        self._most_works = 0
        self._fresh = False

    def staging(self, extra: int = 0) -> tuple[Tensor, Tensor]:
        """Return a host block for one plan, uint8, and its last `extra` int32 for `rest`.

        New for each plan: one that is in flight is never written again.
        """
        block = self._runtime.staging((self._staged + 4 * extra,), torch.uint8)
        return block, block[self._staged :].view(torch.int32)

    def plan(
        self,
        float_workspace: Tensor,
        block: Tensor,
        first_row: int,
        lengths: Tensor,
        kv_indptr: Tensor,
    ) -> None:
        """Write the schedule of these rows to a block of `staging`; see `Engine.plan`."""
        self._engine.plan(float_workspace, self.workspace, block, first_row, lengths, kv_indptr)

    def upload(self, block: Tensor, rows: int) -> None:
        """Queue the copy of a block that `rows` rows were planned into, `rest` included."""
        self._most_works = self._engine.layout.most_works(rows)
        self._fresh = True
        size = block.numel()
        if not self._engine.plan_copies:
            self._runtime.upload(self._block[:size], block)
        elif size > self._staged:
            self._runtime.upload(self._block[self._staged : size], block[self._staged :])
        else:
            self._runtime.retain(block)

    def empty(self, block: Tensor) -> None:
        """Queue an empty schedule, with which the kernel does nothing, and the block's rest.

        The native planner divides by the number of rows. Zeroed arrays are an empty schedule: no
        work for any cluster, nothing to merge, the grid as ever.
        """
        self._runtime.fill(self.workspace, 0)
        self._runtime.upload(self._block[self._staged : block.numel()], block[self._staged :])

    def clamp(self, row_context: Tensor, flags: Tensor) -> None:
        """Queue the clamp of every work item to what its row sees."""
        clamp(
            self._runtime,
            self.words,
            self._planned_kv_end,
            self._planned_kv_len,
            self._planned_launch,
            row_context,
            flags,
            layout=self._engine.layout,
            most_works=self._most_works,
            index_topk=self._config.index_topk,
            index_kpool=self._config.index_kpool,
            fresh=self._fresh,
        )
        self._fresh = False
