"""Parameters of a Python function as its text declares them, and what a call gives to them."""

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from conformance.gate.static.library import Definition, Found, Library

BY_POSITION = ("positional only", "either")


@dataclass(frozen=True)
class Parameter:
    """One parameter. kind: 'positional only', 'either', 'by name', '*' or '**'.

    default: its text, that of a module's constant followed; None where it must be given.
    """

    name: str
    kind: str
    default: str | None = None

    @property
    def required(self) -> bool:
        """Whether a call must give it."""
        return self.default is None and self.kind not in ("*", "**")


@dataclass(frozen=True)
class Signature:
    """The parameters of a function, without the instance."""

    parameters: tuple[Parameter, ...]

    def get(self, name: str) -> Parameter | None:
        """The parameter of a name."""
        return next((one for one in self.parameters if one.name == name), None)

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def __str__(self) -> str:
        shown = []
        for one in self.parameters:
            mark = one.kind if one.kind in ("*", "**") else ""
            shown.append(f"{mark}{one.name}" + (f"={one.default}" if one.default else ""))
        return f"({', '.join(shown)})"

    @property
    def in_order(self) -> tuple[Parameter, ...]:
        """Those that a call may give by position."""
        return tuple(one for one in self.parameters if one.kind in BY_POSITION)

    def takes(self, kind: str) -> bool:
        """Whether there is a `*` or a `**` parameter."""
        return any(one.kind == kind for one in self.parameters)

    def given(self, positional: int, keywords: Sequence[str]) -> frozenset[str]:
        """Names of the parameters that such a call gives."""
        named = {name for name in keywords if name in self}
        return frozenset({one.name for one in self.in_order[:positional]} | named)

    def binds(self, positional: int, keywords: Sequence[str]) -> bool:
        """Whether Python would accept such a call."""
        ordered = self.in_order
        if positional > len(ordered) and not self.takes("*"):
            return False
        first = {one.name for one in ordered[:positional]}
        for name in keywords:
            one = self.get(name)
            known = one is not None and one.kind in ("either", "by name")
            if name in first or not (known or self.takes("**")):
                return False
        given = self.given(positional, keywords)
        return all(one.name in given for one in self.parameters if one.required)


def signature(library: Library, found: Found) -> Signature | None:
    """The signature of a function, or of calling a class; None where the text does not tell."""
    if found.cls is not None:
        made = library.member(found, "__init__")
        if made is not None:
            return signature(library, made)
        return _of_fields(library, found)
    if found.function is None:
        return None
    marks = {ast.unparse(mark) for mark in found.function.decorator_list}
    bound = found.owner is not None and "staticmethod" not in marks
    parameters = _declared(library, found, found.function)
    if bound and parameters and parameters[0].kind in BY_POSITION:
        parameters = parameters[1:]
    return Signature(tuple(parameters))


def _declared(library: Library, found: Found, node: Definition) -> list[Parameter]:
    args = node.args
    made: list[Parameter] = []
    ordered = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(ordered) - len(args.defaults)) + list(args.defaults)
    for index, (one, default) in enumerate(zip(ordered, defaults, strict=True)):
        kind = BY_POSITION[index >= len(args.posonlyargs)]
        made.append(Parameter(one.arg, kind, _text(library, found, default)))
    if args.vararg:
        made.append(Parameter(args.vararg.arg, "*"))
    for one, late in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        made.append(Parameter(one.arg, "by name", _text(library, found, late)))
    if args.kwarg:
        made.append(Parameter(args.kwarg.arg, "**"))
    return made


def _of_fields(library: Library, found: Found) -> Signature | None:
    """A dataclass's: its fields, those of its bases first."""
    fields: dict[str, Parameter] = {}
    for cls in reversed(library.lineage(found)):
        assert cls.cls is not None
        if not any("dataclass" in ast.unparse(mark) for mark in cls.cls.decorator_list):
            return None
        for node in cls.cls.body:
            if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
                continue
            if "ClassVar" not in ast.unparse(node.annotation):
                default = _text(library, cls, node.value)
                fields[node.target.id] = Parameter(node.target.id, "either", default)
    return Signature(tuple(fields.values()))


def _text(library: Library, found: Found, default: ast.expr | None) -> str | None:
    """A default's text; of a name, that of the constant that it leads to."""
    if default is None:
        return None
    if isinstance(default, ast.Name | ast.Attribute):
        led = library.dotted(found.module, default)
        if led is not None and isinstance(led.nodes[0], ast.expr):
            return ast.unparse(led.nodes[0])
    return ast.unparse(default)
