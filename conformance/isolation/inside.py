"""What runs in the isolated process: one call, its answer to a file, and a way out at once.

The answer is renamed into place when whole. The process then leaves without tearing anything down:
a broken CUDA context must not turn an answer into a crash.
"""

import faulthandler
import json
import os
import resource
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

_ORPHAN_S = 30.0
_CUDA_TYPES = frozenset({"AcceleratorError", "DeferredCudaCallError"})


def main(asked: Path, answer: Path) -> None:
    """Make the call that a file asks for."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    call = json.loads(asked.read_text())
    # The parent ends this process in time; should the parent be gone, this does.
    faulthandler.dump_traceback_later(call["timeout_s"] + _ORPHAN_S, exit=True)
    try:
        text = json.dumps({"value": _called(call["target"], call["payload"])})
    except BaseException:
        traceback.print_exc()
        _leave(1)
    whole = answer.with_suffix(".whole")
    whole.write_text(text)
    os.replace(whole, answer)
    _leave(0)


def _called(target: str, payload: dict[str, Any]) -> Any:
    module, _, name = target.partition(":")
    function: Callable[[dict[str, Any]], Any] = getattr(import_module(module), name)
    value: Any = {}
    try:
        value = function(payload)
        _synchronize()
        return value
    except Exception as problem:
        if not _of_cuda(problem):
            raise
        traceback.print_exc()
        # A function that answered before its error showed is believed, and the error told too.
        told = value if isinstance(value, dict) else {}
        return {**told, "cuda_error": f"{type(problem).__name__}: {problem}"}


def _synchronize() -> None:
    """Wait for what the function left running: its errors are the function's."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _of_cuda(problem: Exception) -> bool:
    """Whether an exception tells of CUDA: torch's, Triton's and FlashInfer's are RuntimeErrors."""
    if type(problem).__name__ in _CUDA_TYPES:
        return True
    return isinstance(problem, RuntimeError) and "cuda" in str(problem).lower()


def _leave(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
