"""What a benchmark of two packages showed: figures, findings on waits and refusals, its file."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from conformance.gate.alternate import SIDES
from conformance.gate.errors import ResultsError
from conformance.gate.model import Change, Figure, Finding, Side, Weight

SCHEMA = "smla-measured/1"
_CALLS = {
    "replan": "a step that is planned anew",
    "reuse": "a step that reuses its plan",
    "launch": "queueing a forward",
}
_SHOWN = 3
_TEXT = 300


@dataclass(frozen=True)
class Refusal:
    """A step that raised. stage: construct, build, forward or capture. cause: `file: function`."""

    stage: str
    what: str
    cause: str


@dataclass
class Seen:
    """What was seen at one shape, by side. waits: by call, {"waits": bool or None, "cause": str}.

    died: how a side's process ended.
    """

    label: str
    waits: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    refused: dict[str, Refusal] = field(default_factory=dict)
    died: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured:
    """A benchmark of one subject. gpu: its name, empty for a rehearsal, which times nothing."""

    subject: str
    subject_version: str
    baseline: Side
    candidate: Side
    gpu: str
    figures: tuple[Figure, ...]
    findings: tuple[Finding, ...]
    shapes: tuple[str, ...]
    schema: str = SCHEMA

    def as_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return asdict(self)

    @staticmethod
    def of_json(value: Any, where: str) -> "Measured":
        """Return what `as_json` gave; raise ResultsError for anything else. where: for messages."""
        schema = value.get("schema") if isinstance(value, dict) else None
        if schema != SCHEMA:
            raise ResultsError(
                f"{where}: found schema {schema!r}; allowed: {SCHEMA!r}; to fix: measure again "
                "with this suite"
            )
        try:
            return Measured(
                **{
                    **value,
                    "baseline": Side(**value["baseline"]),
                    "candidate": Side(**value["candidate"]),
                    "figures": tuple(Figure(**one) for one in value["figures"]),
                    "findings": tuple(_finding(one) for one in value["findings"]),
                    "shapes": tuple(value["shapes"]),
                }
            )
        except (KeyError, TypeError, ValueError) as problem:
            raise ResultsError(
                f"{where}: found not what {SCHEMA!r} holds ({problem!r}); allowed: a file that the "
                "benchmark wrote; to fix: measure again"
            ) from problem

    def text(self) -> str:
        """The file's text."""
        return json.dumps(self.as_json(), indent=1, sort_keys=True) + "\n"


def _finding(value: Mapping[str, Any]) -> Finding:
    change, weight = Change(value["change"]), Weight(value["weight"])
    # What is tolerated, a policy says where the gate is asked, and nobody on a GPU host.
    return Finding(**{**value, "change": change, "weight": weight, "tolerated": ""})


def findings(seen: Sequence[Seen]) -> tuple[Finding, ...]:
    """Return the findings on all shapes: one for each call's waits, one for each shape refused."""
    found = [_waits(call, seen) for call in _CALLS]
    return tuple(
        [
            *(one for one in found if one is not None),
            *(one for shape in seen if (one := _stopped(shape)) is not None),
        ]
    )


def _waits(call: str, seen: Sequence[Seen]) -> Finding | None:
    """Whether the host waits in a call, on all shapes that both sides ran."""
    told = {
        shape.label: {side: shape.waits[side][call] for side in SIDES}
        for shape in seen
        if all(call in shape.waits.get(side, {}) for side in SIDES)
    }
    told = {
        label: sides
        for label, sides in told.items()
        if all(one["waits"] is not None for one in sides.values())
    }
    if not told:
        return None
    at = {side: [label for label in told if told[label][side]["waits"]] for side in SIDES}
    new = [label for label in at["candidate"] if label not in at["baseline"]]
    gone = [label for label in at["baseline"] if label not in at["candidate"]]
    what = f"the host waits for the device in {_CALLS[call]}"
    change, weight, cause = Change.UNCHANGED, Weight.NOTE, ""
    if new:
        change, weight = Change.ADDED, Weight.OBJECTION
        cause = next((c for label in new if (c := told[label]["candidate"]["cause"])), "")
        text = f"{what}, which it did not before: {_some(new)}"
    elif gone:
        change, text = Change.DELETED, f"{what} no longer: {_some(gone)}"
    elif at["candidate"]:
        weight = Weight.REVIEW
        cause = next((c for label in told if (c := told[label]["candidate"]["cause"])), "")
        text = f"{what}, as before: {_some(at['candidate'])}"
    else:
        text = f"the host does not wait for the device in {_CALLS[call]}, as before"
    before, after = (f"waits at {len(at[side])} of {len(told)} shapes" for side in SIDES)
    return Finding(f"hopper/waits/{call}", change, weight, text, before, after, cause)


def _stopped(shape: Seen) -> Finding | None:
    """A shape that a side refused, or at which its process died."""
    said = {side: _said(shape, side) for side in SIDES}
    if not any(said.values()):
        return None
    kind = "died" if any(side in shape.died for side in SIDES) else "refused"
    cause = ""
    if not said["candidate"]:
        change, weight = Change.DELETED, Weight.NOTE
        text = f"{shape.label}: works now, and did not before"
    else:
        refusal = shape.refused.get("candidate")
        cause = refusal.cause if refusal else ""
        if said["baseline"]:
            change, weight = Change.UNCHANGED, Weight.REVIEW
            text = f"{shape.label}: does not work, before and now"
        else:
            change, weight = Change.ADDED, Weight.OBJECTION
            text = f"{shape.label}: does not work any more ({said['candidate'][:_TEXT]})"
    slug = "-".join("".join(c if c.isalnum() else " " for c in shape.label.lower()).split())
    before, after = (said[side][:_TEXT] or "works" for side in SIDES)
    return Finding(f"hopper/{kind}/{slug}", change, weight, text, before, after, cause)


def _said(shape: Seen, side: str) -> str:
    if side in shape.died:
        return shape.died[side]
    if side in shape.refused:
        refusal = shape.refused[side]
        return f"{refusal.stage} refused: {refusal.what}"
    return ""


def _some(labels: Sequence[str]) -> str:
    more = f" and at {len(labels) - _SHOWN} more shapes" if len(labels) > _SHOWN else ""
    return f"at {'; '.join(labels[:_SHOWN])}{more}"
