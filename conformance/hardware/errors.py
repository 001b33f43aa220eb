"""What is wrong with a hardware record, or with the wish to make one."""

from conformance.core.request import SuiteError


class HardwareError(SuiteError):
    """A record cannot be made, read or replayed: what was found, what is allowed, how to fix it."""


def refusal(what: str, *, found: object, allowed: str, remedy: str) -> HardwareError:
    """Return the error in the suite's words."""
    return HardwareError(f"{what}: found {found}; allowed: {allowed}; to fix: {remedy}")
