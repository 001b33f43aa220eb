"""Which functions, classes and constants a Python function can lead to, by the names it mentions.

Followed are plain names, `self.x` in the class and its bases, and `module.x`. What is called on
another object is not: its type is not known without running.
"""

import ast
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache

from conformance.gate.static.library import Definition, Found, Library, Module


def closure(library: Library, roots: Iterable[Found], folder: str) -> dict[str, Found]:
    """Roots and what they lead to below a folder of the package, by `FILE:QUALNAME`."""
    found: dict[str, Found] = {}
    waiting = list(roots)
    while waiting:
        one = waiting.pop()
        if one.place in found:
            continue
        found[one.place] = one
        for other in mentioned(library, one):
            if other.module.file.startswith(folder):
                # What a method leads to may be handed its `self`: a decorator's wrapper is.
                lent = other.function is not None and other.owner is None
                waiting.append(replace(other, owner=one.owner) if lent else other)
    return dict(sorted(found.items()))


def one_step(library: Library, roots: Iterable[Found], folder: str) -> dict[str, Found]:
    """Roots and what they mention themselves below a folder of the package."""
    found = {one.place: one for one in roots}
    for root in list(found.values()):
        for one in mentioned(library, root):
            if one.module.file.startswith(folder):
                found.setdefault(one.place, one)
    return dict(sorted(found.items()))


def mentioned(library: Library, found: Found) -> Iterator[Found]:
    """What the text of a function, class or value names; of a named class, what runs first."""
    names: set[str] = set()
    for node in found.nodes:
        names |= _dotted_names(node)
    for name in sorted(names):
        first, _, rest = name.partition(".")
        if first in ("self", "cls") and found.owner is not None:
            member = rest.partition(".")[0]
            led = library.member(found.owner, member) if member else None
        else:
            led = _longest(library, found.module, name)
        if led is None:
            continue
        yield led
        if led.cls is not None:
            for method in ("__new__", "__init__", "__post_init__", "__call__"):
                made = library.member(led, method)
                if made is not None:
                    yield made


def text_digest(found: Found) -> str:
    """Hash of the code: comments, layout and docstrings aside. Of a class without its methods."""
    made = hashlib.blake2b(digest_size=16)
    for node in found.nodes:
        made.update(_code(node).encode() + b"\0")
    return made.hexdigest()


@lru_cache(maxsize=4096)  # two packages share the trees of files that are the same
def _code(node: ast.AST) -> str:
    plain = ast.parse(ast.unparse(node))
    for inner in ast.walk(plain):
        if not isinstance(inner, Definition | ast.ClassDef):
            continue
        if ast.get_docstring(inner, clean=False) is not None:
            inner.body = inner.body[1:] or [ast.Pass()]
    if isinstance(node, ast.ClassDef):
        top = plain.body[0]
        assert isinstance(top, ast.ClassDef)
        top.body = [one for one in top.body if not isinstance(one, Definition)]
    return ast.dump(plain)


def _longest(library: Library, module: Module, name: str) -> Found | None:
    """What the longest leading piece of a dotted name leads to."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        led = library.inside(module, ".".join(parts[:count]))
        if led is not None:
            return led
    return None


@lru_cache(maxsize=4096)
def _dotted_names(node: ast.AST) -> frozenset[str]:
    """Each name in a text with the attributes behind it; a class's methods left out."""
    found: set[str] = set()
    skipped: set[int] = set()
    if isinstance(node, ast.ClassDef):
        for statement in node.body:
            if isinstance(statement, Definition):
                skipped |= {id(inner) for inner in ast.walk(statement)}
    for inner in ast.walk(node):
        if id(inner) in skipped or not isinstance(inner, ast.Attribute | ast.Name):
            continue
        parts: list[str] = []
        part: ast.expr = inner
        while isinstance(part, ast.Attribute):
            parts.insert(0, part.attr)
            part = part.value
        if isinstance(part, ast.Name):
            found.add(".".join([part.id, *parts]))
    return frozenset(found)
