"""Which C++ and CUDA text the SM90 MLA module is made of, found from what it exports.

Reach is by name: a part that mentions a name leads to every part that is known by it, of the files
included; a member only if its type is reached too. So what is found is all that can matter, and
some that cannot.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path

from conformance.twin.sources import ELSEWHERE, Part, parts
from conformance.twin.tokens import tokens

_INCLUDE = re.compile(r'^[^\S\n]*#[^\S\n]*include[^\S\n]*[<"]([^>"\n]+)[>"]', re.MULTILINE)
_BINDINGS = "csrc/batch_mla_sm90*.cu"
_TEMPLATE = "csrc/batch_mla_config.jinja"  # becomes the header that each of the above includes
_INCLUDED_FROM = (
    *("csrc", "include", "cutlass/include"),
    *("cccl/libcudacxx/include", "cccl/cub", "cccl/thrust"),
)
_OWN = ("csrc/", "include/flashinfer/")
_EXPORT = re.compile(r"\w+_EXPORT_\w+ \( (\w+) , (\w+) \)")


class Native:
    """The native sources below a package's `data` folder; files are named relative to it."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._parts: dict[str, Mapping[str, Part]] = {}

    @cached_property
    def bindings(self) -> tuple[str, ...]:
        """The module's own sources and the template of its configuration."""
        found = [path.relative_to(self._data).as_posix() for path in self._data.glob(_BINDINGS)]
        if (self._data / _TEMPLATE).is_file():
            found.append(_TEMPLATE)
        return tuple(sorted(found))

    @cached_property
    def included(self) -> tuple[str, ...]:
        """Every file of the package that compiling the module can read, those above included."""
        seen: set[str] = set()
        waiting = list(self.bindings)
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            for wanted in _INCLUDE.findall(self.text(name)):
                led = self._resolved(name, wanted)
                if led is not None:
                    waiting.append(led)
        return tuple(sorted(seen))

    @cached_property
    def own(self) -> tuple[str, ...]:
        """Those of FlashInfer itself."""
        return tuple(name for name in self.included if name.startswith(_OWN))

    @cached_property
    def foreign(self) -> tuple[str, ...]:
        """Those of libraries that the package brings."""
        return tuple(name for name in self.included if not name.startswith(_OWN))

    @cached_property
    def exports(self) -> Mapping[str, str]:
        """Methods of the module to the C++ functions behind them."""
        found: dict[str, str] = {}
        for name in self.bindings:
            words = " ".join(token.text for token in tokens(self.text(name)))
            found |= dict(_EXPORT.findall(words))
        return found

    def text(self, name: str) -> str:
        """A file's text."""
        return (self._data / name).read_text(errors="replace")

    def bytes(self, name: str) -> bytes:
        """A file's bytes."""
        return (self._data / name).read_bytes()

    def parts(self, name: str) -> Mapping[str, Part]:
        """A file's parts."""
        if name not in self._parts:
            self._parts[name] = parts(self.text(name))
        return self._parts[name]

    def reach(self, function: str) -> dict[tuple[str, str], Part]:
        """What a function leads to, itself included, by (file, part).

        With the rest (ELSEWHERE) of each file, which may decide what a part means.
        """
        known: dict[str, list[tuple[str, Part]]] = {}
        for name in self.own:
            for part in self.parts(name).values():
                for short in part.known_as:
                    known.setdefault(short, []).append((name, part))
        found: dict[tuple[str, str], Part] = {}
        types: set[str] = set()
        mentioned: set[str] = set()
        members: list[tuple[str, Part]] = []
        waiting = list(known.get(function, ()))
        while waiting:
            name, part = waiting.pop()
            if (name, part.name) in found:
                continue
            if part.owner and part.owner not in types and part.owner in self._types:
                members.append((name, part))
                continue
            found[name, part.name] = part
            new = part.mentions - mentioned
            mentioned |= new
            for short in new:
                waiting += known.get(short, ())
            if " " in part.name:
                types.update(part.known_as)
                waiting += members
                members = []
                waiting += self._unnamed(part.known_as)
        if found:
            for name in self.own:
                found.setdefault((name, ELSEWHERE), self.parts(name)[ELSEWHERE])
        return dict(sorted(found.items()))

    @cached_property
    def _types(self) -> frozenset[str]:
        """Names of the types whose text is there."""
        return frozenset(
            short
            for name in self.own
            for part in self.parts(name).values()
            if " " in part.name
            for short in part.known_as
        )

    def _unnamed(self, types: Iterable[str]) -> Iterator[tuple[str, Part]]:
        """Members that run without being named: constructors, destructors, operators."""
        for name in self.own:
            for part in self.parts(name).values():
                if part.owner in types and (
                    part.known_as[0] == part.owner or part.known_as[0].startswith("operator")
                ):
                    yield name, part

    def _resolved(self, includer: str, wanted: str) -> str | None:
        beside = Path(includer).parent
        for folder in (beside, *map(Path, _INCLUDED_FROM)):
            path = self._data / folder / wanted
            if path.is_file():
                return _plain(folder / wanted)
        return None


def _plain(path: Path) -> str:
    """A relative path without `..`."""
    found: list[str] = []
    for part in path.parts:
        if part == ".." and found:
            found.pop()
        else:
            found.append(part)
    return "/".join(found)
