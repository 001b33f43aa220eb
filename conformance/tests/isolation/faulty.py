"""A subject and faults on purpose: which case meets which one is told by the environment."""

import ctypes
import json
import os
import time
from typing import Any

import torch

from conformance.core.lab import CheckFailed

VARIABLE = "SMLA_TEST_FAULTS"
"""A JSON object: number of a case -> name of a fault."""

LONG_S = 600.0


class Faulty:
    """A subject that is never constructed."""

    name = "conformance.tests.isolation.faulty:Faulty"
    version = "1.0"
    capabilities: frozenset[str] = frozenset()

    def refusals(self, *_: Any) -> list[str]:
        return []

    def construct(self, *_: Any, **__: Any) -> Any:
        raise LookupError("a judge beside this asked for an instance")


def meet(number: int) -> None:
    """Do what the environment asks of a case."""
    fault = json.loads(os.environ.get(VARIABLE, "{}")).get(str(number))
    if fault is not None:
        FAULTS[fault]()


def _segfault() -> None:
    ctypes.string_at(0)


def _leave() -> None:
    os._exit(0)  # the status that looks best


def _hang() -> None:
    time.sleep(LONG_S)


def _hold() -> None:
    ctypes.PyDLL(None).sleep(int(LONG_S))  # and keeps the interpreter's lock


def _cuda() -> None:
    _break_context()
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def _quiet_cuda() -> None:
    _break_context()


def _break_context() -> None:
    """From now on CUDA answers as it does once a kernel touched what is not there."""

    def synchronize() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    torch.cuda.is_initialized = lambda: True
    torch.cuda.synchronize = synchronize  # type: ignore[assignment]


def _fail() -> None:
    raise CheckFailed("as asked")


FAULTS = {
    "segfault": _segfault,
    "leave": _leave,
    "hang": _hang,
    "hold": _hold,
    "cuda": _cuda,
    "quiet_cuda": _quiet_cuda,
    "fail": _fail,
}
