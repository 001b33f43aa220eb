"""FlashInfer's own Python code over a pretended Hopper device: its queries, memory and module.

Inside of `pretending`, in a process of its own (FlashInfer keeps what it has asked and loaded),

- torch's queries of the device tell of a Hopper GPU;
- modules that FlashInfer builds and loads are not built, and its own loader is given a native
  module of the caller's instead, so the adapters that it puts around one are its own;
- tensors of the device that is active (`conformance.twin.eager`) say to FlashInfer's code, and to
  it alone, that they lie on that GPU, and pinned memory says so, too;
- what waits for all of a device (`torch.cuda.synchronize`, a stream's or an event's) is counted.

Of FlashInfer nothing is patched but what builds a module: classes of `flashinfer.jit.core` that
have `build_and_load`.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

from conformance.twin.eager import Eager, current
from conformance.twin.surface import FULL_SMS

ROOT = "flashinfer"
GPU = torch.device("cuda", 0)
CPU = torch.device("cpu")
_MODULES = "batch_mla"
"""Native modules that are pretended have this in their file's name."""


class Properties:
    """What torch tells of a Hopper GPU, as far as FlashInfer asks."""

    major, minor = 9, 0
    name = "pretended Hopper"
    total_memory = 80 << 30
    shared_memory_per_block = 49152
    shared_memory_per_multiprocessor = 233472
    shared_memory_per_block_optin = 232448
    regs_per_multiprocessor = 65536
    max_threads_per_multi_processor = 2048
    L2_cache_size = 50 << 20
    warp_size = 32

    def __init__(self, num_sms: int) -> None:
        self.multi_processor_count = num_sms


class Stream:
    """The stream that all of FlashInfer's work is in; waiting for it is counted."""

    cuda_stream = 0
    device = GPU

    def synchronize(self) -> None:
        """Wait for the device."""
        _waited("a stream")

    def wait_stream(self, other: Any) -> None:
        """Order behind another stream: there is one."""

    def record_event(self, event: Any = None) -> Any:
        """Mark a place in the stream."""
        return event or Event()

    wait_event = wait_stream


class Event:
    """A mark in the stream; waiting for it is counted."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        """Mark the place."""

    wait = record

    def query(self) -> bool:
        """All is done at once."""
        return True

    def synchronize(self) -> None:
        """Wait for the device."""
        _waited("an event")


class Native:
    """The raw native module that FlashInfer is given: `native`'s, its runs done by the device.

    native: called without arguments makes a module with `plan` and `run`; with one, the module
    that gives it the device work which it queues by itself.
    """

    def __init__(self, native: Callable[..., Any], file: str) -> None:
        self._make, self._native, self.file = native, native(), file

    def plan(self, *args: Any) -> Any:
        """As the native module's."""
        with torch._C.DisableTorchFunction():
            return self._native.plan(*args)

    def run(self, *args: Any) -> Any:
        """As the native module's, at once or, during a capture, recorded."""
        device = current()
        if device is None:
            return self._native.run(*args)
        return device.launch(functools.partial(self._native.run, *args))

    def queueing(self, enqueue: Callable[[Callable[[], None]], None]) -> Any:
        """A native module that queues its device work."""
        return self._make(enqueue)


class Guise(TorchFunctionMode):
    """Tells FlashInfer's code that a device's tensors lie on a GPU, and follows what it makes."""

    def __init__(self, device: Eager) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not sys._getframe(1).f_globals.get("__name__", "").startswith(ROOT):
            return func(*args, **kwargs)
        name = func.__name__
        if name == "__get__":
            return self._attribute(func, args, kwargs)
        answer = _ANSWERS.get(name)
        if answer is not None and args and isinstance(args[0], torch.Tensor):
            return answer(self._device, args[0])
        if name == "to":
            return self._to(func, args, kwargs)
        pinned = kwargs.pop("pin_memory", False)
        there = kwargs.get("device")
        on_gpu = there is not None and torch.device(there).type == "cuda"
        if there is not None:
            kwargs["device"] = CPU if on_gpu else "cpu"  # the watch takes objects for the device
        out = func(*args, **kwargs)
        if pinned:
            self._device.pin(out)
        return out

    def _attribute(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = getattr(func.__self__, "__name__", "")
        if name not in ("device", "is_cuda", "is_cpu"):
            return func(*args, **kwargs)
        there = self._device.on_device(args[0])
        if name == "device":
            return GPU if there else CPU
        return there == (name == "is_cuda")

    def _to(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor, device = args[0], self._device
        wanted = _device_of(args[1:], kwargs)
        if wanted is None or wanted.type not in ("cuda", "cpu"):
            return func(*args, **kwargs)
        dtype = next(
            (v for v in (*args[1:], *kwargs.values()) if isinstance(v, torch.dtype)), tensor.dtype
        )
        there = device.on_device(tensor)
        if wanted.type == "cuda":
            if there:
                return func(tensor, dtype)
            if not device.pinned(tensor):
                device.waits.uploaded(f"a tensor, {device.caller()}", tensor.nbytes)
            return device.adopt(tensor.to(dtype=dtype, copy=True))
        if not there:
            return func(tensor, dtype)
        return func(tensor, "cpu", dtype)  # the watch counts it


_ANSWERS: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "is_pinned": lambda device, tensor: device.pinned(tensor),
    "pin_memory": lambda device, tensor: device.pin(tensor.clone()),
    "get_device": lambda device, tensor: 0 if device.on_device(tensor) else -1,
    "cuda": lambda device, tensor: tensor.to(GPU),
    "record_stream": lambda device, tensor: None,
}


def _device_of(args: Any, kwargs: Any) -> torch.device | None:
    """The device that `to` is asked for, of its arguments behind the tensor."""
    for value in (*args[:1], kwargs.get("device"), kwargs.get("other")):
        if isinstance(value, torch.Tensor):
            return torch.device(value.device)
        if isinstance(value, torch.device | str | int) and not isinstance(value, bool):
            return torch.device(value)
    return None


def _waited(what: str) -> None:
    device = current()
    if device is not None:
        device.waits.add(f"synchronize of {what}, {device.caller()}")


def _loaded(native: Callable[..., Any], load: Any) -> Callable[..., Any]:
    def load_module(path: Any, *args: Any, **kwargs: Any) -> Any:
        if _MODULES in Path(str(path)).name:
            return Native(native, str(path))
        raise LookupError(
            f"FlashInfer loads {Path(str(path)).name}: found no such module on the pretended "
            f"device; allowed: those of {_MODULES}; to fix: judge this FlashInfer on a GPU"
        )

    load_module.__wrapped__ = load  # type: ignore[attr-defined]
    return load_module


@contextmanager
def pretending(native: Callable[..., Any], num_sms: int = FULL_SMS) -> Iterator[ModuleType]:
    """A context in which the FlashInfer on the path runs on a pretended device; gives its package.

    native: as of `Native`. Raise ImportError for a package, or one that it needs, which is missing.
    """
    properties = Properties(num_sms)
    cuda: dict[str, Any] = {
        "get_device_properties": lambda device=None: properties,
        "get_device_capability": lambda device=None: (properties.major, properties.minor),
        "get_device_name": lambda device=None: properties.name,
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "device": lambda device=None: nullcontext(),
        "stream": lambda stream=None: nullcontext(),
        "synchronize": lambda device=None: _waited("the device"),
        "current_stream": lambda device=None: Stream(),
        "default_stream": lambda device=None: Stream(),
        "Event": Event,
    }
    with ExitStack() as stack:
        for name, stand_in in cuda.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, stand_in))
        stack.enter_context(mock.patch.object(torch.version, "cuda", "13.0"))
        stack.enter_context(mock.patch.dict(os.environ, {"FLASHINFER_CUDA_ARCH_LIST": "9.0a"}))
        package = importlib.import_module(ROOT)
        importlib.import_module(f"{ROOT}.mla")
        core = importlib.import_module(f"{ROOT}.jit.core")
        for kind in list(vars(core).values()):
            if isinstance(kind, type) and hasattr(kind, "build_and_load") and "build" in vars(kind):
                stack.enter_context(mock.patch.object(kind, "build", lambda *args, **kwargs: None))
        ffi = importlib.import_module("tvm_ffi")
        stack.enter_context(mock.patch.object(ffi, "load_module", _loaded(native, ffi.load_module)))
        yield package


def package(device: Any) -> dict[str, ModuleType]:
    """What `Tier.package` gives: no stand-ins, since the real modules are to be found.

    device: from now on in disguise while FlashInfer's code runs.
    """
    device.disguise(Guise)
    return {}
