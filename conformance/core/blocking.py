"""A device held still: nothing queued on the current stream runs until it is released.

On a GPU by a kernel that spins on a flag in page-locked memory; on the twin the clock holds.
"""

from typing import Any

import torch
import triton
import triton.language as tl

_MOST_SPINS = 2_000_000
"""Reads of the flag before the kernel gives up, so that a host which waits is kept for some seconds
and not for ever (a read takes one to two microseconds)."""


@triton.jit(do_not_specialize=["most"])
def _spin(flag, most):
    spins = 0
    while (tl.load(flag, volatile=True) == 0) & (spins < most):
        spins += 1


class BlockedGpu:
    """The current CUDA stream, blocked from construction on.

    most: reads of the flag after which it goes on by itself.
    """

    def __init__(self, most: int = _MOST_SPINS) -> None:
        self._flag = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        _spin[(1,)](self._flag, most, num_warps=1)
        self._event = torch.cuda.Event()
        self._event.record()

    def pending(self) -> bool:
        """Whether the stream is still held."""
        return not self._event.query()

    def release(self) -> None:
        """Let the stream go on; harmless when nothing is held."""
        self._flag.fill_(1)


class BlockedClock:
    """A clocked runtime's device, held from construction on."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        clock.block()
        clock.enqueue(lambda: None)
        self._event = clock.event()

    def pending(self) -> bool:
        """Whether the device is still held."""
        return not self._event.done()

    def release(self) -> None:
        """Let the device go on; harmless when nothing is held."""
        self._clock.release()


def warm_up() -> None:
    """Compile and load the spinning kernel; loading a kernel may itself wait for the stream."""
    blocked = BlockedGpu()
    blocked.release()
    torch.cuda.synchronize()
    blocked.pending()
