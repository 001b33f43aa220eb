"""Memory that a process frees it keeps, for the tensors of the next step are as large again.

glibc gives large blocks back to the kernel and asks for them anew; on a CPU a step then spends a
quarter of its time in page faults.
"""

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # mallopt(3)
_LARGEST_MMAP_THRESHOLD = 32 << 20  # glibc refuses a larger one


def keep_freed_memory() -> bool:
    """Let this process keep up to 1 GiB that it freed; return whether its C library can."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return all(
        mallopt(parameter, value) == 1
        for parameter, value in (
            (_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD),
            (_TRIM_THRESHOLD, 1 << 30),
            (_TOP_PAD, 64 << 20),
        )
    )
