"""Functions that the tests call in isolated processes."""

import ctypes
import os
import subprocess
import sys
import time
from typing import Any


def answer(payload: dict[str, Any]) -> dict[str, Any]:
    print("noise on stdout")
    return {"asked": payload, "pid": os.getpid(), "variable": os.environ.get("SMLA_TEST_CHILD")}


def segfault(payload: dict[str, Any]) -> None:
    ctypes.string_at(0)


def leave(payload: dict[str, Any]) -> None:
    os._exit(payload["status"])


def wrong(payload: dict[str, Any]) -> None:
    raise ValueError(payload["why"])


def not_json(payload: dict[str, Any]) -> object:
    return object()


def hang(payload: dict[str, Any]) -> None:
    """Hang, and so does a child of the child."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(payload["pid_file"], "w") as file:
        file.write(str(child.pid))
    time.sleep(600)


def hold(payload: dict[str, Any]) -> None:
    ctypes.PyDLL(None).sleep(600)


def shout(payload: dict[str, Any]) -> None:
    for _ in range(2000):
        print("x" * 1000)
    print("the end", flush=True)
    os._exit(3)


def cuda(payload: dict[str, Any]) -> None:
    raise RuntimeError(payload["text"])


def cuda_later(payload: dict[str, Any]) -> str:
    """A fault that only the next synchronization shows."""

    class Cuda:
        def is_initialized(self) -> bool:
            return True

        def synchronize(self) -> None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    class Torch:
        cuda = Cuda()

    sys.modules["torch"] = Torch()  # type: ignore[assignment]
    return "fine so far"
