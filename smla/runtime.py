"""The runtime seam: every effect on a device goes through one of these objects, and only here.

`CudaRuntime` is the real one; `CpuRuntime` does each thing at once on a CPU, with the torch twin of
a kernel or its Triton source interpreted. A test suite may bring its own with the same methods.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from smla import errors

if TYPE_CHECKING:
    from smla.kernels import Kernel

_SINK_BYTES = 16


class Graph(Protocol):
    """A recorded piece of device work."""

    def replay(self) -> None:
        """Run the recorded work again, with the values its buffers hold by then."""


class Runtime(Protocol):
    """What smla asks of a device. All tensors named dst, src or device live on `device`."""

    device: torch.device
    capability: tuple[int, int]
    num_sms: int

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Allocate device memory (construction and outputs only)."""

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Allocate zeroed device memory (construction only)."""

    def staging(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a host block that no queued upload still reads; ask anew for every plan."""

    def upload(self, dst: Tensor, src: Tensor) -> None:
        """Queue a copy from a `staging` block to the device; never waits."""

    def retain(self, block: Tensor) -> None:
        """Say that device work which others have queued reads a `staging` block."""

    def fill(self, dst: Tensor, value: int) -> None:
        """Queue filling of device memory with one value."""

    def launch(
        self, kernel: "Kernel", grid: tuple[int, ...], args: tuple[Any, ...], meta: dict[str, int]
    ) -> None:
        """Queue a kernel of `smla.kernels`."""

    def native_plan(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call FlashInfer's planner, which works on the host, and return what it returns."""

    def native_run(self, function: Callable[..., Any], *args: Any) -> None:
        """Queue FlashInfer's attention kernel."""

    def read(self, src: Tensor) -> Tensor:
        """Wait for the device and return a host copy; not for hot paths."""

    def write(self, dst: Tensor, src: Tensor) -> None:
        """Fill device memory from any host tensor; may wait, not for hot paths."""

    def synchronize(self) -> None:
        """Wait for all queued work."""

    def stream(self) -> Any:
        """Return the stream that work is queued on from here; equal for the same one."""

    def follow(self, stream: Any) -> None:
        """Queue what comes behind all that stands on another stream; does not wait."""

    def capturing(self) -> bool:
        """Return whether a graph capture is on."""

    @contextmanager
    def capture(self) -> Iterator[Graph]:
        """Record the work queued in the `with` block instead of running it."""


class CudaRuntime:
    """Effects on the current CUDA stream of one GPU."""

    def __init__(self, device: torch.device | str = "cuda") -> None:
        if not torch.cuda.is_available():
            raise errors.KernelModeError(
                "CUDA runtime",
                found="no visible CUDA device",
                allowed="a GPU of compute capability 9.0 and a torch built for CUDA",
                remedy="run on a Hopper host, or pass a CpuRuntime and a twin of FlashInfer",
            )
        self.device = torch.device(device)
        if self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())
        current = torch.cuda.current_device()
        if self.device.index != current:
            raise errors.DeviceError(
                "CUDA runtime",
                found=str(self.device),
                allowed=f"the current device, cuda:{current}: kernels launch there",
                remedy="torch.cuda.set_device() first, or one process per GPU",
            )
        self.capability = torch.cuda.get_device_capability(self.device)
        self.num_sms = torch.cuda.get_device_properties(self.device).multi_processor_count
        self._sink = self.empty((_SINK_BYTES,), torch.uint8)
        self._compiled: dict[tuple[object, ...], Any] = {}

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device)

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def staging(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        # torch's caching host allocator hands a block out again only after every copy that was
        # queued from it has run, so any number of plans may be in flight.
        return torch.empty(shape, dtype=dtype, pin_memory=True, device="cpu")

    def upload(self, dst: Tensor, src: Tensor) -> None:
        if not src.is_pinned():
            raise errors.KernelModeError(
                "upload source",
                found="pageable host memory",
                allowed="pinned memory: a pageable copy may wait for the stream",
                remedy="take the block from runtime.staging()",
            )
        dst.copy_(src, non_blocking=True)

    def retain(self, block: Tensor) -> None:
        # The host allocator knows of copies that torch makes and of no others. One of a few bytes,
        # queued behind the others' work on the same stream, makes it wait for them all.
        self._sink.copy_(block.view(-1).view(torch.uint8)[: self._sink.numel()], non_blocking=True)

    def fill(self, dst: Tensor, value: int) -> None:
        dst.fill_(value)

    def launch(
        self, kernel: "Kernel", grid: tuple[int, ...], args: tuple[Any, ...], meta: dict[str, int]
    ) -> None:
        if 0 in grid:
            return
        # Triton's own launch derives the variant to run from the arguments anew each time. These
        # kernels have one variant per set of meta-parameters (see `smla.kernels`), kept here.
        key = (kernel.name, *meta.values())
        compiled = self._compiled.get(key)
        if compiled is None:
            self._compiled[key] = kernel.triton[grid](*args, **meta, num_warps=kernel.num_warps)
        else:
            compiled[(*grid, 1, 1)[:3]](*args, *meta.values())

    def native_plan(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    def native_run(self, function: Callable[..., Any], *args: Any) -> None:
        function(*args)

    def read(self, src: Tensor) -> Tensor:
        return src.to("cpu", copy=True)

    def write(self, dst: Tensor, src: Tensor) -> None:
        dst.copy_(src)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def stream(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self.device)

    def follow(self, stream: torch.cuda.Stream) -> None:
        self.stream().wait_stream(stream)

    def capturing(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    @contextmanager
    def capture(self) -> Iterator[Graph]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            yield graph


class _Recording:
    """A graph of the immediate runtime: the calls that were queued during its capture."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def replay(self) -> None:
        for call in self.calls:
            call()


class CpuRuntime:
    """The immediate runtime: device memory is host memory and queued work runs at once.

    kernels: "torch" runs each kernel's torch twin, "interpret" its Triton source in Triton's
    interpreter, which needs TRITON_INTERPRET=1 in the environment before triton is imported.
    capability, num_sms: what the pretended device says of itself.
    """

    def __init__(
        self,
        *,
        kernels: str = "torch",
        num_sms: int = 132,
        capability: tuple[int, int] = (9, 0),
    ) -> None:
        interpreting = os.environ.get("TRITON_INTERPRET") == "1"
        if kernels not in ("torch", "interpret") or (kernels == "interpret" and not interpreting):
            raise errors.KernelModeError(
                "kernels",
                found=f"{kernels!r} with TRITON_INTERPRET={os.environ.get('TRITON_INTERPRET')}",
                allowed="'torch', or 'interpret' in a process started with TRITON_INTERPRET=1",
                remedy="set the variable before the process imports triton",
            )
        self.device = torch.device("cpu")
        self.capability = capability
        self.num_sms = num_sms
        self.kernels = kernels
        self._recording: _Recording | None = None
        self._stream = 0

    def _queue(self, call: Callable[[], None]) -> None:
        if self._recording is None:
            call()
        else:
            self._recording.calls.append(call)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device)

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def staging(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device)

    def upload(self, dst: Tensor, src: Tensor) -> None:
        self._queue(lambda: _assign(dst, src))

    def retain(self, block: Tensor) -> None:
        return

    def fill(self, dst: Tensor, value: int) -> None:
        self._queue(lambda: _set(dst, value))

    def launch(
        self, kernel: "Kernel", grid: tuple[int, ...], args: tuple[Any, ...], meta: dict[str, int]
    ) -> None:
        if 0 in grid:
            return
        if self.kernels == "torch":
            self._queue(lambda: kernel.torch(*args, **meta))
        else:
            self._queue(lambda: kernel.triton[grid](*args, **meta))

    def native_plan(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    def native_run(self, function: Callable[..., Any], *args: Any) -> None:
        self._queue(lambda: function(*args))

    def read(self, src: Tensor) -> Tensor:
        return src.clone()

    def write(self, dst: Tensor, src: Tensor) -> None:
        dst.copy_(src)

    def synchronize(self) -> None:
        return

    def stream(self) -> int:
        return self._stream

    def follow(self, stream: int) -> None:
        return

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Pretend another stream in the `with` block; what it queues still runs at once."""
        self._stream += 1
        try:
            yield
        finally:
            self._stream -= 1

    def capturing(self) -> bool:
        return self._recording is not None

    @contextmanager
    def capture(self) -> Iterator[Graph]:
        self._recording = recording = _Recording()
        try:
            yield recording
        finally:
            self._recording = None


def _assign(dst: Tensor, src: Tensor) -> None:
    dst.copy_(src)


def _set(dst: Tensor, value: int) -> None:
    dst.fill_(value)
