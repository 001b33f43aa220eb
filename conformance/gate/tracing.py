"""Follows what a subject uses of FlashInfer while it runs: calls, attributes, imports, warnings.

A profile function sees every Python call. One from outside of FlashInfer into it is a use; how its
arguments were given is read from the call's expression in the caller's source.
"""

import builtins
import importlib
import inspect
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any
from unittest import mock

from conformance.gate.frames import Owner
from conformance.gate.uses import Call, Uses
from conformance.gate.written import falls_back, given_by

_ROOT = "flashinfer"


@dataclass
class Trace:
    """What has been seen so far."""

    owner: Owner
    reached: set[str] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    optional: set[str] = field(default_factory=set)
    imported: set[str] = field(default_factory=set)
    _calls: dict[tuple[str, int, tuple[str, ...], bool], set[str]] = field(default_factory=dict)
    _codes: dict[str, CodeType] = field(default_factory=dict)
    _inside: dict[CodeType, bool] = field(default_factory=dict)
    _entered: list[tuple[FrameType, set[str]]] = field(default_factory=list)
    _spied: dict[type, tuple[Any, Any]] = field(default_factory=dict)

    def uses(self, native: tuple[str, ...]) -> Uses:
        """All of it. native: methods of the native module that ran."""
        calls = [
            Call(function, self._public(function), positional, keywords, told, tuple(sorted(texts)))
            for (function, positional, keywords, told), texts in self._calls.items()
        ]
        calls.sort(key=lambda call: (call.function, call.positional, call.keywords))
        return Uses(
            tuple(calls),
            tuple(sorted(self.attributes)),
            frozenset(self.reached),
            native,
            tuple(sorted(self.optional - self.attributes)),
        )

    def profile(self, frame: FrameType, event: str, arg: Any) -> None:
        """For sys.setprofile."""
        code = frame.f_code
        inside = self._inside.get(code)
        if inside is None:
            inside = self._inside[code] = self.owner.inside(code)
        if not inside:
            return
        if event == "call":
            self._enter(frame, code)
        elif event == "return" and self._entered and self._entered[-1][0] is frame:
            self._entered.pop()
            self.spy(arg)

    def _enter(self, frame: FrameType, code: CodeType) -> None:
        if code.co_name in ("<module>", "<genexpr>", "<listcomp>", "<dictcomp>", "<lambda>"):
            return
        self.reached.add(self.owner.name(code))
        caller = frame.f_back
        if caller is None or not self.owner.subject(caller.f_code):
            return
        code = _wrapped(frame)
        function = self.owner.name(code)
        given = given_by(caller)
        texts = self._calls.setdefault(
            (function, given.positional, given.keywords, given.told), set()
        )
        self._codes[function] = code
        self._entered.append((frame, texts))
        if code.co_name == "__init__" and code.co_varnames:
            self.spy(frame.f_locals.get(code.co_varnames[0]))

    def warned(self, text: str, category: Any) -> None:
        """Note a warning that FlashInfer gives."""
        if self._entered and issubclass(category, (DeprecationWarning, FutureWarning)):
            self._entered[-1][1].add(text)

    def spy(self, value: Any) -> None:
        """From now on note what is read and set from outside on objects of this one's class."""
        kind = type(value)
        file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
        if kind in self._spied or not file.startswith(self.owner.package):
            return
        getting: Any = kind.__getattribute__
        setting: Any = kind.__setattr__
        name = f"{file.removeprefix(self.owner.package.removesuffix(_ROOT + '/'))}:"
        name += kind.__qualname__

        def get(instance: Any, attribute: str) -> Any:
            found = getting(instance, attribute)
            caller = sys._getframe(1)
            if self._outside(caller):
                if not callable(found) or attribute in getattr(instance, "__dict__", {}):
                    self._attribute(kind, name, attribute, optional=falls_back(caller))
                self.spy(found)
            return found

        def put(instance: Any, attribute: str, value: Any) -> None:
            if self._outside(sys._getframe(1)):
                self._attribute(kind, name, attribute)
            setting(instance, attribute, value)

        try:
            own = (vars(kind).get("__getattribute__"), vars(kind).get("__setattr__"))
            kind.__getattribute__, kind.__setattr__ = get, put  # type: ignore[assignment]
            self._spied[kind] = own
        except TypeError:
            return  # a class that cannot be changed

    def unspy(self) -> None:
        """Leave the classes as they were."""
        for kind, own in self._spied.items():
            for name, value in zip(("__getattribute__", "__setattr__"), own, strict=True):
                if value is None:
                    delattr(kind, name)
                else:
                    setattr(kind, name, value)
        self._spied.clear()

    def _attribute(self, kind: type, name: str, attribute: str, *, optional: bool = False) -> None:
        dunder = attribute.startswith("__") and attribute.endswith("__")
        if not dunder and not inspect.isroutine(getattr(kind, attribute, None)):
            (self.optional if optional else self.attributes).add(f"{name}.{attribute}")

    def _outside(self, frame: FrameType) -> bool:
        return self.owner.subject(frame.f_code)

    def _public(self, function: str) -> tuple[str, ...]:
        """Names, in modules that the subject imported, by which it can have reached a function."""
        code, qualname = self._codes[function], function.partition(":")[2]
        head, _, rest = qualname.partition(".")
        found = []
        for name, module in list(sys.modules.items()):
            if name.split(".")[0] != _ROOT or module is None:
                continue
            for label, value in list(vars(module).items()):
                if _reaches(value, head, rest, code):
                    found.append((name, f"{name}:{label}" + (f".{rest}" if rest else "")))
        asked = [text for name, text in found if name in self.imported]
        plain = [text for name, text in found if "._" not in name]
        return tuple(sorted(asked or plain or [text for _, text in found]))


def _reaches(value: Any, head: str, rest: str, code: CodeType) -> bool:
    if isinstance(value, type):
        if not rest or value.__qualname__ != head:
            return False
        member = inspect.getattr_static(value, rest, None)
        return getattr(inspect.unwrap(_plain(member)), "__code__", None) is code
    if rest or not callable(value):
        return False
    try:
        return getattr(inspect.unwrap(value), "__code__", None) is code
    except (ValueError, TypeError):
        return False


def _plain(member: Any) -> Any:
    return getattr(member, "__func__", member)


def _wrapped(frame: FrameType) -> CodeType:
    """The code of the function that a decorator's frame stands for; else the frame's own."""
    code = frame.f_code
    if "<locals>" not in code.co_qualname:
        return code
    for name in code.co_freevars:
        value = frame.f_locals.get(name)
        if inspect.isfunction(value):
            inner: CodeType = inspect.unwrap(value).__code__
            return inner
    return code


@contextmanager
def tracing(owner: Owner, pausing: Sequence[tuple[Any, str]] = ()) -> Iterator[Trace]:
    """A context in which the uses of this thread are followed.

    pausing: functions, as a holder and a name, below which no use can be: what they run is not
    followed, which saves most of the time.
    """
    trace = Trace(owner)
    imports, warn = builtins.__import__, warnings.warn

    def note(name: str, *scopes: Any, fromlist: Any = (), **more: Any) -> Any:
        if name.split(".")[0] == _ROOT and owner.subject(sys._getframe(1).f_code):
            parts = scopes[2] if len(scopes) > 2 else fromlist
            trace.imported.update((name, *(f"{name}.{part}" for part in parts or ())))
        if fromlist:
            more["fromlist"] = fromlist
        return imports(name, *scopes, **more)

    def by_name(name: str, package: str | None = None) -> Any:
        if name.split(".")[0] == _ROOT and owner.subject(sys._getframe(1).f_code):
            trace.imported.add(name)
        return load(name, package)

    def tell(message: Any, category: Any = None, stacklevel: int = 1, *args: Any, **kw: Any) -> Any:
        kind = type(message) if isinstance(message, Warning) else category or UserWarning
        frame: FrameType | None = sys._getframe(1)
        if frame is not None and not owner.inside(frame.f_code):
            frame = frame.f_back  # another that listens stands between
        if frame is not None and owner.inside(frame.f_code):
            trace.warned(str(message), kind)
        return warn(message, category, stacklevel + 1, *args, **kw)

    load = importlib.import_module
    before = sys.getprofile()
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(builtins, "__import__", note))
        stack.enter_context(mock.patch.object(importlib, "import_module", by_name))
        stack.enter_context(mock.patch.object(warnings, "warn", tell))
        stack.callback(trace.unspy)
        for holder, name in pausing:
            stack.enter_context(_paused(holder, name))
        sys.setprofile(trace.profile)
        stack.callback(sys.setprofile, before)
        yield trace


def _paused(holder: Any, name: str) -> Any:
    """A patch under which a function of the suite, or of what it stands on, is not followed."""
    function = getattr(holder, name)

    def quietly(*args: Any, **kwargs: Any) -> Any:
        profile = sys.getprofile()
        sys.setprofile(None)
        try:
            return function(*args, **kwargs)
        finally:
            sys.setprofile(profile)

    return mock.patch.object(holder, name, quietly)
