"""What the twin says a kernel touches under a given schedule, without the kernel's real inputs."""

from collections.abc import Sequence

import torch
from torch import Tensor

from conformance.core.schedule import FIELDS
from conformance.twin.access import AccessLog
from conformance.twin.surface import NativeModule

_Q_TILE = 64


def touched(
    plan_info: Sequence[int],
    workspace: Tensor,
    *,
    rows: int,
    num_heads: int,
    num_sms: int,
    indices: int,
) -> list[set[int]]:
    """Return, per row, the positions whose index entry or cache row the kernel reads.

    workspace: the int workspace as the kernel finds it (uint8, host). indices: length of
    kv_indices. Addresses do not depend on values: zeros do.
    """
    where, log = dict(zip(FIELDS, plan_info, strict=True)), AccessLog()
    partial_rows = 2 * where["num_blks_x"] * where["num_blks_y"] * _Q_TILE
    width = where["partial_lse"] // (2 * partial_rows)  # BF16 partial outputs stand before it
    query = torch.zeros(rows, num_heads, width, dtype=torch.bfloat16)
    cache = torch.zeros(1, 1, width, dtype=torch.bfloat16)
    NativeModule(num_sms=num_sms, log=log).run(
        torch.zeros(where["partial_lse"] + 4 * partial_rows, dtype=torch.uint8),
        workspace,
        plan_info,
        query,
        query[..., :0],
        cache,
        cache[..., :0],
        torch.zeros(indices, dtype=torch.int32),
        torch.empty_like(query),
        None,
        0,
        num_heads,
        1,
        1.0,
        False,
        1.0,
        1.0,
        None,
    )
    return [log.touched_positions(row) for row in range(rows)]
