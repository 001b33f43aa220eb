"""The tiers: a twin of FlashInfer on the CPU, or the installed FlashInfer on a Hopper GPU."""

from collections.abc import Callable
from typing import Any

from conformance.core.subject import Tier
from conformance.twin.access import AccessLog
from conformance.twin.clock import Clock
from conformance.twin.semantics import BY_VERSION
from conformance.twin.surface import FULL_SMS, NativeModule
from conformance.twin.wrapper import package as wrapper_package

NAMES = ("twin", "hopper")
VERSIONS = tuple(BY_VERSION)
"""FlashInfer versions that the twin simulates."""


def simulated(number: int, wanted: str) -> str:
    """Return the version that a twin case runs on: the wanted one, or for "auto" one in turn."""
    if wanted != "auto":
        return wanted
    # A phase that moves: a fixed one would always meet the same values of other dimensions.
    return VERSIONS[(number + number // len(VERSIONS)) % len(VERSIONS)]


def tier(name: str, version: str = "0.7.2.post1", num_sms: int = 132) -> Tier:
    """Return a tier by name; version and num_sms: what the twin simulates."""
    if name == "hopper":
        return Tier("hopper", full_width=True)
    log = AccessLog()

    def native(enqueue: Callable[[Callable[[], None]], None] | None = None) -> Any:
        return NativeModule(version, num_sms, log, enqueue)

    def clock(seed: int | None, kernels: str) -> Any:
        return Clock(seed, num_sms=num_sms, kernels=kernels)

    def package(device: Any) -> dict[str, Any]:
        return wrapper_package(version, native, device=device, any_dims=True)

    return Tier(
        "twin",
        full_width=False,
        native=native,
        log=log,
        simulates=version,
        clock=clock,
        package=package,
    )


def simulated_package(version: str = "0.7.2.post1") -> dict[str, Any]:
    """Modules in place of FlashInfer's package, for code that only looks at its wrapper."""
    return wrapper_package(version, lambda: NativeModule(version, FULL_SMS))
