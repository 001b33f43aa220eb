"""The clock: a runtime whose device runs later than the host, as a GPU does.

It offers what a backend asks of a device (allocation, staging, uploads, launches, native calls,
graphs) and queues all device work in order. The queue runs when the host waits, when a test steps
it, or a little at a time from a seed. So plans that overtake a copy, stale frames and waits on the
hot path exist on a CPU, and one seed replays one history.

Copies from host memory follow CUDA (Runtime API, "API synchronization behavior"): pinned memory is
read when the copy executes, pageable memory when it is issued, and above 64 KiB the issuer waits
first. One queue, whatever the stream, and one thread: nothing here is thread-safe.
"""

from __future__ import annotations

import math
import os
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from conformance.twin.errors import CaptureError, TwinDomainError
from conformance.twin.pinned import POISON, HostCopy, PinnedPool

PAGEABLE_SNAPSHOT_BYTES = 64 << 10  # a pageable copy up to here never waits
_ALL, _NONE = 0.1, 0.6  # of the draws between two calls; the others run one to three calls
_MOST_AT_ONCE = 3

DeviceCall = Callable[[], None]


class Event:
    """A mark in the queue."""

    def __init__(self, clock: Clock, position: int) -> None:
        self._clock, self._position = clock, position

    def done(self) -> bool:
        """Whether all work queued before the mark has run."""
        return self._clock.finished >= self._position


class Recording:
    """A captured graph: device work that each replay queues again."""

    def __init__(self, clock: Clock) -> None:
        self.calls: list[DeviceCall] = []
        self._clock = clock

    def replay(self) -> None:
        """Queue the recorded work; it finds in its buffers what they hold when it runs."""
        if self._clock.capturing():
            raise CaptureError("a replay inside a capture: end the capture first")
        for call in self.calls:
            self._clock.enqueue(call)


class Clock:
    """A simulated Hopper device with one stream.

    seed: None runs queued work only when waited for or stepped. With a number, after each call
    queued, a number of the oldest calls drawn from the seed runs: most often none, sometimes all.
    num_sms, capability: what the device says of itself. kernels: "torch" runs a kernel's torch
    twin, "interpret" its Triton source (TRITON_INTERPRET=1 must be set before triton is imported).

    An error of device work surfaces, as it was raised, at the next wait; what was queued behind it
    until then never runs.
    """

    def __init__(
        self,
        seed: int | None = None,
        *,
        num_sms: int = 132,
        capability: tuple[int, int] = (9, 0),
        kernels: str = "torch",
    ) -> None:
        interpreting = os.environ.get("TRITON_INTERPRET") == "1"
        if kernels not in ("torch", "interpret") or (kernels == "interpret" and not interpreting):
            raise TwinDomainError(
                f"kernels {kernels!r} with TRITON_INTERPRET={os.environ.get('TRITON_INTERPRET')}: "
                "needed is 'torch', or 'interpret' in a process started with TRITON_INTERPRET=1"
            )
        self.device = torch.device("cpu")
        self.capability = capability
        self.num_sms = num_sms
        self.kernels = kernels
        self.waits = 0  # how often the host waited for the device, `unobserved` waits left out
        self.finished = 0  # calls that have run since construction
        self._issued = 0
        self._queue: deque[DeviceCall] = deque()
        self._hold: int | None = None  # calls that may run in all, while `block` lasts
        self._pool = PinnedPool()
        self._draws = None if seed is None else random.Random(f"clock {seed}")
        self._recording: Recording | None = None
        self._error: Exception | None = None
        self._observed = True
        self._stream = 0

    # Memory

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Device memory full of NaN, or of the byte 0x5A where the type has none."""
        if dtype.is_floating_point:
            return torch.full(shape, float("nan"), dtype=torch.float32).to(dtype)
        size = math.prod(shape) * dtype.itemsize
        return torch.full((size,), POISON, dtype=torch.uint8).view(dtype).view(shape)

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Device memory that is zero at once."""
        return torch.zeros(shape, dtype=dtype)

    def staging(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A pinned host block that no recorded pending copy reads; it holds stale bytes."""
        return self._pool.take(shape, dtype)

    # Device work

    def upload(self, dst: torch.Tensor, src: torch.Tensor) -> None:
        """Queue a copy from host memory, which is read as CUDA reads it (see the module).

        From a pinned block the use is recorded, unless a capture is on: a graph reads the block's
        address at each replay and the allocator knows nothing of it. From pageable memory a
        capture raises CaptureError, as torch does.
        """
        if self._pool.owns(src):
            self.enqueue(HostCopy(dst, src.expand_as(dst)))
            if self._recording is None:
                self.retain(src)
        elif self._recording is not None:
            raise CaptureError("an upload from pageable memory inside a capture: use staging()")
        elif src.nbytes > PAGEABLE_SNAPSHOT_BYTES:
            self._wait()
            dst.copy_(src)
        else:
            self.enqueue(HostCopy(dst, src.clone().expand_as(dst)))

    def retain(self, block: torch.Tensor) -> None:
        """Record that work queued so far may read this pinned block, as an event would."""
        if not self._pool.owns(block):
            raise TwinDomainError(
                f"retain of {block.dtype} {tuple(block.shape)}: it lies in no block of staging()"
            )
        self._pool.record(block, self.event().done)

    def fill(self, dst: torch.Tensor, value: float) -> None:
        """Queue the filling of device memory with one value."""
        self.enqueue(lambda: _discard(dst.fill_(value)))

    def launch(
        self, kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], meta: dict[str, int]
    ) -> None:
        """Queue a kernel, an object with its Triton source in `triton` and its twin in `torch`.

        Tensors are captured by reference, all else by value; a grid of zero launches nothing.
        """
        if 0 in grid:
            return
        function = kernel.torch if self.kernels == "torch" else kernel.triton[grid]
        values, constants = _values(args), dict(meta)
        self.enqueue(lambda: _discard(function(*values, **constants)))

    def native_plan(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a native planner, which works on the host, at once."""
        return function(*args)

    def native_run(self, function: Callable[..., Any], *args: Any) -> None:
        """Queue a native launch; tensors are captured by reference, all else by value."""
        values = _values(args)
        self.enqueue(lambda: _discard(function(*values)))

    def enqueue(self, call: DeviceCall) -> None:
        """Queue any call, or record it where a capture is on: the door for native modules.

        A HostCopy is queued without a hold on its pinned block, and records no use of it.
        """
        if isinstance(call, HostCopy):
            call = HostCopy(call.dst, self._pool.unowned(call.src))
        if self._recording is not None:
            self._recording.calls.append(call)
            return
        self._issued += 1
        if self._error is not None:
            self.finished = self._issued
            return
        self._queue.append(call)
        if self._draws is not None:
            self.step(self._drawn())

    # Waits

    def read(self, src: torch.Tensor) -> torch.Tensor:
        """Wait, and return a copy."""
        self._wait()
        return src.clone()

    def write(self, dst: torch.Tensor, src: torch.Tensor) -> None:
        """Wait, then write device memory at once."""
        self._wait()
        dst.copy_(src)

    def synchronize(self) -> None:
        """Wait for all queued work."""
        self._wait()

    @contextmanager
    def unobserved(self) -> Iterator[None]:
        """Waits in the `with` block are the suite's own: not counted, allowed in a capture."""
        before, self._observed = self._observed, False
        try:
            yield
        finally:
            self._observed = before

    # Streams

    def stream(self) -> int:
        """The stream that work is queued on from here."""
        return self._stream

    def follow(self, stream: int) -> None:
        """Queue behind another stream: one queue always does."""

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Name another stream in the `with` block."""
        self._stream += 1
        try:
            yield
        finally:
            self._stream -= 1

    # Graphs

    def capturing(self) -> bool:
        """Whether a capture is on."""
        return self._recording is not None

    @contextmanager
    def capture(self) -> Iterator[Recording]:
        """Record the work queued in the `with` block instead of queueing it."""
        if self._recording is not None:
            raise CaptureError("a capture inside a capture: end the first one")
        self._recording = recording = Recording(self)
        try:
            yield recording
        finally:
            self._recording = None

    # Time

    @property
    def pending(self) -> int:
        """Number of queued calls that have not run."""
        return len(self._queue)

    def event(self) -> Event:
        """A mark behind everything queued so far."""
        return Event(self, self._issued)

    def block(self) -> None:
        """Hold the device here: what is queued from now on runs after `release`, or at a wait.

        Like a kernel that spins until the host ends it, as a host that waits has to.
        """
        if self._hold is None:
            self._hold = self._issued

    def release(self) -> None:
        """End the `block`, where there is one."""
        self._hold = None

    def step(self, calls: int = 1) -> int:
        """Run up to this many of the oldest calls, none behind a `block`; return how many ran."""
        before = self.finished
        free = len(self._queue) if self._hold is None else self._hold - before
        for number in range(min(calls, free, len(self._queue))):
            call = self._queue.popleft()
            try:
                call()
            except Exception as error:
                self._error = error
                self._queue.clear()
                self.finished = self._issued
                return number + 1
            self.finished += 1
        return self.finished - before

    def _wait(self) -> None:
        if self._observed:
            if self._recording is not None:
                raise CaptureError("the host waits for the device inside a capture")
            self.waits += 1
        self.release()
        self.step(len(self._queue))
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _drawn(self) -> int:
        assert self._draws is not None
        draw = self._draws.random()
        if draw < _NONE:
            return 0
        if draw >= 1 - _ALL:
            return len(self._queue)
        return self._draws.randint(1, _MOST_AT_ONCE)


def _values(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments as a launch captures them: a list (plan-info) is copied, a tensor is not."""
    return tuple(list(arg) if isinstance(arg, list) else arg for arg in args)


def _discard(_: Any) -> None:
    """Drop a result."""
