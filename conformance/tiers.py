"""The tiers: a twin of FlashInfer on the CPU, or the installed FlashInfer on a Hopper GPU."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conformance.core.subject import Tier
from conformance.twin.access import AccessLog
from conformance.twin.clock import Clock
from conformance.twin.errors import UnknownSemanticsError
from conformance.twin.pretended import package as real_package
from conformance.twin.pretended import pretending
from conformance.twin.semantics import BY_VERSION, of_sources, plan_copies
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


@contextmanager
def installed(
    semantics: str = "",
    num_sms: int = FULL_SMS,
    wrap: Callable[[Any], Any] = lambda native: native,
) -> Iterator[Tier]:
    """Give a tier on which the FlashInfer of this process runs its own Python code, on the CPU.

    Below that code is the twin's module of the version `semantics`, or what `wrap` makes of it.
    Once in a process: see `conformance.twin.pretended`. Raise ImportError where FlashInfer does not
    import. Without `semantics` those of the package's sources, or UnknownSemanticsError.
    """
    log = AccessLog()
    chosen: list[str] = [semantics]

    def native(enqueue: Callable[[Callable[[], None]], None] | None = None) -> Any:
        return wrap(NativeModule(chosen[0], num_sms, log, enqueue))

    def clock(seed: int | None, kernels: str) -> Any:
        return Clock(seed, num_sms=num_sms, kernels=kernels)

    with pretending(native, num_sms) as flashinfer:
        if not semantics:
            chosen[0] = of_sources(Path(str(flashinfer.__file__)).parent / "data").version
        yield Tier(
            "twin",
            full_width=True,
            native=native,
            log=log,
            simulates=str(flashinfer.__version__),
            clock=clock,
            package=real_package,
            installed=True,
        )


def nearest(data: Path) -> str:
    """The version whose module stands best below a package with this `data` folder.

    That of its sources; where they are unknown, the latest that hands its plan over alike, which
    says nothing of the kernel.
    """
    try:
        return of_sources(data).version
    except UnknownSemanticsError:
        copies = plan_copies(data)
        return [known.version for known in BY_VERSION.values() if known.plan_copies == copies][-1]


def simulated_package(version: str = "0.7.2.post1") -> dict[str, Any]:
    """Modules in place of FlashInfer's package, for code that only looks at its wrapper."""
    return wrapper_package(version, lambda: NativeModule(version, FULL_SMS))
