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

from conformance.core.bench import Bench
from conformance.core.case import Config
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


def pitch(config: Config, padding: int) -> int:
    """Return the elements from a row's start to the next one's, `padding` of them behind it."""
    return config.head_dim_ckv + config.head_dim_kpe + padding


def places(config: Config, gap_rows: int, padding: int = 0) -> list[list[int]]:
    """Return for each border the blocks about it: the one before, its own, and the one behind.

    A border's row may lie between two blocks: then the nearest rows on both sides are these'.
    """
    stride = config.geometry.block_size + gap_rows
    own = [element // pitch(config, padding) // stride for element in borders(config)]
    return [[block - 1, block, block + 1] for block in own]


@dataclass(frozen=True)
class Vast:
    """A cache and the block table that finds the world's blocks in it.

    cache [num_blocks, block_size, head_dim] as the subject is given it; paged: the same as golden
    reads it, to whom padding is more of the rope part. table: int32, as World.block_table.
    scales: float32 [rows, groups], for group scales.
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

    def gather(self, slots: Tensor) -> Tensor:
        """Return the decoded rows at `slots`, without their padding: float64 [n, head_dim]."""
        return self.paged.gather(slots)[:, : self.cache.shape[2]]

    def blank(self, slots: Tensor) -> None:
        """Make NaN of the rows at `slots` (int64, on the cache's device), and of their scales."""
        self.paged.data.view(-1, self.paged.row_bytes)[slots] = _NAN_BYTE
        if self.scales is not None:
            self.scales[slots] = torch.nan


@contextmanager
def vast(
    bench: Bench, blocks: Sequence[Sequence[int]], gap_rows: int, padding: int = 0
) -> Iterator[Vast]:
    """Yield the world's blocks in a cache of their own, the last of them its end.

    Within the context the bench's subject is given it; behind it the memory is gone, whoever still
    refers to it. blocks: for each request the block numbers that its table is to have, all of them
    different. gap_rows: rows between blocks. padding: elements behind each row, whole units of 16
    bytes. Raises Unobservable where the system has no such address space, or the device not the
    memory.
    """
    world, config = bench.world, bench.config
    size, count = config.geometry.block_size, max(map(max, blocks)) + 1
    row_bytes = pitch(config, padding) * (1 if config.fp8 else 2)
    rows, scales = (count - 1) * (size + gap_rows) + size, None
    data = _memory(rows * row_bytes, world.device)
    try:
        if world.scales is not None:
            groups = world.scales.shape[1]
            scales = _memory(rows * groups * 4, world.device).view(torch.float32).view(rows, groups)
        place = _placed(bench, blocks, size + gap_rows, data.view(rows, row_bytes), scales)
        bench.relocate(place.cache, place.table, place.scales)
        yield place
    finally:
        # By its storage: the references of a failure's traceback would keep the memory.
        _release(data, scales)
        bench.come_back()


def _placed(
    bench: Bench,
    blocks: Sequence[Sequence[int]],
    stride: int,
    stored: Tensor,
    scales: Tensor | None,
) -> Vast:
    """Copy the world's blocks to `blocks` of `stored` [rows, row bytes], `stride` rows apart."""
    world, config = bench.world, bench.config
    table = torch.tensor(blocks, dtype=torch.int32)
    size, count = config.geometry.block_size, int(table.max()) + 1
    unit = 1 if config.fp8 else 2
    width, between = config.head_dim_ckv + config.head_dim_kpe, stored.shape[1] // unit
    if stored.device.type == "cpu":  # elsewhere all of it is NaN
        _poison(stored, scales, table.flatten().tolist(), stride, size)
    given = world.raw.view(-1, width * unit)
    for here, there in zip(
        world.block_table.flatten().tolist(), table.flatten().tolist(), strict=True
    ):
        old = slice(here * world.stride_rows, here * world.stride_rows + size)
        new = slice(there * stride, there * stride + size)
        stored[new, : width * unit] = given[old]
        if scales is not None and world.scales is not None:
            scales[new] = world.scales[old]
    data = stored.view(-1)
    paged = PagedBytes(
        data=data,
        fmt=config.fmt,
        head_dim_ckv=config.head_dim_ckv,
        head_dim_kpe=between - config.head_dim_ckv,
        block_size=size,
        block_stride_rows=stride,
        scale=config.k_scale,
        group_scales=scales,
    )
    typed = data if config.fp8 else data.view(torch.bfloat16)
    cache = typed.as_strided((count, size, width), (stride * between, between, 1))
    return Vast(cache, paged, table, scales)


def _memory(nbytes: int, device: str) -> Tensor:
    """uint8 [nbytes]: NaN on a GPU; on a CPU zeros, and the system has only what is touched."""
    if torch.device(device).type != "cpu":
        try:
            return torch.full((nbytes,), _NAN_BYTE, dtype=torch.uint8, device=device)
        except torch.OutOfMemoryError as problem:
            free, _ = torch.cuda.mem_get_info(device)
            raise Unobservable(f"{nbytes} bytes of device memory: {free} are free") from problem
    try:
        pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
    except OSError as problem:
        raise Unobservable(f"an address space of {nbytes} bytes: {problem}") from problem
    return torch.frombuffer(pages, dtype=torch.uint8)


def _release(*parts: Tensor | None) -> None:
    """Give memory back now; mapped pages go with the last reference to them."""
    for part in parts:
        if part is not None and part.untyped_storage().resizable():
            part.untyped_storage().resize_(0)
    if any(part is not None and part.device.type == "cuda" for part in parts):
        torch.cuda.empty_cache()  # the next one is of another size


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
