"""What the twin raises: one class per kind of mistake."""


class TwinDomainError(ValueError):
    """The call lies outside what the twin simulates; the hardware may do anything there."""


class TwinFault(RuntimeError):
    """The schedule makes the kernel access memory outside a query, output or workspace tensor.

    On hardware this is silent corruption or an illegal memory access. Reads through slots never
    raise: they are logged and poisoned (see `conformance.twin.memory`).
    """


class NativeError(RuntimeError):
    """FlashInfer's native module raises on the same input; the message gives the reason."""


class UnknownSemanticsError(LookupError):
    """No kernel semantics are on record for this FlashInfer version or these sources."""


class CompilerMissing(RuntimeError):
    """FlashInfer's planner cannot be compiled here: compiler or headers are absent."""


class DoesNotCompile(CompilerMissing):
    """Compiler and headers are there, and the package's planner does not compile with them.

    The message ends with the compiler's own, its first error first.
    """


class CaptureError(RuntimeError):
    """CUDA or torch refuses the call while a graph is captured: it waits, or copies pageable."""
