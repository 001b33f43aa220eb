"""The native module as the gate watches it: calls noted, held back, or answered by a recorder."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from conformance.gate.frames import Owner
from conformance.gate.seen import Wait
from conformance.twin.eager import Waits
from conformance.twin.wrapping import PAGEABLE_BYTES

_PLAN = ("kv_len", "num_heads", "head_dim_o", "causal")
_RUN = ("q_nope", "ckv", "mask_mode", "num_heads", "page_size", "return_lse_base_on_e")
_PLAN_AT, _RUN_AT = (5, 6, 7, 8), (3, 5, 10, 11, 12, 14)


class HeldBackError(Exception):
    """A native call was reached and, as asked, not made."""


class Desk:
    """What all native modules of a process report to.

    calls: since `taken` was last called, in words. methods: that ran, by name. holds: native plans
    raise HeldBackError. instead: answers in place of the native module.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.methods: set[str] = set()
        self.holds = False
        self.instead: Any = None

    def wrap(self, native: Any) -> "Noted":
        """A native module that reports here."""
        return Noted(self, native)

    def taken(self) -> tuple[str, ...]:
        """The calls since the last time."""
        calls, self.calls = tuple(self.calls), []
        return calls

    @contextmanager
    def holding(self) -> Iterator[None]:
        """A context in which native plans are noted and not made."""
        self.holds = True
        try:
            yield
        finally:
            self.holds = False

    @contextmanager
    def answering(self, instead: Any) -> Iterator[None]:
        """A context in which another module answers, and nothing is noted."""
        self.instead = instead
        try:
            yield
        finally:
            self.instead = None


class Noted:
    """One native module that reports to a desk."""

    def __init__(self, desk: Desk, native: Any) -> None:
        self._desk, self._native = desk, native

    @property
    def num_sms(self) -> int:
        """The device's."""
        return int(self._native.num_sms)

    def plan(self, *args: Any) -> Any:
        """As the native module's."""
        desk = self._desk
        if desk.instead is not None:
            return desk.instead.plan(*args)
        desk.methods.add("plan")
        desk.calls.append(_words("plan", _PLAN, _PLAN_AT, args))
        if desk.holds:
            raise HeldBackError("the native planner was reached")
        return self._native.plan(*args)

    def run(self, *args: Any) -> Any:
        """As the native module's."""
        desk = self._desk
        if desk.instead is not None:
            return desk.instead.run(*args)
        desk.methods.add("run")
        desk.calls.append(_words("run", _RUN, _RUN_AT, args))
        return self._native.run(*args)


def _words(name: str, names: tuple[str, ...], places: tuple[int, ...], args: Any) -> str:
    given = [
        f"{label}={_value(args[at])}"
        for label, at in zip(names, places, strict=True)
        if at < len(args)
    ]
    return f"{name}({', '.join([*given, f'{len(args)} arguments'])})"


def _value(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        shape = "x".join(str(n) for n in value.shape)
        return f"{str(value.dtype).removeprefix('torch.')}[{shape}]"
    return str(value)


class PlacedWaits(Waits):
    """Waits of a device, with the code that caused each."""

    def __init__(self, owner: Owner) -> None:
        super().__init__()
        self._owner = owner
        self.waits: list[Wait] = []

    def add(self, reason: str) -> None:
        """Note one wait: the operation, without where it stands in a file."""
        super().add(reason)
        what = reason.partition(",")[0]
        self.waits.append(Wait("read", what, self._owner.of_stack(sys._getframe(1))))

    def uploaded(self, name: str, nbytes: int) -> None:
        """Note a copy from pageable memory, which waits above a size."""
        if nbytes > PAGEABLE_BYTES:
            super().add(f"{nbytes} bytes of {name} copied from pageable memory")
            what = "a copy of more than 64 KiB from pageable memory"
            self.waits.append(Wait("pageable", what, self._owner.of_stack(sys._getframe(1))))

    def taken(self) -> tuple[Wait, ...]:
        """The waits since the last time."""
        waits, self.waits = tuple(self.waits), []
        return waits
