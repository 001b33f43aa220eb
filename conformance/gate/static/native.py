"""Which C++ and CUDA text the SM90 MLA module is made of, found from what it exports.

Reach is by name: a part that mentions a name leads to every part that is known by it, of the files
included; a member only if its type is reached too. So what is found is all that can matter, and
some that cannot.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from os import walk
from os.path import normpath, relpath
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
Placed = tuple[str, Part]
"""A part and its file."""

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

        With the rest (ELSEWHERE) of each file that has a part of it.
        """
        found: dict[tuple[str, str], Part] = {}
        types: set[str] = set()
        unreached: list[Placed] = []  # members of types that may yet be reached
        waiting = list(self._known.get(function, ()))
        while waiting:
            name, part = waiting.pop()
            if (name, part.name) in found:
                continue
            if part.owner in self._types and part.owner not in types:
                unreached.append((name, part))
                continue
            found[name, part.name] = part
            for short in part.mentions:
                waiting += _visible(part, self._known.get(short, ()), self._opened)
            if " " in part.name:
                types.update(part.known_as)
                waiting += unreached
                unreached = []
                for short in part.known_as:
                    waiting += self._unnamed.get(short, ())
        for name in {name for name, _ in found}:
            found[name, ELSEWHERE] = self.parts(name)[ELSEWHERE]
        return dict(sorted(found.items()))

    @property
    def rest(self) -> dict[tuple[str, str], Part]:
        """What stands outside of functions, types, macros and values, of every file."""
        return {(name, ELSEWHERE): self.parts(name)[ELSEWHERE] for name in self.own}

    @cached_property
    def _known(self) -> Mapping[str, list[Placed]]:
        """Parts by the names that others mention."""
        known: dict[str, list[Placed]] = {}
        for name in self.own:
            for part in self.parts(name).values():
                for short in part.known_as:
                    known.setdefault(short, []).append((name, part))
        return known

    @cached_property
    def _opened(self) -> frozenset[str]:
        """Last names of the namespaces that `using namespace` opens anywhere."""
        return frozenset(
            next(word for word in reversed(_until(words, place + 2, ";")) if word != "::")
            for name in self.own
            for part in self.parts(name).values()
            for words in [part.words]
            for place in range(len(words) - 2)
            if words[place : place + 2] == ("using", "namespace")
        )

    @cached_property
    def _types(self) -> frozenset[str]:
        """Names of the types, macros and values whose text is there."""
        return frozenset(
            short
            for short, placed in self._known.items()
            if any(" " in part.name for _, part in placed)
        )

    @cached_property
    def _unnamed(self) -> Mapping[str, list[Placed]]:
        """By type, members that run without being named: constructors, destructors, operators."""
        found: dict[str, list[Placed]] = {}
        for short, placed in self._known.items():
            for name, part in placed:
                if part.owner and (short == part.owner or short.startswith("operator")):
                    found.setdefault(part.owner, []).append((name, part))
        return found

    def _resolved(self, includer: str, wanted: str) -> str | None:
        beside = includer.rpartition("/")[0]
        for folder in (beside, *_INCLUDED_FROM):
            name = normpath(f"{folder}/{wanted}")
            if name in self._files:
                return name
        return None

    @cached_property
    def _files(self) -> frozenset[str]:
        """Every file below the folder."""
        return frozenset(
            normpath(f"{relpath(folder, self._data)}/{file}")
            for folder, _, files in walk(self._data, followlinks=True)
            for file in files
        )


def _visible(user: Part, candidates: Sequence[Placed], opened: frozenset[str]) -> Iterator[Placed]:
    """Which parts of one name a part can mean, as C++ looks names up.

    Of the namespaces around the user the innermost that has the name; of the others those that it
    names or that are opened; members of any type, and macros.
    """
    free = [(name, part) for name, part in candidates if not part.owner]
    yield from ((name, part) for name, part in candidates if part.owner)
    around = {space for one in user.spaces for space in _enclosing(one)}
    depths = [_depth(space) for _, part in free for space in part.spaces & around]
    nearest = max(depths, default=-1)
    for name, part in free:
        near = any(_depth(space) >= nearest for space in part.spaces & around)
        others = {space.rpartition("::")[2] for space in part.spaces - around}
        named = not others.isdisjoint(user.mentions | opened)
        if near or named or part.name.startswith("macro "):
            yield name, part


def _until(words: Sequence[str], start: int, stop: str) -> Sequence[str]:
    """The words from a place to the first of a kind, at least one."""
    end = start + 1
    while end < len(words) and words[end] != stop:
        end += 1
    return words[start:end]


def _enclosing(space: str) -> Iterator[str]:
    """A namespace and those around it, the global one included."""
    while space:
        yield space
        space = space.rpartition("::")[0]
    yield ""


def _depth(space: str) -> int:
    return len(space.split("::")) if space else 0
