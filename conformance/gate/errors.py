"""What a gate raises when it was asked wrongly or what it was given is not usable: exit code 3."""

from conformance.core.request import SuiteError


class GateError(SuiteError):
    """Base of a gate's own errors; the message says what was found, what is allowed, what to do."""


class PackageError(GateError):
    """A FlashInfer package cannot be had, unpacked or trusted."""


class PolicyError(GateError):
    """A policy file is not readable or says what no policy may."""


class ResultsError(GateError):
    """A result archive is damaged, of another suite, or of another FlashInfer."""
