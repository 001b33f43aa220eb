"""The device flag word: what the kernels noticed, to be read later without stopping anything."""

import enum


class Flag(enum.IntFlag):
    """Bits that the clamp and convert kernels set (never clear) in one int32 on the device."""

    VALID_ABOVE_PLAN = 1
    """A row's valid count exceeds its planned length: a host bound was too low, so the newest
    tokens of that row were left out. A low bound that the plan's slack covers sets nothing."""

    COUNT_BELOW_FORMULA = 2
    """Convert found fewer valid entries than the row's context implies: garbage stood among the
    valid entries (or in the block table). That row's output is unspecified, but memory-safe."""

    COUNT_ABOVE_FORMULA = 4
    """Convert found more: entries behind the valid ones look like valid ones. What is attended to
    ends at the formula's count: harmless where the indexer leaves garbage behind its selection,
    a loss of tokens where index_topk or index_kpool are not the model's."""

    ROWS_BEYOND_FORWARD = 8
    """A forward covered fewer rows than the newest plan has: a graph captured for a smaller batch
    was replayed. It computed nothing, for its tensors have no room; the next build mends the
    schedule."""

    SCALE_CHANGED = 16
    """The cache's scale on the device is not the one a forward was given (or captured with)."""

    SLOT_ZERO_SCALE = 32
    """A group scale of slot 0 is NaN or infinite. The attention kernel multiplies the zeros in its
    masked positions by slot 0's scales, whether or not that slot is selected, so every row whose
    tokens do not fill a tile of 64 may be NaN."""
