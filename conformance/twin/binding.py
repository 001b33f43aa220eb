"""The compiled planner's C function, called through ctypes; of this suite it needs nothing else.

So a process that runs a planner of unknown origin starts fast, and holds no more than it must.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

MOST_FIELDS = 64
"""Plan-info integers that a planner may have; FlashInfer's has 18."""

_ERROR_BYTES = 4096


@dataclass(frozen=True)
class Planned:
    """What one call gave. refused: the planner's own text where it threw, else empty.

    info: plan-info's integers. staged: bytes that it says must reach the device.
    """

    info: tuple[int, ...] = ()
    staged: int = 0
    refused: str = ""


class Binding:
    """One compiled library."""

    def __init__(self, library: Path) -> None:
        self._plan = ctypes.CDLL(str(library)).twin_mla_plan
        self._plan.restype = ctypes.c_int

    def plan(
        self,
        qo_indptr: ArrayLike,
        kv_indptr: ArrayLike,
        kv_len: ArrayLike,
        num_heads: int,
        head_dim_o: int,
        num_sms: int,
        staging: NDArray[np.uint8],
        float_bytes: int,
    ) -> Planned:
        """Plan into `staging`, uint8 and contiguous; the arguments are those of `planner.plan`.

        Nothing is checked: what the planner does not check itself may end the process.
        """
        starts, kv_starts, lengths = (
            np.ascontiguousarray(values, np.int32) for values in (qo_indptr, kv_indptr, kv_len)
        )
        info = np.zeros(MOST_FIELDS, np.int64)
        count, staged = ctypes.c_size_t(), ctypes.c_size_t()
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        status = self._plan(
            ctypes.c_void_p(starts.ctypes.data),
            ctypes.c_void_p(kv_starts.ctypes.data),
            ctypes.c_void_p(lengths.ctypes.data),
            ctypes.c_uint(len(lengths)),
            ctypes.c_uint(num_heads),
            ctypes.c_uint(head_dim_o),
            ctypes.c_int(num_sms),
            ctypes.c_void_p(staging.ctypes.data),
            ctypes.c_size_t(staging.nbytes),
            ctypes.c_size_t(float_bytes),
            ctypes.c_void_p(info.ctypes.data),
            ctypes.c_size_t(MOST_FIELDS),
            ctypes.byref(count),
            ctypes.byref(staged),
            error,
            ctypes.c_size_t(_ERROR_BYTES),
        )
        if status:
            return Planned(refused=error.value.decode(errors="replace") or f"status {status}")
        return Planned(tuple(info[: count.value].tolist()), staged.value)
