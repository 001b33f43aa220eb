"""Factories of subjects that cannot be judged, each broken in its own way."""

import os
from typing import Any


class Whole:
    """Has all that the protocol asks for."""

    name = "whole"
    version: Any = "1.2"
    capabilities: Any = frozenset({"bf16"})

    def refusals(self, *_: Any) -> list[str]:
        return []

    def construct(self, *_: Any, **__: Any) -> Any:
        raise LookupError("it is asked who it is, no more")


class NoConstruct(Whole):
    construct: Any = None


class NoName(Whole):
    name = ""


class Listed(Whole):
    capabilities = ("bf16",)


class Numbered(Whole):
    version = 3


def raises() -> None:
    raise ZeroDivisionError("its factory divides")


def leaves() -> None:
    os._exit(0)


def aborts() -> None:
    os.abort()


def nothing() -> None:
    return None


def needs(argument: int) -> Whole:
    return Whole()
