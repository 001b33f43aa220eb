"""What a subject uses of FlashInfer, as seen while it ran on the baseline; data, no opinion."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    """A kind of call from the subject's code into FlashInfer's.

    function: as `FILE:QUALNAME`, FILE relative to the folder that holds `flashinfer/`, such as
    `flashinfer/mla/_core.py:BatchMLAPagedAttentionWrapper.plan`. public: the names by which the
    subject can have reached it, as `MODULE:NAME`, such as
    `flashinfer.mla:BatchMLAPagedAttentionWrapper.plan`. positional: arguments given by
    position, without the instance. keywords: those given by name. told: False where the call
    was by `*args` or `**kwargs` or from C, so that what was given could not be told.
    warned: texts of DeprecationWarnings of this call.
    """

    function: str
    public: tuple[str, ...]
    positional: int
    keywords: tuple[str, ...]
    told: bool = True
    warned: tuple[str, ...] = ()


@dataclass(frozen=True)
class Uses:
    """All that a subject uses. attributes: of FlashInfer's objects that its code read or set, as
    `FILE:CLASS.NAME`, methods that it called left out. optional: such that it only asked for with
    something else to take in their place (`hasattr`, `getattr` with a default). reached: every
    function of the package that ran meanwhile, as `FILE:QUALNAME`. native: the methods of the
    native module that ran.
    """

    calls: tuple[Call, ...] = ()
    attributes: tuple[str, ...] = ()
    reached: frozenset[str] = frozenset()
    native: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()

    def wraps(self, name: str) -> bool:
        """Whether the subject calls a class or function of this name, or a method of it."""
        return any(
            part == name
            for call in self.calls
            for part in call.function.partition(":")[2].split(".")
        )
