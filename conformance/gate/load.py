"""A decode step of a chosen size on any subject: its buffers, and the calls that are measured.

Rows share a pool of cache blocks larger than the GPU's L2 and small beside its memory, so that two
packages fit on one GPU at once.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from conformance.core.case import Config, Geometry, valid_count
from conformance.core.subject import HostBatch, Instance, Subject, Tier

_SCALE = 0.375  # no power of two, as an FP8 cache's scale is
_SLICE = 64  # blocks written at once
_SEED = 20


@dataclass(frozen=True)
class Shape:
    """What is measured. rows: of one request each. max_tokens: rows that are reserved.

    long, short: contexts of a row, so far apart that no plan for the one serves the other. blocks:
    of the pool.
    """

    rows: int
    heads: int
    fp8: bool
    max_tokens: int
    geometry: Geometry
    head_dim_ckv: int = 512
    long: int = 5000
    short: int = 500
    blocks: int = 2048

    @property
    def label(self) -> str:
        """In words, the same in every run."""
        cache = "FP8" if self.fp8 else "BF16"
        return f"{self.rows} rows, {self.heads} heads, {cache}, {self.max_tokens} reserved"

    def config(self) -> Config:
        """What a subject is constructed for."""
        return Config(
            num_heads=self.heads,
            head_dim_ckv=self.head_dim_ckv,
            head_dim_kpe=0,
            fp8=self.fp8,
            geometry=self.geometry,
            max_tokens=self.max_tokens,
            sm_scale=self.head_dim_ckv**-0.5,
            k_scale=_SCALE if self.fp8 else 1.0,
        )


class Load:
    """A subject under a shape's load.

    clock: the runtime to give to a subject that takes one, None for its own. What the subject
    refuses it raises.
    """

    def __init__(self, subject: Subject, tier: Tier, shape: Shape, clock: Any = None) -> None:
        self.shape, config = shape, shape.config()
        more = {} if clock is None else {"clock": clock}
        self.instance: Instance = subject.construct(config, tier, interpret=False, **more)
        self.runtime: Any = self.instance.runtime
        self._k_scale = config.k_scale if shape.fp8 else None
        self._more: dict[str, Tensor] = {}
        if shape.fp8 and "scale-check" in subject.capabilities:
            self._more["device_k_scale"] = self._placed(torch.tensor([config.k_scale]))
        random_ = torch.Generator().manual_seed(_SEED)
        rows, heads, ckv = shape.rows, shape.heads, shape.head_dim_ckv
        query = torch.randn((rows, heads, ckv), generator=random_).bfloat16()
        self._q_nope = self._placed(query)
        self._q_pe = self.runtime.empty((rows, heads, 0), torch.bfloat16)
        self._out = self.runtime.zeros((rows, heads, ckv), torch.bfloat16)
        self._cache = self._filled(random_)
        size = shape.geometry.block_size
        table = torch.randint(
            shape.blocks, (rows, -(-shape.long // size)), generator=random_, dtype=torch.int32
        )
        self._table = self._placed(table)
        self._topk = {
            context: self._placed(self._selection(context, random_))
            for context in (shape.long, shape.short)
        }
        self._built: tuple[int, Any] | None = None
        self._batches = {n: self._batch(n) for n in (shape.long, shape.short)}

    def build(self, context: int) -> None:
        """Plan a step of rows of this context, one of the shape's two."""
        self._built = context, self.instance.build(self._batches[context])

    def forward(self) -> None:
        """Queue the forward of the step that was built last."""
        assert self._built is not None, "build comes first"
        context, metadata = self._built
        self.instance.forward(
            self._q_nope,
            self._q_pe,
            self._cache,
            self._topk[context],
            metadata,
            self._k_scale,
            self._out,
            **self._more,
        )

    def output(self) -> Tensor:
        """The outputs on the host, BF16 [rows, heads, head_dim_ckv]."""
        out: Tensor = self.runtime.read(self._out)
        return out

    def replan(self) -> None:
        """Build what the plan before it does not serve."""
        before = self._built[0] if self._built is not None else None
        self.build(self.shape.short if before == self.shape.long else self.shape.long)

    def reuse(self) -> None:
        """Build what the plan before it serves, from the second in a row on."""
        self.build(self.shape.long)

    def graph(self, launches: int) -> Any:
        """A graph of so many forwards of a step; what a first one compiles is compiled before."""
        self.build(self.shape.long)
        self.forward()
        self.runtime.synchronize()
        with self.runtime.capture() as graph:
            for _ in range(launches):
                self.forward()
        return graph

    def plans(self) -> int | None:
        """How many plans were made so far; None where the subject does not tell."""
        return self.instance.observe().plans

    def waits(self) -> int | None:
        """How often the host has waited for the device; None where only a held one can tell."""
        return self.instance.observe().waits

    def _batch(self, context: int) -> HostBatch:
        rows = self.shape.rows
        lengths = torch.full((rows,), context, dtype=torch.int32)
        starts = torch.arange(rows + 1, dtype=torch.int32)
        return HostBatch(
            query_start_loc_cpu=starts,
            query_start_loc=self._placed(starts),
            seq_lens=self._placed(lengths),
            seq_lens_cpu_upper_bound=lengths,
            block_table=self._table,
            num_padded_tokens=rows,
        )

    def _selection(self, context: int, random_: torch.Generator) -> Tensor:
        """Which tokens an indexer selected: distinct ones in any order, then -1."""
        geometry, rows = self.shape.geometry, self.shape.rows
        count = valid_count(context, geometry)
        topk = torch.full((rows, geometry.topk_width), -1, dtype=torch.int32)
        for row in topk:
            row[:count] = torch.randperm(context, generator=random_, dtype=torch.int32)[:count]
        return topk

    def _filled(self, random_: torch.Generator) -> Tensor:
        """The cache [blocks, block size, head dim], a part of it drawn and repeated."""
        shape, size = self.shape, self.shape.geometry.block_size
        part = torch.randn((_SLICE, size, shape.head_dim_ckv), generator=random_).bfloat16()
        if shape.fp8:
            part = part.to(torch.float8_e4m3fn).view(torch.uint8)
        cache: Tensor = self.runtime.empty((shape.blocks, *part.shape[1:]), part.dtype)
        for first in range(0, shape.blocks, _SLICE):
            count = min(_SLICE, shape.blocks - first)
            self.runtime.write(cache[first : first + count], part[:count])
        return cache

    def _placed(self, tensor: Tensor) -> Tensor:
        placed: Tensor = self.runtime.empty(tuple(tensor.shape), tensor.dtype)
        self.runtime.write(placed, tensor)
        return placed
