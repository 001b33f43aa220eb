"""What can be planted in a turn, and what must become of it.

Inside of the contract outputs stay right, whatever is planted. Outside of it the device must raise
a flag, or the host an error, and rows that the fault does not reach stay right.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    sentence: what is done. flag: which flag the device must raise, "" for none. error: part of the
    message of the error that the host must raise, "" for none. With neither, every row stays right.
    device: part of the message of a device's error, where that may stand for the flag.
    """

    sentence: str
    flag: str = ""
    error: str = ""
    device: str = ""

    @property
    def inside(self) -> bool:
        """Whether it is inside of the contract."""
        return not (self.flag or self.error)


FAULTS = {
    "garbage-tail": Kind("Behind a row's valid entries stand foreign, huge and negative ids."),
    "nan-elsewhere": Kind("Every cache row that nothing selects is NaN."),
    "inf-elsewhere": Kind("Every cache row that nothing selects is infinite, or NaN for FP8."),
    "huge-elsewhere": Kind("Every cache row that nothing selects is as large as the format holds."),
    "low-bound": Kind(
        "A request's bound is below the truth by more than the slack hides.",
        flag="valid_above_plan",
    ),
    "garbage-entry": Kind(
        "Among a row's valid entries stands an id that is none.",
        flag="count_below_formula",
    ),
    "moved-table": Kind(
        "The block table is another tensor than the one that captured graphs read.",
        error="block_table",
    ),
    "small-graph": Kind(
        "A graph is replayed that was captured for fewer rows than are live.",
        flag="rows_beyond_forward",
        device="work items reach query row",  # the twin knows where a tensor ends
    ),
    "other-scale": Kind(
        "The cache's scale on the device is no longer the one that was given.",
        flag="scale_changed",
    ),
}
"""Every kind, by name."""
