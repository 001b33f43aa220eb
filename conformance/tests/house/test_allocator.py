"""A process that keeps freed memory takes large blocks from a heap that it does not give back."""

import ctypes
import subprocess
import sys

import pytest

from conformance.core import allocator

_PROGRAM = """
import ctypes, sys
from conformance.core.allocator import keep_freed_memory

class Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
        "fordblks", "keepcost")]

libc = ctypes.CDLL(None)
if not hasattr(libc, "mallinfo2"):
    sys.exit(77)
libc.mallinfo2.restype = Mallinfo2
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
if sys.argv[1] == "keep" and not keep_freed_memory():
    sys.exit(78)
before = libc.mallinfo2()
block = libc.malloc(24 << 20)
mapped = libc.mallinfo2().hblks - before.hblks
libc.free(block)
kept = libc.mallinfo2().arena - before.arena
sys.stdout.write(f"{mapped} {kept >> 20}")
"""


def _blocks(how: str) -> tuple[int, int]:
    """Blocks mapped for one of 24 MiB, and MiB that stay with the process once it is free."""
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM, how], capture_output=True, text=True, check=False
    )
    if ended.returncode == 77:
        pytest.skip("another C library than glibc 2.33 or later")
    assert ended.returncode == 0, ended.stderr
    mapped, kept = ended.stdout.split()
    return int(mapped), int(kept)


def test_large_blocks_come_from_a_heap_that_stays() -> None:
    assert _blocks("leave") == (1, 0)
    mapped, kept = _blocks("keep")
    assert mapped == 0 and kept >= 24


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert not allocator.keep_freed_memory()
