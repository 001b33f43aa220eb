"""The sizes that a measure runs on, and what it asks of the backend that it measures."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from conformance.bench.watch import Spent

Call = Callable[[], object]


class NotServed(Exception):
    """A case that a backend refuses, in its own words."""


@dataclass(frozen=True)
class Shape:
    """A backend's configuration and its batch.

    rows: live rows, one per request. long, short: contexts of a row, so far apart that no plan for
    the one covers the other; long is a multiple of index_kpool.
    """

    num_heads: int = 64
    max_tokens: int = 8192
    rows: int = 64
    index_topk: int = 2048
    index_kpool: int = 4
    topk_width: int = 2176
    head_dim_ckv: int = 512
    fp8: bool = False
    long: int = 5000
    short: int = 500

    @property
    def cache(self) -> str:
        """The cache's dtype, in a word."""
        return "FP8" if self.fp8 else "BF16"

    def planned(self, context: int) -> int:
        """What FlashInfer's wrapper is to plan for a row of this context: its valid count."""
        if context <= self.index_topk:
            return context
        return self.index_topk + context % self.index_kpool


TINY = Shape(rows=3, index_topk=128, topk_width=136, head_dim_ckv=64, long=148, short=20)
"""What a rehearsal runs on."""


@dataclass(frozen=True)
class NativePlan:
    """What FlashInfer's native module planned by itself.

    staging: the host block that it wrote, uint8 [staged bytes]. written: bool [staged bytes],
    whether it wrote that byte. run: queues the attention of that schedule.
    """

    staging: Tensor
    written: Tensor
    run: Call


@dataclass(frozen=True)
class CacheWrite:
    """A write of tokens into an FP8 cache.

    scaling: "tensor" or "group". size: bytes that it reads and writes. write, copy: queue the
    write, and a copy that reads and writes as many bytes in sum.
    """

    scaling: str
    head_dim_kpe: int
    size: int
    runtime: Any
    write: Call
    copy: Call


class Parts(Protocol):
    """A constructed backend, open to measurement; its plan state is made by `allocate`."""

    runtime: Any

    def allocate(self) -> None:
        """Make the plan state, unless it is made."""

    def batch(self, contexts: Sequence[int], *, known: bool = True) -> Any:
        """A step of one row per context, on the device; known: the host has bounds, exact ones."""

    def build(self, batch: Any) -> Any:
        """Plan a step and return its metadata."""

    def forward(self, metadata: Any) -> None:
        """Compute a step that was built last."""

    def watched(self) -> AbstractContextManager[Spent]:
        """Watch where a build spends the host's time."""

    def pieces(self) -> dict[str, Call]:
        """Each of the kernels around the attention kernel, and a whole forward, by name."""

    def attention(self, padded_rows: int) -> dict[str, Call]:
        """The attention kernel under a plan of the live rows alone, and of padded ones."""

    def native(self, contexts: Sequence[int], padded_rows: int = 0) -> NativePlan:
        """What the native module plans for these rows, with padding rows behind them."""

    def workspace(self) -> Tensor:
        """The int workspace as it stands on the device, read back."""

    def plans(self) -> tuple[int, int]:
        """How many plans were made and how many were reused so far."""

    def estimate(self) -> tuple[int, int]:
        """Bytes that a plan state was said to take on the device, and pinned for each plan."""
