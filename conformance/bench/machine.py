"""Where the benchmark runs: a GPU, or a CPU that rehearses it."""

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from conformance.bench import directly
from conformance.bench.shape import TINY, CacheWrite, Parts, Shape
from conformance.bench.timer import GpuTimer, NoTimer, Timer
from conformance.bench.wrapper import Wrapper
from conformance.core import gpus
from conformance.subjects import measured, measured_errors, measured_writes
from conformance.twin.surface import NativeModule
from golden.inputs import Inputs

Engine = Callable[[Inputs], Tensor]
"""Computes a canonical case, BF16 [rows, num_heads, head_dim_ckv], or raises NotServed."""


@dataclass(frozen=True)
class Memory:
    """Bytes of device memory handed out and held, and of pinned host memory held, where told."""

    allocated: int
    reserved: int
    pinned: int | None


@dataclass(frozen=True)
class Machine:
    """What measures run on. shape: their sizes, before each sets its own.

    construct: the backend measured. wrapper: FlashInfer's, which may refuse by raising.
    memory: what is in use now; None where nothing is told. writes: cache writes of so many tokens.
    engines: what computes a canonical case, by name; `own` is the backend's.
    """

    shape: Shape
    timer: Timer
    construct: Callable[[Shape], Parts]
    wrapper: Callable[[Shape, torch.device], Any]
    memory: Callable[[], Memory | None]
    writes: Callable[[int], list[CacheWrite]]
    engines: Callable[[], Mapping[str, Engine]]
    rehearsal: bool = False
    own: str = measured_errors.NAME

    def sized(self, **changes: Any) -> Shape:
        """The shape with some of its sizes changed."""
        return replace(self.shape, **changes)


def obstacle() -> str | None:
    """Why this machine cannot be measured; None where it can. Chooses the first Hopper GPU."""
    found = gpus.visible_capabilities()
    if gpus.HOPPER in found:
        torch.cuda.set_device(found.index(gpus.HOPPER))
        return None
    seen = ", ".join(f"{major}.{minor}" for major, minor in found) or "no GPU"
    return f"no GPU of compute capability 9.0 is visible (found: {seen})"


def gpu() -> Machine:
    """The current GPU, with the installed FlashInfer; obstacle() must be None."""
    writes = measured_writes.factory(gpu=True)
    return Machine(
        Shape(), GpuTimer(), measured.factory(), Wrapper, _gpu_memory, writes, _gpu_engines
    )


def rehearsal() -> Machine:
    """The CPU: tiny sizes, FlashInfer simulated, nothing timed."""
    construct = measured.factory(NativeModule)
    writes = measured_writes.factory(gpu=False)
    return Machine(
        TINY, NoTimer(), construct, _no_wrapper, lambda: None, writes, _cpu_engines, rehearsal=True
    )


def _cpu_engines() -> dict[str, Engine]:
    return {measured_errors.NAME: measured_errors.factory(NativeModule)}


def _no_wrapper(shape: Shape, device: torch.device) -> Any:
    raise NotImplementedError("a rehearsal has no wrapper: it needs a GPU")


def _gpu_engines() -> dict[str, Engine]:
    device = torch.device("cuda", torch.cuda.current_device())
    return {
        measured_errors.NAME: measured_errors.factory(),
        "FlashInfer": lambda inputs: directly.attend(inputs, device),
    }


def _gpu_memory() -> Memory:
    gc.collect()
    torch.cuda.synchronize()
    return Memory(torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), _pinned())


def _pinned() -> int | None:
    """Pinned bytes that torch's host allocator holds; None where this torch does not tell.

    Versions call them by different names, beside others of what is in use, which is less.
    """
    tell = getattr(torch.cuda, "host_memory_stats", None)
    told = tell() if tell is not None else {}
    keys = ("reserved_bytes.current", "allocated_bytes.current")
    return max((int(told[key]) for key in keys if key in told), default=None)
