"""Caches beyond 2^32 elements: where a case's blocks stand in one, and the memory for it.

What golden reads is the case's own small cache. The subject is given the vast one, which holds the
same blocks about the borders. A product that is cut to 32 bits, signed or not, of elements or of
bytes, leads to other rows of it, or out of it.
"""

import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from conformance.core.case import Config
from conformance.core.inputs import World
from conformance.core.subject import Unobservable
from golden import PagedBytes

_BITS = (31, 32)
_NORESERVE = 0x4000  # MAP_NORESERVE of Linux, which the mmap module names from Python 3.13 on
_NAN_BYTE = 0xFF
"""Of these bytes every BF16, E4M3 code and float32 is a NaN."""


def borders(config: Config) -> list[int]:
    """Return the elements that are number 2^31 and 2^32, or whose bytes are, in order."""
    size = 1 if config.fp8 else 2
    return sorted({2**bits // unit for bits in _BITS for unit in (1, size)})


def places(config: Config, gap_rows: int) -> list[list[int]]:
    """Return for each border the blocks about it: the one before, its own, and the one behind.

    A border's row may lie between two blocks: then the nearest rows on both sides are these'.
    """
    stride = config.geometry.block_size + gap_rows
    width = config.head_dim_ckv + config.head_dim_kpe
    own = [element // width // stride for element in borders(config)]
    return [[block - 1, block, block + 1] for block in own]


@dataclass(frozen=True)
class Vast:
    """A cache and the block table that finds the world's blocks in it.

    cache [num_blocks, block_size, head_dim] as the subject is given it; paged: the same as golden
    reads it. table: int32, as World.block_table. scales: float32 [rows, groups], for group scales.
    """

    cache: Tensor
    paged: PagedBytes
    table: Tensor
    scales: Tensor | None

    def slots(self, request: int, tokens: Tensor) -> Tensor:
        """Return the cache rows (int64) of a request's tokens."""
        paged, tokens = self.paged, tokens.cpu().long()
        block = self.table[request].long()[tokens // paged.block_size]
        return block * paged.block_stride_rows + tokens % paged.block_size


@contextmanager
def vast(world: World, blocks: Sequence[Sequence[int]], gap_rows: int) -> Iterator[Vast]:
    """Yield the world's blocks in a cache of their own, the last of them its end.

    blocks: for each request the block numbers that its table is to have, all of them different.
    gap_rows: rows between blocks. Raises Unobservable where the system has no such address space.
    """
    config, width = world.config, world.config.head_dim_ckv + world.config.head_dim_kpe
    table = torch.tensor(blocks, dtype=torch.int32)
    size, count = config.geometry.block_size, int(table.max()) + 1
    stride, row_bytes = size + gap_rows, width * (1 if config.fp8 else 2)
    rows = (count - 1) * stride + size
    data = _memory(rows * row_bytes, world.device)
    scales = None
    if world.scales is not None:
        groups = world.scales.shape[1]
        scales = _memory(rows * groups * 4, world.device).view(torch.float32).view(rows, groups)
    stored = data.view(rows, row_bytes)
    if data.device.type == "cpu":  # elsewhere all of it is NaN
        _poison(stored, scales, table.flatten().tolist(), stride, size)
    given = world.raw.view(-1, row_bytes)
    for here, there in zip(
        world.block_table.flatten().tolist(), table.flatten().tolist(), strict=True
    ):
        old = slice(here * world.stride_rows, here * world.stride_rows + size)
        new = slice(there * stride, there * stride + size)
        stored[new] = given[old]
        if scales is not None and world.scales is not None:
            scales[new] = world.scales[old]
    paged = PagedBytes(
        data=data,
        fmt=config.fmt,
        head_dim_ckv=config.head_dim_ckv,
        head_dim_kpe=config.head_dim_kpe,
        block_size=size,
        block_stride_rows=stride,
        scale=config.k_scale,
        group_scales=scales,
    )
    typed = data if config.fp8 else data.view(torch.bfloat16)
    cache = typed.as_strided((count, size, width), (stride * width, width, 1))
    yield Vast(cache, paged, table, scales)
    if data.device.type == "cuda":
        del data, stored, typed, cache, paged, scales
        torch.cuda.empty_cache()  # the next one is of another size


def _memory(nbytes: int, device: str) -> Tensor:
    """uint8 [nbytes]: NaN on a GPU; on a CPU zeros, and the system has only what is touched."""
    if torch.device(device).type != "cpu":
        return torch.full((nbytes,), _NAN_BYTE, dtype=torch.uint8, device=device)
    try:
        pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
    except OSError as problem:
        raise Unobservable(f"an address space of {nbytes} bytes: {problem}") from problem
    return torch.frombuffer(pages, dtype=torch.uint8)


def _poison(
    stored: Tensor, scales: Tensor | None, blocks: Sequence[int], stride: int, size: int
) -> None:
    """Fill with NaN what lies between the blocks, and where too narrow a product leads to."""
    row_bytes, most = stored.shape[1], stored.shape[0]
    spans = [(block * stride, stride) for block in blocks]
    for block in blocks:
        first = block * stride * row_bytes
        spans += [((first - 2**bits) // row_bytes, size + 1) for bits in (*_BITS, 33)]
    for first, length in spans:
        span = slice(max(first, 0), min(max(first + length, 0), most))
        stored[span] = _NAN_BYTE
        if scales is not None:
            scales[span] = torch.nan
