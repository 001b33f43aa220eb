"""Deprecation warnings that a called function can raise in the candidate and could not before."""

import ast
from collections.abc import Iterator

from conformance.gate.model import Change, Finding, Weight
from conformance.gate.static.library import Found, Library
from conformance.gate.static.mentions import closure
from conformance.gate.static.names import Callee, Sides

_CATEGORIES = ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning")
_MARKS = ("deprecated", "deprecate")  # decorators
_MOST = 160  # characters of a warning's text that are shown


def judge(sides: Sides, callee: Callee, folder: str) -> list[Finding]:
    """New warnings of one function and of what it leads to below a folder of the package."""
    if callee.before is None or callee.after is None:
        return []
    before = warnings(sides.before, callee.before, folder)
    after = warnings(sides.after, callee.after, folder)
    new = {text: place for text, place in after.items() if text not in before}
    if not new:
        return []
    seen = sorted({text for call in callee.calls for text in call.warned})
    texts = sorted(new)
    return [
        Finding(
            key=f"static/deprecation/{callee.label}",
            change=Change.ADDED,
            weight=Weight.REVIEW,
            what=f"{callee.name} can warn of a deprecation that it did not warn of: "
            + _cut(texts[0]),
            before="; ".join(map(_cut, seen)),
            after="; ".join(map(_cut, texts)),
            cause=new[texts[0]],
        )
    ]


def warnings(library: Library, found: Found, folder: str) -> dict[str, str]:
    """Texts of the deprecations that a function leads to, each with its `file: function`."""
    return {
        text: one.cause
        for one in closure(library, [found], folder).values()
        if one.cls is None
        for node in one.nodes
        for text in _texts(node)
    }


def _texts(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        if not isinstance(inner, ast.Call):
            continue
        given = [ast.unparse(one) for one in (*inner.args, *(k.value for k in inner.keywords))]
        called = ast.unparse(inner.func).rpartition(".")[2]
        if any(text.endswith(_CATEGORIES) for text in given) or called in _MARKS:
            yield _said(inner)


def _said(call: ast.Call) -> str:
    """The constant text among a warning's arguments."""
    pieces = [
        node.value
        for argument in (*call.args, *(keyword.value for keyword in call.keywords))
        for node in ast.walk(argument)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return " ".join(" ".join(pieces).split()) or ast.unparse(call)


def _cut(text: str) -> str:
    return text if len(text) <= _MOST else f"{text[: _MOST - 3]}..."
