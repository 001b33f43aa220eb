"""Loads vLLM's modules out of a `Source`, beside whatever vLLM this process may have.

An import finder serves the source's files and, for every other `vllm.*` name, a stand-in. It and
the modules are in place only inside `Loaded.active()`; outside of it `sys.modules` and
`sys.meta_path` are as they were.
"""

import importlib
import linecache
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from conformance.subjects.vllm.source import Source
from conformance.subjects.vllm.standins import StandIn

ROOT = "vllm"


def _within(name: str, roots: Sequence[str]) -> bool:
    return any(name == root or name.startswith(f"{root}.") for root in roots)


class _Text(Loader):
    """Loads a module from its text, under a file name that says which vLLM it is of."""

    def __init__(self, text: str, filename: str) -> None:
        self._text, self._filename = text, filename

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        # Triton reads its kernels' sources again; an entry without a time is never looked up.
        lines = self._text.splitlines(keepends=True)
        linecache.cache[self._filename] = (len(self._text), None, lines, self._filename)
        module.__file__ = self._filename
        exec(compile(self._text, self._filename, "exec"), module.__dict__)

    def get_source(self, fullname: str) -> str:
        return self._text


class _Stub(Loader):
    """Makes a stand-in with the values that matter."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__.update(self._values)


class _Finder(MetaPathFinder):
    """Finds every `vllm.*` name, all of them packages, since any may have names below it."""

    def __init__(self, source: Source, values: Mapping[str, Mapping[str, Any]]) -> None:
        self._source, self._values = source, values

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not _within(fullname, (ROOT,)):
            return None
        name = f"{fullname.replace('.', '/')}.py"
        text = self._source.files.get(name)
        if text is None:
            return ModuleSpec(fullname, _Stub(self._values.get(fullname, {})), is_package=True)
        filename = f"<vllm {self._source.version} {self._source.digest}>/{name}"
        return ModuleSpec(fullname, _Text(text, filename), origin=filename, is_package=True)


class Loaded:
    """One load of a source: modules of its own, with its own stand-ins.

    values: names whose values matter, by module.
    """

    def __init__(self, source: Source, values: Mapping[str, Mapping[str, Any]]) -> None:
        self.source = source
        self._finder = _Finder(source, values)
        self._modules: dict[str, ModuleType] = {}
        self._depth = 0

    @contextmanager
    def active(self, others: Mapping[str, ModuleType] | None = None) -> Iterator[None]:
        """A context in which `import vllm...` means this load.

        others: modules in place of others of the same top names, which are hidden meanwhile.
        Inside of such a context it is left as it is.
        """
        if self._depth:
            yield
            return
        others = others or {}
        roots = (ROOT, *sorted({name.partition(".")[0] for name in others}))
        hidden = {name: sys.modules.pop(name) for name in _loaded(roots)}
        sys.modules.update({**self._modules, **others})
        sys.meta_path.insert(0, self._finder)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            sys.meta_path.remove(self._finder)
            left = {name: sys.modules.pop(name) for name in _loaded(roots)}
            self._modules = {name: found for name, found in left.items() if _within(name, (ROOT,))}
            sys.modules.update(hidden)

    def module(self, name: str) -> ModuleType:
        """A module of this load, by its dotted name."""
        with self.active():
            return importlib.import_module(name)


def _loaded(roots: Sequence[str]) -> list[str]:
    return [name for name in sys.modules if _within(name, roots)]
