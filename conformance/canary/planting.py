"""A native module that plants slots into the packed indices just before the kernel runs."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from conformance.core.schedule import FIELDS


class Planting:
    """Wraps a native module; between runs a test says what the next run finds planted.

    entries: place in kv_indices -> slot. kv_end_only: undo the clamp of kv_len before each run,
    as a subject does that clamps kv_end alone.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self.entries: Mapping[int, int] = {}
        self.kv_end_only = False
        self._planned_kv_len: Tensor | None = None

    def plan(self, *args: Any) -> Any:
        """Plan, and remember the planned kv_len of each work item."""
        result = self._module.plan(*args)
        info = result[0] if len(result) == 2 else result  # 0.6.18 tells no bytes
        self._planned_kv_len = _array(args[2], info, "kv_len").clone()
        return result

    def run(self, *args: Any) -> None:
        """Plant, then run."""
        int_workspace, info, kv_indices = args[1], args[2], args[7]
        if self.kv_end_only:
            self.restore_kv_len(int_workspace, info)
        if self.entries:
            places = torch.tensor(list(self.entries), device=kv_indices.device)
            slots = torch.tensor(list(self.entries.values()), dtype=torch.int32)
            kv_indices[places] = slots.to(kv_indices.device)
        self._module.run(*args)

    def restore_kv_len(self, workspace: Tensor, info: Any) -> None:
        """Put the planned kv_len of each work item back into an int workspace."""
        assert self._planned_kv_len is not None
        _array(workspace, info, "kv_len").copy_(self._planned_kv_len)


def _array(workspace: Tensor, info: Any, name: str) -> Tensor:
    """Return one per-work array of a workspace in full, as int32."""
    where = dict(zip(FIELDS, (int(value) for value in info), strict=True))
    length = where["kv_indptr"] - where["q_indptr"]
    return workspace[where[name] : where[name] + length].view(torch.int32)
