"""A device for code that launches by itself: all work at once on the CPU, recorded as graphs do.

Code that knows nothing of the suite calls torch, Triton and FlashInfer directly. While it runs
inside `Eager.active()`

- Triton launches of kernels made by `Eager.triton` and FlashInfer's native runs are done at once,
  or, during a capture, recorded with the arguments they were given and not done;
- during a capture torch's own operations on tensors are recorded too: a replay does them again on
  the same memory, with the values that stand there by then. Memory that a captured operation
  allocates belongs to the graph;
- `torch.cuda.is_current_stream_capturing` speaks of such a capture;
- what makes a host wait for a device is counted in `waits`: reading a device tensor's values, and
  copies above 64 KiB from pageable memory. A tensor is the device's if it was made by `empty` or
  `zeros` here, on a device that the code names by a torch.device, or from one that is.

Nothing runs late: what an overwritten buffer or a device behind its host does to a result is not
seen here (`conformance.twin.clock` sees it, for code that queues through a runtime).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from conformance.twin.errors import CaptureError
from conformance.twin.wrapping import PAGEABLE_BYTES

_HERE = __file__.rpartition("/")[0] + "/"
_CURRENT: list[Eager] = []
_READS = frozenset(
    (
        *("item", "tolist", "cpu", "numpy", "__int__", "__float__", "__bool__", "__index__"),
        # Those whose result's value or shape the host needs.
        *("equal", "allclose", "is_nonzero", "nonzero", "argwhere", "unique", "unique_consecutive"),
        *("masked_select", "bincount", "__contains__", "__array__"),
    )
)
_ALLOCATIONS = frozenset(("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"))


_CAPTURING = (torch.cuda, "is_current_stream_capturing")


@dataclass
class Waits:
    """How often the host waited for the device, and for what each time."""

    reasons: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.reasons)

    def add(self, reason: str) -> None:
        """Note one wait."""
        self.reasons.append(reason)

    def uploaded(self, name: str, nbytes: int) -> None:
        """Note a copy from pageable memory, which waits above a size."""
        if nbytes > PAGEABLE_BYTES:
            self.add(f"{nbytes} bytes of {name} copied from pageable memory")


class Recording:
    """A graph: the work of a capture, each piece with the arguments it had."""

    def __init__(self) -> None:
        self.work: list[Callable[[], Any]] = []

    def replay(self) -> None:
        """Do the work again."""
        for piece in self.work:
            piece()


class Eager:
    """The device, and the runtime through which a bench reaches its memory."""

    device = torch.device("cpu")
    capability = (9, 0)

    def __init__(self, num_sms: int) -> None:
        self.num_sms = num_sms
        self.waits = Waits()
        self._recording: Recording | None = None
        self._memory: dict[int, torch.UntypedStorage] = {}  # kept, so that no address comes again
        self._made: dict[int, torch.UntypedStorage] = {}  # by operations of the call under way
        self._pinned: dict[int, torch.UntypedStorage] = {}
        self._disguises: list[Callable[[Eager], TorchFunctionMode]] = []

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Device memory that holds anything."""
        return self.adopt(torch.empty(shape, dtype=dtype))

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Device memory of zeros."""
        return self.adopt(torch.zeros(shape, dtype=dtype))

    def adopt(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same tensor, from now on the device's."""
        storage = tensor.untyped_storage()
        self._memory[storage.data_ptr()] = storage
        return tensor

    def on_device(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in device memory."""
        place = tensor.untyped_storage().data_ptr()
        return place in self._memory or place in self._made

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same host tensor, from now on pinned: copies from it wait for nothing."""
        storage = tensor.untyped_storage()
        self._pinned[storage.data_ptr()] = storage
        return tensor

    def pinned(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in pinned host memory."""
        return tensor.untyped_storage().data_ptr() in self._pinned

    def disguise(self, mode: Callable[[Eager], TorchFunctionMode]) -> None:
        """Add a mode for calls into code that launches by itself, above the watch."""
        self._disguises.append(mode)

    @staticmethod
    def caller() -> str:
        """Where outside of torch and the twin a call came from."""
        return _caller()

    def read(self, src: torch.Tensor) -> torch.Tensor:
        """A host copy, for the suite: no wait is counted."""
        return src.detach().clone()

    def write(self, dst: torch.Tensor, src: torch.Tensor) -> None:
        """Fill device memory, for the suite."""
        dst.copy_(src)

    def synchronize(self) -> None:
        """Nothing is ever queued."""

    def capturing(self) -> bool:
        """Whether a capture is on."""
        return self._recording is not None

    @contextmanager
    def capture(self) -> Iterator[Recording]:
        """Record what runs inside `active()` in this context, instead of doing it."""
        if self._recording is not None:
            raise CaptureError("a capture inside a capture")
        self._recording = recording = Recording()
        try:
            yield recording
        finally:
            self._recording = None

    @contextmanager
    def active(self) -> Iterator[None]:
        """A context for calls into the code that launches by itself."""
        _CURRENT.append(self)
        recorder = nullcontext() if self._recording is None else _Recorder(self._recording)
        try:
            with ExitStack() as stack:
                stack.enter_context(_Watch(self))
                stack.enter_context(recorder)
                stack.enter_context(mock.patch.object(*_CAPTURING, self.capturing))
                for mode in self._disguises:
                    stack.enter_context(mode(self))
                yield
        finally:
            _CURRENT.pop()
            if not _CURRENT:
                self._forget()

    def launch(self, work: Callable[[], Any]) -> None:
        """Do a kernel's work, or record it."""
        if self._recording is not None:
            self._recording.work.append(work)
            return
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            work()

    def made(self, value: Any) -> None:
        """Note tensors that an operation on device tensors has made."""
        for tensor in tree_leaves(value):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self._made[storage.data_ptr()] = storage

    def _forget(self) -> None:
        """Let go of memory that nobody else holds."""
        for kept in (self._made, self._pinned):
            for place in [
                p for p, storage in kept.items() if torch._C._storage_Use_Count(storage._cdata) == 1
            ]:
                del kept[place]

    @staticmethod
    def triton(triton: Any) -> Any:
        """Triton whose kernels launch on the device that is active; all else is Triton's."""
        return _Triton(triton)


def current() -> Eager | None:
    """The device that is active."""
    return _CURRENT[-1] if _CURRENT else None


class _Triton:
    def __init__(self, triton: Any) -> None:
        self._triton = triton

    def __getattr__(self, name: str) -> Any:
        return getattr(self._triton, name)

    def jit(self, function: Any = None, **options: Any) -> Any:
        """As triton.jit, bare or with options."""
        if function is None:
            return functools.partial(self.jit, **options)
        return Kernel(self._triton.jit(function, **options))


class Kernel:
    """A Triton kernel that launches on the device that is active, at once where there is none."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)  # from within another kernel

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            work = functools.partial(self._function[grid], *args, **kwargs)
            if _CURRENT:
                _CURRENT[-1].launch(work)
            else:
                work()

        return launch


class _Recorder(TorchDispatchMode):
    """Records torch's operations; in-place ones wait for the replay."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self._recording = recording

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.rpartition("::")[2]
        if name == "_local_scalar_dense":
            raise CaptureError("a device tensor's value is read during a capture")
        if name in _ALLOCATIONS:
            return func(*args, **kwargs)
        written = [
            kwargs[a.name] if a.name in kwargs else args[i]
            for i, a in enumerate(func._schema.arguments)
            if a.alias_info is not None and a.alias_info.is_write
            and (a.name in kwargs or i < len(args))
        ]  # fmt: skip
        if written:
            self._recording.work.append(functools.partial(func, *args, **kwargs))
            return written[0] if len(func._schema.returns) == 1 else tuple(written)
        out = func(*args, **kwargs)
        if not any(r.alias_info is not None for r in func._schema.returns):
            self._recording.work.append(lambda: _again(func, args, kwargs, out))
        return out


def _again(func: Any, args: Any, kwargs: Any, out: Any) -> None:
    for old, new in zip(tree_leaves(out), tree_leaves(func(*args, **kwargs)), strict=True):
        if isinstance(old, torch.Tensor):
            old.copy_(new)


class _Watch(TorchFunctionMode):
    """Counts waits, and follows which tensors are the device's."""

    def __init__(self, device: Eager) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device, name = self._device, getattr(func, "__name__", "")
        if name == "__get__":
            return func(*args, **kwargs)  # an attribute; a view lies where its tensor does
        if name == "copy_":
            return self._copy(func, args, kwargs)
        given = any(device.on_device(tensor) for tensor in _tensors((*args, *kwargs.values())))
        if given and (name in _READS or (name == "to" and _names_cpu(args, kwargs))):
            device.waits.add(f"{name} of a device tensor, {_caller()}")
            out = func(*args, **kwargs)
            return out.clone() if isinstance(out, torch.Tensor) else out  # on the host from here
        out = func(*args, **kwargs)
        if given:
            device.made(out)
        elif isinstance(kwargs.get("device"), torch.device) and isinstance(out, torch.Tensor):
            device.adopt(out)
        return out

    def _copy(self, func: Any, args: Any, kwargs: Any) -> Any:
        dst, src = args[0], args[1]
        to, of = self._device.on_device(dst), self._device.on_device(src)
        if to and not of and not self._device.pinned(src):
            self._device.waits.uploaded(f"a tensor, {_caller()}", src.nbytes)
        elif of and not to:
            self._device.waits.add(f"a copy to the host, {_caller()}")
        return func(*args, **kwargs)


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)


def _names_cpu(args: Any, kwargs: Any) -> bool:
    """Whether `to` names the CPU as a word; devices are named by torch.device objects."""
    return any(isinstance(value, str) and value == "cpu" for value in (*args, *kwargs.values()))


def _caller() -> str:
    """Where outside of torch and this module a call came from."""
    frame = inspect.currentframe()
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_HERE) and "/torch/" not in file:
            return f"{file.rpartition('/')[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return "somewhere"


IMMEDIATE = SimpleNamespace(launch=lambda work: work())
"""A device that only does what it is given."""
