"""What FlashInfer's Python wrapper looks at before it plans, and how it refuses.

Sources: those of `conformance.twin.wrapping`. Classes and order are FlashInfer's, the words are
not; each names what was found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from conformance.twin.planner import split_limit
from conformance.twin.wrapping import MOST_WORKS

FA3_WIDTHS = (128, 256, 512)
_Q_TILE = 64
_KV_TYPES = (torch.float16, torch.bfloat16, torch.float8_e4m3fn)


class PlanUnsupported(ValueError):
    """The plan is well formed, and this backend has nothing for it."""


def check_csr(arrays: Mapping[str, torch.Tensor], page_size: int) -> None:
    """Refuse with ValueError what is no packed CSR of int32 vectors.

    arrays: qo_indptr, kv_indptr, kv_indices, kv_len_arr. Where the batch sizes do not agree,
    FlashInfer leaves the rest of its checks out for tensors given one by one.
    """
    for name, tensor in arrays.items():
        if tensor.dim() != 1:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; it must have rank 1")
        if tensor.dtype != torch.int32:
            raise ValueError(f"{name} has dtype {tensor.dtype}; it must be torch.int32")
        if not tensor.is_contiguous():
            raise ValueError(f"{name} is not contiguous")
    starts, offsets = (_offsets(name, arrays[name]) for name in ("qo_indptr", "kv_indptr"))
    lengths = arrays["kv_len_arr"].long()
    agree = offsets.numel() == starts.numel() == lengths.numel() + 1
    held, needed = arrays["kv_indices"].numel(), int(offsets[-1])
    if agree and needed > held:
        raise ValueError(f"kv_indices has {held} entries, kv_indptr ends at {needed}")
    if bool((lengths < 0).any()):
        raise ValueError(f"kv_len_arr holds {int(lengths.min())}; lengths must not be negative")
    pages = (lengths + page_size - 1) // page_size
    if agree and not torch.equal(pages, offsets.diff()):
        row = int((pages != offsets.diff()).nonzero()[0])
        raise ValueError(
            f"kv_indptr is not packed: row {row} has {int(offsets.diff()[row])} pages, its length "
            f"needs {int(pages[row])}"
        )


def _offsets(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.numel():
        raise ValueError(f"{name} is empty; it must have at least one element")
    values = tensor.long()
    if int(values[0]) != 0:
        raise ValueError(f"{name} starts at {int(values[0])}; it must start at zero")
    if bool((values.diff() < 0).any()):
        raise ValueError(f"{name} falls; it must not")
    return values


def check_reserved(
    reserved: Mapping[str, torch.Tensor | None], arrays: Mapping[str, torch.Tensor]
) -> None:
    """Refuse with ValueError what cannot be copied into a graph's reserved buffers as they are."""
    targets: dict[str, torch.Tensor] = {}
    for name, buffer in reserved.items():
        if buffer is None:
            continue
        given = arrays[name]
        if buffer.dtype != torch.int32:
            raise ValueError(f"reserved {name} has dtype {buffer.dtype}; it must be torch.int32")
        if not buffer.is_contiguous():
            raise ValueError(f"reserved {name} is not contiguous")
        if name == "kv_indices":
            if buffer.dim() != 1:
                raise ValueError(f"reserved {name} has shape {tuple(buffer.shape)}, not rank 1")
            fits = buffer.numel() >= given.numel()
        else:
            fits = buffer.shape == given.shape
        if not fits:
            raise ValueError(
                f"reserved {name} has shape {tuple(buffer.shape)}, given is {tuple(given.shape)}"
            )
        targets[name] = buffer[: given.shape[0]]
    whole = {name: buffer for name, buffer in reserved.items() if buffer is not None}
    for one, first in whole.items():
        for other, second in whole.items():
            if one < other and _overlap(first, second):
                raise ValueError(f"reserved {one} and {other} overlap")
    for name, given in arrays.items():
        for target_name, target in targets.items():
            same = name == target_name and _extent(given) == _extent(target)
            if not same and _overlap(given, target):
                raise ValueError(f"given {name} overlaps reserved {target_name}")


def check_all_reserved(reserved: Mapping[str, torch.Tensor | None]) -> None:
    """Refuse with ValueError a graph without a reserved buffer for each of the four."""
    missing = [name for name, buffer in reserved.items() if buffer is None]
    if missing:
        raise PlanUnsupported(f"a graph needs reserved buffers; missing: {', '.join(missing)}")


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size()


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    return max(_extent(one)[0], _extent(other)[0]) < min(_extent(one)[1], _extent(other)[1])


def check_types(q_type: torch.dtype, kv_type: torch.dtype, ckv: int, kpe: int) -> None:
    """Refuse with ValueError cache types and FP8 dimensions without a kernel (all versions)."""
    if kv_type not in _KV_TYPES:
        raise PlanUnsupported(f"kv_data_type is {kv_type}; there are {list(_KV_TYPES)}")
    if kpe < 0:
        raise ValueError(f"head_dim_kpe is {kpe}; it must not be negative")
    if kv_type == torch.float8_e4m3fn and q_type != torch.bfloat16:
        raise PlanUnsupported(f"q_data_type is {q_type}; an FP8 cache goes with torch.bfloat16")


def check_dims(kv_type: torch.dtype, ckv: int, kpe: int, *, fa3: bool) -> None:
    """Refuse with ValueError head dimensions without a kernel. fa3: look at BF16 caches, too."""
    if kv_type == torch.float8_e4m3fn and (ckv != 512 or kpe not in (0, 64)):
        raise PlanUnsupported(f"an FP8 cache has {ckv} and {kpe} channels; needed: 512, 0 or 64")
    if fa3 and (ckv not in FA3_WIDTHS or kpe % 64):
        raise PlanUnsupported(
            f"head dimensions {ckv} and {kpe}; there are {FA3_WIDTHS} and multiples of 64"
        )


def check_works(starts: Sequence[int], lengths: Sequence[int], heads: int, num_sms: int) -> None:
    """Refuse with ValueError a plan of more work items than a schedule holds, by its number."""
    rows = len(lengths)
    if len(starts) < rows + 1:
        raise PlanUnsupported(f"qo_indptr has {len(starts)} entries for {rows} rows")
    if not rows:
        raise PlanUnsupported("a plan of no rows; the native planner divides by their number")
    counts = [starts[i + 1] - starts[i] for i in range(rows)]
    cluster = 2 if sum(counts) * heads // rows > _Q_TILE else 1
    tile = _Q_TILE * cluster
    tiles = [-(-count * heads // tile) for count in counts]
    least = sum(tiles)
    if least > MOST_WORKS:
        raise PlanUnsupported(f"a plan of at least {least} work items; a schedule has {MOST_WORKS}")
    total = sum(length * some for length, some in zip(lengths, tiles, strict=True))
    limit = split_limit(total, num_sms // cluster)
    works = sum(
        some * max(1, -(-length // limit)) for length, some in zip(lengths, tiles, strict=True)
    )
    if works > MOST_WORKS:
        raise PlanUnsupported(f"a plan of {works} work items; a schedule has {MOST_WORKS}")


def float_workspace_bytes(starts: Sequence[int], rows: int, heads: int, ckv: int, sms: int) -> int:
    """Bytes of all partial results that a plan may make (two of 64 rows for each SM)."""
    cluster = 2 if (starts[rows] - starts[0]) * heads // rows > _Q_TILE else 1
    partial_rows = 2 * (sms // cluster) * cluster * _Q_TILE
    return partial_rows * (2 * ckv + 4)
