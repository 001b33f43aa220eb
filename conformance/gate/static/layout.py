"""The plan's layout as the headers spell it: plan-info, and the arrays that it points to."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from tree_sitter import Node

from conformance.gate.model import Change, Finding, Weight
from conformance.gate.package import Package
from conformance.twin.planner import INFO_FIELDS
from conformance.twin.sources import tree

HEADER = "include/flashinfer/attention/scheduler.cuh"
STRUCT = "MLAPlanInfo"
PLAN = "MLAPlan"
_FILE = f"flashinfer/data/{HEADER}"
_WRITES = "ToVector"
_READS = "FromVector"
_ALLOCATES = "aligned_alloc_offset"


@dataclass(frozen=True)
class Layout:
    """Each is a sequence of field names without `_offset`, in order.

    fields: as the struct declares them. written: as ToVector returns them. read: as FromVector
    takes them, `NAME` from place i at i. length: what FromVector says it needs. arrays: as MLAPlan
    allocates them, each as `ALLOCATOR: NAME[SIZE, ALIGNMENT]`, with what the sizes stand for last.
    """

    fields: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    length: tuple[str, ...] = ()
    arrays: tuple[str, ...] = ()


_TOLD = {
    "fields": (STRUCT, "the fields of plan-info"),
    "written": (f"{STRUCT}::{_WRITES}", "plan-info as the planner returns it"),
    "read": (f"{STRUCT}::{_READS}", "plan-info as the kernel's launch reads it"),
    "length": (f"{STRUCT}::{_READS}", "the length of plan-info"),
    "arrays": (PLAN, "the work arrays in the workspaces"),
}


def judge(before: Package, after: Package) -> list[Finding]:
    """One finding per sequence of the layout, and one for the twin's idea of plan-info."""
    old, new = of_package(before), of_package(after)
    return [*(_compared(name, old, new) for name in _TOLD), _twins(new)]


def of_package(package: Package) -> Layout:
    """The layout of a package; empty where there is no such header."""
    path = package.data / HEADER
    return parse(path.read_text(errors="replace")) if path.is_file() else Layout()


def parse(text: str) -> Layout:
    """The layout in a header's text; a sequence that is not found is empty."""
    root = tree(text)
    struct = next((n for n in _all(root, "struct_specifier") if _named(n) == STRUCT), None)
    if struct is None or (body := struct.child_by_field_name("body")) is None:
        return Layout()
    fields = [
        _bare(_words(declarator))
        for node in body.named_children
        if node.type == "field_declaration"
        for declarator in node.children_by_field_name("declarator")
    ]
    methods = {_method(n): n for n in _all(body, "function_definition")}
    written, reads = methods.get(_WRITES), methods.get(_READS)
    listed = _all(written, "initializer_list") if written else ()
    return Layout(
        fields=tuple(fields),
        written=tuple(_bare(_words(n)) for one in listed for n in one.named_children),
        read=_read(reads) if reads else (),
        length=tuple(_lengths(reads)) if reads else (),
        arrays=tuple(_arrays(root)),
    )


def _read(function: Node) -> tuple[str, ...]:
    """Field names by the place of the vector that each is taken from."""
    by_place: dict[str, str] = {}
    for node in _all(function, "assignment_expression"):
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        if left is not None and right is not None and right.type == "subscript_expression":
            by_place[_words(right).partition("[")[2].rstrip("]")] = _bare(_words(left))
    ordered = sorted(by_place.items(), key=lambda pair: (len(pair[0]), pair[0]))
    whole = [place for place, _ in ordered] == [str(i) for i in range(len(ordered))]
    return tuple(name if whole else f"{name} from {place}" for place, name in ordered)


def _lengths(function: Node) -> Iterator[str]:
    for node in _all(function, "binary_expression"):
        if "size()" in _words(node) and "<<" not in _words(node):
            yield _words(node)


def _arrays(root: Node) -> Iterator[str]:
    plan = next((n for n in _all(root, "function_definition") if _method(n) == PLAN), None)
    if plan is None:
        return
    sized: set[str] = set()
    for node in _all(plan, "call_expression"):
        function = node.child_by_field_name("function")
        given = node.child_by_field_name("arguments")
        if function is None or given is None or not _words(function).endswith(_ALLOCATES):
            continue
        target = node.parent.child_by_field_name("left") if node.parent else None
        name = _bare(_words(target).rpartition(".")[2]) if target else "?"
        shown = [_words(argument) for argument in given.named_children[:2]]
        sized |= {
            _words(n) for argument in given.named_children for n in _all(argument, "identifier")
        }
        yield f"{_words(function).partition('.')[0]}: {name}[{', '.join(shown)}]"
    for node in _all(plan, "init_declarator"):
        declared = node.child_by_field_name("declarator")
        if declared is not None and _words(declared) in sized:
            yield _words(node)


def _compared(name: str, before: Layout, after: Layout) -> Finding:
    function, what = _TOLD[name]
    old, new = getattr(before, name), getattr(after, name)
    cause = f"{_FILE}: {function}"
    key = f"static/layout/{name}"
    if not new:
        return Finding(
            key, Change.DELETED, Weight.OBJECTION,
            f"{what[0].upper()}{what[1:]} cannot be read from the candidate's header.",
            ", ".join(old), "", cause,
        )  # fmt: skip
    first = _first_difference(old, new)
    if first is None:
        return Finding(
            key, Change.UNCHANGED, Weight.NOTE, f"The same: {what}.", ", ".join(old),
            ", ".join(new), cause,
        )  # fmt: skip
    place, was, now = first
    return Finding(
        key, Change.CHANGED, Weight.OBJECTION,
        f"Changed: {what}; first at place {place}, which was {was} and is {now}.",
        ", ".join(old), ", ".join(new), cause,
    )  # fmt: skip


def _twins(after: Layout) -> Finding:
    first = _first_difference(INFO_FIELDS, after.written)
    same = first is None
    place, was, now = first or (0, "", "")
    return Finding(
        "static/layout/twin",
        Change.UNCHANGED if same else Change.CHANGED,
        Weight.NOTE if same else Weight.OBJECTION,
        "The candidate's plan-info is the one that the simulated planner writes."
        if same
        else f"The simulated planner writes {was} at place {place} of plan-info, the candidate "
        f"{now}.",
        ", ".join(INFO_FIELDS),
        ", ".join(after.written),
        f"{_FILE}: {STRUCT}::{_WRITES}",
    )


def _first_difference(old: tuple[str, ...], new: tuple[str, ...]) -> tuple[int, str, str] | None:
    """Place from 0, what was there and what is, of the first difference."""
    for place, (was, now) in enumerate(zip_longest(old, new, fillvalue="nothing")):
        if was != now:
            return place, was, now
    return None


def _all(node: Node, kind: str) -> Iterator[Node]:
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if one.type == kind:
            yield one
        waiting += reversed(one.children)


def _named(node: Node) -> str:
    name = node.child_by_field_name("name")
    return _words(name) if name is not None else ""


def _method(node: Node) -> str:
    declarator = node.child_by_field_name("declarator")
    return _words(declarator).partition("(")[0].lstrip("*&") if declarator is not None else ""


def _words(node: Node) -> str:
    return "".join((node.text or b"").decode().split())


def _bare(name: str) -> str:
    return name.removesuffix("_offset")
