"""What a manifest must hold: every name, and under each a value of its type."""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from conformance.core.schedule import FIELDS
from conformance.hardware.recording import DTYPES, Call

ORIGINS = ("hopper", "twin")
"""What a record can be made on."""

_LARGEST = 2**31 - 1
_Check = Callable[[Any], bool]


def _text(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable()


def _whole(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _LARGEST


def _number(value: Any) -> bool:
    return type(value) is float and math.isfinite(value)


def _hash(value: Any) -> bool:
    return _text(value) and len(value) == 64


def _or_none(check: _Check) -> _Check:
    return lambda value: value is None or check(value)


def _listed(check: _Check) -> _Check:
    return lambda value: isinstance(value, list) and all(check(one) for one in value)


_CALL: dict[Any, tuple[_Check, str]] = {
    int: (_whole, f"an integer of 0..{_LARGEST}"),
    float: (_number, "a finite number with a point"),
    bool: (lambda value: isinstance(value, bool), "true or false"),
    str: (lambda value: value in [*DTYPES], " or ".join(DTYPES)),
}
# What a replay would plan with these takes memory and time in proportion.
_SMALL: tuple[_Check, str] = (lambda value: _whole(value) and 0 < value <= 1024, "1 to 1024")
_TEXT = (_text, "a printable string")
_MAYBE = (_or_none(_text), "a printable string or null")
_OBJECT = (lambda value: isinstance(value, dict), "an object")
_HASH = (_hash, "a SHA-256 of 64 digits")
_GPU: dict[str, tuple[_Check, str]] = {
    "name": _TEXT,
    "capability": (_or_none(_listed(_whole)), "a list of integers"),
    "sms": (_or_none(_whole), "an integer"),
    "driver": _MAYBE,
}
_ENTRY: dict[str, tuple[_Check, str]] = {
    "file": _TEXT,
    "sha256": _HASH,
    "inputs": (
        lambda value: isinstance(value, dict) and all(map(_hash, value.values())),
        "an object of SHA-256",
    ),
    "call": _OBJECT,
    "plan_info": (
        lambda value: _listed(_whole)(value) and len(value) == len(FIELDS),
        f"{len(FIELDS)} integers of 0..{_LARGEST}",
    ),
    "flags": (_listed(_text), "a list of strings"),
}
_TOLD: dict[str, tuple[_Check, str]] = {
    "schema": _TEXT,
    "made_on": (lambda value: value in [*ORIGINS], " or ".join(ORIGINS)),
    **dict.fromkeys(("flashinfer", "kernel", "subject", "subject_version"), _TEXT),
    "environment": _OBJECT,
    "scenes": _HASH,
    "records": _OBJECT,
}
_ENVIRONMENT: dict[str, tuple[_Check, str]] = {
    **dict.fromkeys(("python", "torch", "cuda", "triton", "flashinfer"), _MAYBE),
    **dict.fromkeys(("commit", "sources"), _MAYBE),
    "gpu": (_or_none(lambda value: isinstance(value, dict)), "an object or null"),
}
"""As `conformance.core.environment.describe` gives it."""


def misfit(told: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return what a manifest holds wrongly, in words, and what is allowed there; None if nothing.

    told: the manifest without its seal.
    """
    if wrong := _misfit("", told, _TOLD):
        return wrong
    environment = told["environment"]
    if wrong := _misfit("environment.", environment, _ENVIRONMENT):
        return wrong
    if environment["gpu"] is not None and (
        wrong := _misfit("environment.gpu.", environment["gpu"], _GPU)
    ):
        return wrong
    of_call = {field.name: _CALL[field.type] for field in fields(Call)}
    of_call |= dict.fromkeys(("num_sms", "num_heads", "head_dim"), _SMALL)
    for name, entry in told["records"].items():
        at = f"records.{name}"
        if not isinstance(entry, dict):
            return f"{at}: {_shown(entry)}", "an object"
        wrong = _misfit(f"{at}.", entry, _ENTRY) or _misfit(f"{at}.call.", entry["call"], of_call)
        if wrong:
            return wrong
    return None


def _misfit(
    place: str, found: Mapping[str, Any], kinds: Mapping[str, tuple[_Check, str]]
) -> tuple[str, str] | None:
    if set(found) != set(kinds):
        return f"{place}fields {sorted(found)}", f"{sorted(kinds)}"
    for name, (check, allowed) in kinds.items():
        if not check(found[name]):
            return f"{place}{name}: {_shown(found[name])}", allowed
    return None


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
