"""What can be planted in a turn, and what must become of it.

Inside of the contract outputs stay right, whatever is planted. Outside of it the device must raise
a flag, or the host an error, and rows that the fault does not reach stay right.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    sentence: what is done. flag: which flag the device must raise, "" for none. error: part of the
    message of the error that the host must raise, "" for none. With neither, every row stays right
    but those of the request that the fault is about. among: other frames may be in flight then.
    """

    sentence: str
    flag: str = ""
    error: str = ""
    among: bool = False

    @property
    def inside(self) -> bool:
        """Whether it is inside of the contract."""
        return not (self.flag or self.error)


FAULTS = {
    "garbage-tail": Kind(
        "Behind a row's valid entries stand ids of later tokens, huge and negative ones.",
        among=True,
    ),
    "nan-elsewhere": Kind("Every cache row that nothing selects is NaN."),
    "inf-elsewhere": Kind("Every cache row that nothing selects is infinite, or NaN for FP8."),
    "huge-elsewhere": Kind("Every cache row that nothing selects is as large as the format holds."),
    "stale-bounds": Kind(
        "The host's bounds are those of some more turns ago, at their loosest.", among=True
    ),
    "late-frame": Kind("A request that lost its blocks is still computed; what it selects is NaN."),
    "warm-up": Kind("A dummy batch whose every token is slot 0 runs right before.", among=True),
    "layers": Kind(
        "A second layer runs on the same plan: other queries, selections and scale.", among=True
    ),
    "low-bound": Kind(
        "A request's bound is below the truth by more than the slack hides.",
        flag="valid_above_plan",
    ),
    "untold-split": Kind(
        "The device splits the rows otherwise, and the batch does not say that it may.",
        flag="valid_above_plan",
    ),
    "skipped-plan": Kind(
        "A step of as many rows runs on the plan of the one before, whose rows were longer.",
        flag="count_below_formula",
    ),
    "garbage-entry": Kind(
        "Among a row's valid entries stands an id that is none, or of a later token.",
        flag="count_below_formula",
    ),
    "small-graph": Kind(
        "A graph is replayed that was captured for fewer rows than are live.",
        flag="rows_beyond_forward",
    ),
    "other-scale": Kind(
        "The cache's scale on the device is no longer the one that was given.",
        flag="scale_changed",
    ),
    "moved-table": Kind(
        "The block table is another tensor than the one that captured graphs read.",
        error="block_table",
    ),
    "second-stream": Kind(
        "The forward is queued on another stream than the build.",
        error="stream",
    ),
    "over-capacity": Kind(
        "The batch is padded to one row more than the subject was constructed for.",
        error="max_tokens",
    ),
}
"""Every kind, by name."""
