"""What was seen of one FlashInfer while its own Python code ran: data, as JSON and back."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from conformance.gate.uses import Call, Uses


@dataclass(frozen=True)
class Wait:
    """One wait of the host for the device.

    kind: "read" of what lies on the device, or "pageable", a copy of more than 64 KiB from memory
    that is not pinned. what: in words, without numbers of lines. where: `FILE: FUNCTION` of
    FlashInfer, or of the subject where FlashInfer was not at work; empty where nobody could tell.
    """

    kind: str
    what: str
    where: str = ""


@dataclass(frozen=True)
class StepSeen:
    """One step of the scenario.

    native: calls of the native module in order, with what they were given. refused: type and first
    line of what was raised, empty where nothing was. where: the `FILE: FUNCTION` that raised it.
    right: whether the output was right; None where there was none. error: worst error over its
    bound. skipped: why the subject was not asked. warned: texts of DeprecationWarnings.
    """

    name: str
    native: tuple[str, ...] = ()
    waits: tuple[Wait, ...] = ()
    refused: str = ""
    where: str = ""
    right: bool | None = None
    error: float = 0.0
    skipped: str = ""
    warned: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProbeSeen:
    """One direct call of the wrapper class.

    outcome: "ok", the type of what was raised, or a fact (True, False, a number). said, where: the
    first line of what was raised, and the `FILE: FUNCTION` that raised it.
    """

    outcome: Any
    said: str = ""
    where: str = ""


BROKEN = "plain calls"
"""The one probe of a wrapper that refuses the calls which all the others begin with."""


@dataclass(frozen=True)
class Seen:
    """All that one child has seen. version: as the package says. semantics: of the module below.

    known: whether that module's sources are on record, so that its numbers speak of the package.
    """

    version: str
    semantics: str
    known: bool
    steps: tuple[StepSeen, ...]
    probes: Mapping[str, ProbeSeen] = field(default_factory=dict)
    uses: Uses | None = None

    def as_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        values = asdict(self)
        if self.uses is not None:
            values["uses"]["reached"] = sorted(self.uses.reached)
        return values


def from_json(values: Mapping[str, Any]) -> Seen:
    """Return what `as_json` gave."""
    steps = tuple(
        StepSeen(
            **{
                **step,
                "native": tuple(step["native"]),
                "waits": tuple(Wait(**wait) for wait in step["waits"]),
                "warned": tuple(step["warned"]),
            }
        )
        for step in values["steps"]
    )
    uses = values["uses"]
    return Seen(
        values["version"],
        values["semantics"],
        values["known"],
        steps,
        {name: ProbeSeen(**probe) for name, probe in values["probes"].items()},
        None if uses is None else _uses(uses),
    )


def _uses(values: Mapping[str, Any]) -> Uses:
    calls = tuple(
        Call(
            **{
                **call,
                "public": tuple(call["public"]),
                "keywords": tuple(call["keywords"]),
                "warned": tuple(call["warned"]),
            }
        )
        for call in values["calls"]
    )
    return Uses(
        calls,
        tuple(values["attributes"]),
        frozenset(values["reached"]),
        tuple(values["native"]),
        tuple(values["optional"]),
    )
