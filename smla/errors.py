"""Every error smla raises: one class per kind of mistake, each naming what was found.

A message has three parts: what was found, what is allowed, what to do. An error is raised before
anything is written, so the object that raised it is as usable as before the call. (Where
FlashInfer's planner has written the device itself by then, as 0.6.18's does, the step before is
stale.)
"""

from collections.abc import Sequence


class SmlaError(ValueError):
    """Base of all errors of smla; catches everything below."""

    def __init__(self, subject: str, *, found: object, allowed: str, remedy: str) -> None:
        self.subject, self.found, self.allowed, self.remedy = subject, found, allowed, remedy
        super().__init__(f"{subject}: found {found}; allowed: {allowed}; to fix: {remedy}")


class DtypeError(SmlaError):
    """A tensor has an element type the kernels do not read."""


class ShapeError(SmlaError):
    """A tensor has the wrong rank or extents."""


class DeviceError(SmlaError):
    """A tensor lives on another device than the backend (or on the host, or not)."""


class StrideError(SmlaError):
    """A tensor's strides or alignment are not what the kernels address."""


class QueryStartLocError(SmlaError):
    """`query_start_loc` does not start at 0 or is not monotone."""


class SequenceLengthError(SmlaError):
    """A request's length (or upper bound) is negative or below its number of query tokens."""


class BufferWidthError(SmlaError):
    """The top-k buffer is narrower than the largest valid count of a row."""


class CapacityError(SmlaError):
    """A batch has more rows, requests or work items than was reserved at construction."""


class ScaleError(SmlaError):
    """A softmax or cache scale is missing, superfluous, not finite or not positive."""


class PlanLayoutError(SmlaError):
    """FlashInfer returned a plan-info that does not have the layout smla addresses."""


class CaptureError(SmlaError):
    """Planning was asked for while a graph capture is on."""


class GraphError(SmlaError):
    """A step does not fit graphs that were captured before: their replay would read elsewhere."""


class OrderError(SmlaError):
    """Calls came out of order: the metadata is not of the newest build of its plan state."""


class VersionError(SmlaError):
    """FlashInfer is not installed, or is a version this backend was not proven on."""


class AdmissionError(SmlaError):
    """FlashInfer plans or computes wrongly here, told by a tiny batch at construction."""


class KernelModeError(SmlaError):
    """A kernel cannot run in the way asked for (no interpreter, pageable memory, no GPU)."""


class FlagError(SmlaError):
    """The device flag word says that a contract was broken (raised in debug mode)."""


class UnsupportedError(SmlaError):
    """The backend cannot serve this configuration; `reasons` lists every limit that is missed."""

    def __init__(self, reasons: Sequence[str]) -> None:
        self.reasons = list(reasons)
        super().__init__(
            "configuration refused",
            found="; ".join(self.reasons),
            allowed="a configuration without any of these",
            remedy="change the values named, or choose another backend for this model",
        )
