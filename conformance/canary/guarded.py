"""Device memory between unmapped pages, through the driver's virtual-memory API."""

from typing import Any

import torch
from torch import Tensor


class DriverError(RuntimeError):
    """A driver call failed; the message names the call and its result."""


class GuardedMemory:
    """`nbytes` of device memory with one unmapped page before and one behind.

    Both edges are flush: the byte before the first and the byte behind the last fault when they
    are touched. tensor: uint8 [nbytes] over it, without a copy, valid while this object lives.

    hole: bytes of the unmapped page before that `tensor` starts with, to be addressed but never
    touched: nbytes then counts them.

    Raises ValueError unless nbytes is a whole number of pages (2 MiB on Hopper, as the driver
    says), DriverError when the driver refuses.
    """

    def __init__(self, nbytes: int, device: int = 0, *, hole: int = 0) -> None:
        from cuda.bindings import driver

        self._driver = driver
        torch.zeros(1, device=f"cuda:{device}")  # makes torch's context the current one
        prop = driver.CUmemAllocationProp()
        prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        prop.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        prop.location.id = device
        least = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        page = int(self._call("cuMemGetAllocationGranularity", prop, least))
        size = nbytes - hole
        if size <= 0 or size % page or hole % page:
            raise ValueError(
                f"{nbytes} bytes, {hole} of them a hole; needed: whole pages of {page} bytes"
            )
        reserved = int(self._call("cuMemAddressReserve", hole + size + 2 * page, 0, 0, 0))
        memory = self._call("cuMemCreate", size, prop, 0)
        start = reserved + page
        mapped = start + hole
        self._call("cuMemMap", mapped, size, 0, memory, 0)
        access = driver.CUmemAccessDesc()
        access.location.type, access.location.id = prop.location.type, device
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        self._call("cuMemSetAccess", mapped, size, [access], 1)
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (start, False),
            "strides": None,
            "version": 3,
        }
        self.tensor: Tensor = torch.as_tensor(self, device=f"cuda:{device}")

    def _call(self, name: str, *args: Any) -> Any:
        result, *values = getattr(self._driver, name)(*args)
        if result != self._driver.CUresult.CUDA_SUCCESS:
            raise DriverError(f"{name}: {result.name}")
        return values[0] if values else None
