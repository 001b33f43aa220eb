"""What differs between FlashInfer versions in the Python wrapper around the module, as data.

Sources, in each version's package: 0.6.18 mla/_core.py; 0.7.0 and later
mla/_batch_mla/_wrapper.py (calls and attributes), _planning.py (metadata) and
_backends/_fa_common.py (plan and run of the FA3 module).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from conformance.twin.errors import UnknownSemanticsError

MOST_WORKS = 16384
"""Work items that a schedule holds (_fa_common.py, _FA_MAX_WORK_ITEMS; scheduler.cuh)."""

PAGEABLE_BYTES = 64 * 1024
"""A copy from pageable memory above this waits for the stream (CUDA Runtime API, "API
synchronization behavior")."""

INT_WORKSPACE_BYTES = 8 * 1024 * 1024
"""Of the device and of the host scratch, all versions."""


@dataclass(frozen=True)
class Wrapping:
    """One version's wrapper; every field decides what a caller of plan and run meets.

    backend_object: plan makes an object that does the work, `_planned_backend`, and the wrapper
    mirrors a few of its attributes (_wrapper.py); without it the wrapper does the work itself and
    has its int workspace from the constructor on (_core.py).
    checks_metadata: the four tensors are int32, of rank 1, contiguous, and a packed CSR
    (_planning.py, _validate_csr_metadata), and reserved buffers of a graph fit them exactly
    (_fa_common.py, _validate_graph_metadata_buffers).
    checks_kernel: q and cache types and head dimensions have a kernel (_fa_common.py,
    _validate_generated_fa_plan; before, FP8 alone is looked at).
    counts_works: more than MOST_WORKS work items are refused (_fa_common.py,
    _validate_fa_plan_workload).
    snapshots: in graph mode plan clones "none" of the reserved buffers, "metadata" (the four of
    the caller, up to what is copied) or "all" (the int workspace and the whole buffers as well),
    and puts them back when it fails.
    checks_workspace: the float workspace holds every partial result (_fa_common.py).
    reads_page_range: plan reads the least and the largest index back from the device
    (_fa_common.py, torch.aminmax of kv_indices), so the host waits for it.
    checks_geometry: run refuses other query rows, heads, page sizes and caches than planned
    (_fa_common.py, _check_planned_geometry).
    warns: positional arguments and flat tensors are deprecated (_wrapper.py).
    """

    version: str
    backend_object: bool = True
    checks_metadata: bool = True
    checks_kernel: bool = True
    counts_works: bool = True
    snapshots: Literal["none", "metadata", "all"] = "all"
    checks_workspace: bool = False
    reads_page_range: bool = False
    checks_geometry: bool = False
    warns: bool = True


_KNOWN = (
    Wrapping(
        version="0.6.18",
        backend_object=False,
        checks_metadata=False,
        checks_kernel=False,
        counts_works=False,
        snapshots="none",
        warns=False,
    ),
    Wrapping(version="0.7.0", checks_kernel=False, counts_works=False, snapshots="metadata"),
    Wrapping(version="0.7.2.post1"),
    Wrapping(version="0.7.4", checks_workspace=True, reads_page_range=True, checks_geometry=True),
)
BY_VERSION = {known.version: known for known in _KNOWN}


def of_version(version: str) -> Wrapping:
    """The wrapper on record for a version; UnknownSemanticsError where there is none."""
    try:
        return BY_VERSION[version]
    except KeyError:
        raise UnknownSemanticsError(
            f"no wrapper for FlashInfer {version}; known: {', '.join(BY_VERSION)}. Read its "
            "Python sources and add a row to conformance.twin.wrapping"
        ) from None
