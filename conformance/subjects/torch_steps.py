"""A step's device work in plain torch: row map, clamp, pack and rescale.

No host reads and no shape that depends on values, so each may be captured, and queued on any
runtime as it is. How many rows a step has decides no kernel either: one that was not yet loaded
would wait for a busy GPU (CUDA's lazy loading).
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from conformance.core.case import Geometry


def contexts_of(starts: Tensor, lengths: Tensor) -> Tensor:
    """Return each row's context on the host from starts [requests + 1] and lengths [requests]."""
    shifted = torch.repeat_interleave(lengths - starts[1:] + 1, starts.diff())
    return (shifted + torch.arange(shifted.numel())).clamp(min=0)


def valid_of(contexts: Tensor, geometry: Geometry) -> Tensor:
    """Return how many entries the indexer selects for each context, on any device."""
    beyond = geometry.index_topk + contexts % geometry.index_kpool
    return torch.where(contexts <= geometry.index_topk, contexts, beyond)


def map_rows(
    starts: Tensor, lengths: Tensor, live_rows: int, live: Tensor, request: Tensor, context: Tensor
) -> None:
    """Fill each row's liveness, request and context; rows that are not live see nothing."""
    row = torch.arange(request.numel(), dtype=torch.int32, device=request.device)
    live.copy_(row < live_rows)
    owner = torch.searchsorted(starts[1:].contiguous(), row, right=True)
    unknown = (owner >= lengths.numel()) | (row >= live_rows)
    owner = owner.masked_fill(unknown, 0)
    request.copy_(owner)
    seen = lengths[owner] - starts[owner + 1] + row + 1
    context.copy_(seen.clamp(min=0).masked_fill(unknown, 0))


def clamp(
    planned: Tensor,
    current: Tensor,
    context: Tensor,
    geometry: Geometry,
    at: Mapping[str, int],
    capacity: int,
    fields: Sequence[str],
) -> None:
    """Copy a planned schedule and end its work items at what their rows see, in `fields` alone.

    planned, current: uint8. at: byte offsets of the arrays, each of `capacity` entries; those
    behind the last work item hold anything and stay without meaning.
    """
    current.copy_(planned)
    words = planned.view(torch.int32)

    def array(name: str) -> Tensor:
        return words[at[name] // 4 : at[name] // 4 + capacity]

    row = array("q_indptr").clamp(0, context.numel() - 1)
    valid = valid_of(context[row.long()], geometry)
    ended = {
        "kv_end": torch.maximum(array("kv_start"), torch.minimum(array("kv_end"), valid)),
        "kv_len": torch.minimum(array("kv_len"), valid),
    }
    for name in fields:
        current.view(torch.int32)[at[name] // 4 : at[name] // 4 + capacity] = ended[name]


def stop(
    live: Tensor, rows: int, current: Tensor, at: Mapping[str, int], clusters: int, num_sms: int
) -> None:
    """Let a schedule run nothing where rows behind `rows` are live: there are no tensors for them.

    live: bool, per row. current: uint8, until the next clamp. at: byte offsets of the arrays.
    """
    words, keep = current.view(torch.int32), (~live[rows:].any()).int()
    for name, count in (
        ("merge_packed_offset_start", num_sms),
        ("merge_packed_offset_end", num_sms),
        ("work_indptr", clusters + 1),
    ):
        words[at[name] // 4 : at[name] // 4 + count] *= keep


def pack(
    topk: Tensor,
    table: Tensor,
    request: Tensor,
    context: Tensor,
    offsets: Tensor,
    indices: Tensor,
    num_blocks: int,
    block_size: int,
    stride_rows: int,
) -> None:
    """Write the slots of each row's valid entries, in order, to where its plan has them.

    What its plan has behind them becomes the first of them again. indices: int32, one element
    longer than any plan; that last one takes what is not to be written.
    """
    (rows, width), device = topk.shape, topk.device
    block_number = topk // block_size
    valid = (topk >= 0) & (topk < context[:rows, None]) & (block_number < table.shape[1])
    block = table[request[:rows, None], block_number.masked_fill(~valid, 0)]
    valid &= (block >= 0) & (block < num_blocks)
    slot = (block * stride_rows + topk % block_size).int()
    one = valid.flatten().long()
    upto = one.cumsum(0)  # over all rows: a scan along rows has a kernel of its own for one row
    ends = torch.arange(1, rows + 1, device=device) * width
    before = (upto - one)[ends - width]
    kept = (upto[ends - 1] - before)[:, None]
    start, room = offsets[:rows].long(), (offsets[1 : rows + 1] - offsets[:rows])[:, None]
    rank = (upto - one).view(rows, width) - before[:, None]
    column, nowhere = torch.arange(width, device=device), indices.numel() - 1
    place = (start[:, None] + rank).masked_fill(~valid | (rank >= room), nowhere)
    indices.scatter_(0, place.flatten(), slot.flatten())
    behind = (column >= kept) & (column < room)
    place = (start[:, None] + column).masked_fill(~behind, nowhere)
    slot = torch.zeros_like(slot) + indices[start][:, None]
    indices.scatter_(0, place.flatten(), slot.flatten())


def unbounded(table: Tensor) -> Tensor:
    """Return a block table with all the rows that its storage holds.

    A captured forward may be replayed for more requests than it was captured with.
    """
    behind = table.untyped_storage().nbytes() // table.element_size() - table.storage_offset()
    rows = (behind - table.shape[1]) // table.stride(0) + 1
    return table.as_strided((rows, table.shape[1]), table.stride())


def rescale(out: Tensor, live: Tensor, factor: float) -> None:
    """Turn live rows of FP16 into BF16 times a factor, in place; other rows keep their bytes.

    live: bool, for at least as many rows as `out` has.
    """
    scaled = (out.view(torch.float16).float() * factor).to(out.dtype)
    computed = live[: out.shape[0]] & ~live[out.shape[0] :].any()  # see `stop`
    out.copy_(torch.where(computed[:, None, None], scaled, out))


def extremes(values: Tensor, result: Tensor) -> None:
    """Write the least and the largest value to `result` [2]."""
    result.copy_(torch.stack(values.aminmax()))
