"""Whether the attributes of FlashInfer's objects that a subject touches are still there."""

import ast
import re
from collections.abc import Iterable

from conformance.gate.model import Change, Finding, Weight
from conformance.gate.static.library import Definition, Found, Library
from conformance.gate.static.names import Callee, Sides


def judge(
    sides: Sides, attributes: Iterable[str], callees: Iterable[Callee], *, needed: bool = True
) -> list[Finding]:
    """One finding per attribute, named `FILE:CLASS.NAME`.

    needed: whether the subject has nothing in their place; one that has is only to be read.
    """
    homes = _homes(callees)
    return [_one(sides, attribute, homes, needed) for attribute in sorted(set(attributes))]


def assigned(library: Library, cls: Found) -> frozenset[str]:
    """Attributes that instances of a class can have, by its text and that of its bases.

    Those set on `self` or in the class, methods and properties; and, since some are set from lists
    of names, every text constant that is a name in the module of a class which uses `setattr`.
    """
    names: set[str] = set()
    for one in library.lineage(cls):
        assert one.cls is not None
        for node in ast.walk(one.cls):
            if isinstance(node, Definition):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                if ast.unparse(node.value) in ("self", "cls"):
                    names.add(node.attr)
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "setattr":
                names |= {text for text in one.module.texts if text.isidentifier()}
        for statement in one.cls.body:
            if isinstance(statement, ast.Assign):
                names |= {ast.unparse(target) for target in statement.targets}
                if any(ast.unparse(target) == "__slots__" for target in statement.targets):
                    names |= set(re.findall(r"\w+", ast.unparse(statement.value)))
            elif isinstance(statement, ast.AnnAssign):
                names.add(ast.unparse(statement.target))
    return frozenset(names)


def _one(sides: Sides, attribute: str, homes: dict[str, Found], needed: bool) -> Finding:
    place, _, name = attribute.rpartition(".")
    class_name = place.partition(":")[2]
    before, after = sides.before.place(place), homes.get(place) or sides.after.place(place)
    had = before is not None and name in assigned(sides.before, before)
    has = after is not None and name in assigned(sides.after, after)
    key = f"static/name/{attribute}"
    where = after.place if after is not None else ""
    if has:
        return Finding(
            key, Change.UNCHANGED, Weight.NOTE, f"{class_name} has the attribute {name}.",
            place, where, after.cause if after is not None else "",
        )  # fmt: skip
    if not had:
        return Finding(
            key, Change.UNCHANGED, Weight.NOTE,
            f"{class_name}.{name} is set in a way that the text does not tell, on both sides.",
            place, where,
        )  # fmt: skip
    gone = "the class is gone" if after is None else "nothing in the class sets it any more"
    cause = after.cause if after is not None else place.replace(":", ": ")
    uses = "uses" if needed else "asks for with something else in its place"
    return Finding(
        key, Change.DELETED, Weight.OBJECTION if needed else Weight.REVIEW,
        f"{class_name} has lost the attribute {name}, which the subject {uses}: {gone}.",
        attribute, "", cause,
    )  # fmt: skip


def _homes(callees: Iterable[Callee]) -> dict[str, Found]:
    """The candidate's classes whose methods a subject calls, by their place in the baseline."""
    homes: dict[str, Found] = {}
    for callee in callees:
        if callee.before is None or callee.after is None:
            continue
        old = callee.before if callee.before.cls is not None else callee.before.owner
        new = callee.after if callee.after.cls is not None else callee.after.owner
        if old is not None and new is not None:
            homes[old.place] = new
    return homes
