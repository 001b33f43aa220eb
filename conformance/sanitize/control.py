"""Runs under the sanitizer before any subject: what torch does by itself, then a planted fault.

Started by file. Its argument is the tool: memcheck is given a read behind an allocation, initcheck
a read of memory that nobody wrote.
"""

import sys

import torch
import triton
import triton.language as tl

PLANTED = "planted_fault"
_ELEMENTS = 1024
_BEHIND = 1 << 16  # elements; further than the allocator rounds up


@triton.jit
def planted_fault(source, target, offset):
    """Copy one element; the name is what the sanitizer's report is searched for."""
    tl.store(target, tl.load(source + offset))


def harness() -> None:
    """What the suite itself asks of torch around a subject: filled, copied and read buffers."""
    host = torch.arange(_ELEMENTS, dtype=torch.int32)
    device = torch.empty(_ELEMENTS, dtype=torch.int32, device="cuda")
    device.copy_(host)
    zeros = torch.zeros(_ELEMENTS, dtype=torch.int32, device="cuda")
    device += zeros
    pinned = torch.empty(_ELEMENTS, dtype=torch.int32, pin_memory=True)
    pinned.fill_(1)
    zeros.copy_(pinned, non_blocking=True)
    table = torch.rand((64, 64), device="cuda", dtype=torch.float64)
    (table @ table).softmax(-1).sum().item()
    values = device.cumsum(0)[device.long() % _ELEMENTS].to("cpu")
    assert values.numel() == _ELEMENTS


def plant(tool: str) -> None:
    """Commit the fault that this tool must report."""
    written = torch.zeros(_ELEMENTS, dtype=torch.int32, device="cuda")
    unwritten = torch.empty(_ELEMENTS, dtype=torch.int32, device="cuda")
    target = torch.zeros(1, dtype=torch.int32, device="cuda")
    source, offset = (written, _BEHIND) if tool == "memcheck" else (unwritten, 0)
    planted_fault[(1,)](source, target, offset)
    torch.cuda.synchronize()


if __name__ == "__main__":
    harness()
    torch.cuda.synchronize()
    plant(sys.argv[1])
