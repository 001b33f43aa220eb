"""The tiers: a twin of FlashInfer on the CPU, or the installed FlashInfer on a Hopper GPU."""

from conformance.core.subject import Tier
from conformance.twin.access import AccessLog
from conformance.twin.surface import NativeModule

NAMES = ("twin", "hopper")


def tier(name: str, version: str = "0.7.2.post1", num_sms: int = 132) -> Tier:
    """Return a tier by name; version and num_sms: what the twin simulates."""
    if name == "hopper":
        return Tier("hopper", full_width=True)
    log = AccessLog()
    return Tier(
        "twin", full_width=False, native=lambda: NativeModule(version, num_sms, log), log=log
    )
