"""C++ and CUDA sources cut into functions, types, macros and the rest, each as its tokens.

tree-sitter says where a part begins and ends; its tokens come from `conformance.twin.tokens`, and
each token of a file is in exactly one part. So what the parser cannot place is in the part
ELSEWHERE, and a change of it is a change there.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import tree_sitter_cpp
from tree_sitter import Language, Node, Parser

from conformance.twin.tokens import END_OF_DIRECTIVE, Token, digest, tokens

ELSEWHERE = "elsewhere"
"""The part that holds what is in no other: includes, namespaces, declarations, odd text."""

# What makes the C++ grammar stumble: CUDA's qualifiers, macros that stand for them, and launches.
_QUALIFIER = re.compile(
    r"\b__(?!attribute__)[a-z_]+__\b(?:\s*\((?:[^()]|\([^()]*\))*\))?"
    r"|(?<!define )\b[A-Z_]+_INLINE\b"
)
_STRANGE = re.compile(r"[^\x00-\x7f]")
_LAUNCH = re.compile(r"<<<(.*?)>>>(?=\s*\()", re.DOTALL)
_TYPES = ("struct_specifier", "class_specifier", "union_specifier", "enum_specifier")
_KINDS = tuple(f"{kind.partition('_')[0]} " for kind in _TYPES)
_MACROS = ("preproc_def", "preproc_function_def")
_NAMES = re.compile(r"[^\W\d]\w*")
_ARGUMENTS = re.compile(r"<[^<>]*>")


@dataclass(frozen=True)
class Part:
    """One part of a file. name: `f`, `Class::f`, `struct S`, `macro M`, `variable V`, ELSEWHERE.

    words: its tokens; those of overloads and specialisations of one name together, in an order
    that does not depend on theirs. mentions: the names among them. spaces: the namespaces it is
    in, as `a::b`.
    """

    name: str
    words: tuple[str, ...]
    mentions: frozenset[str]
    spaces: frozenset[str] = frozenset()

    @cached_property
    def digest(self) -> str:
        """Hash of its tokens."""
        return digest(self.words)

    @cached_property
    def known_as(self) -> tuple[str, ...]:
        """The names by which other parts mention it: of an enum its values too; of ELSEWHERE none.

        A member's stands for the member of any type.
        """
        if self.name == ELSEWHERE:
            return ()
        kind, _, names = self.name.partition(" ")
        if kind == "enum":
            return tuple(sorted(self.mentions))
        listed = names.split(",") if kind == "variable" else [self.name]
        return tuple(_NAMES.findall(_bare(name))[-1] for name in listed)

    @cached_property
    def owner(self) -> str:
        """The type that it is a member of, without template arguments; "" for none."""
        names = _NAMES.findall(_bare(self.name).rpartition("::")[0])
        return names[-1] if names else ""


@lru_cache(maxsize=512)  # two packages share most of their files
def parts(text: str) -> Mapping[str, Part]:
    """Every part of a source text by name, in the order of first appearance, ELSEWHERE first."""
    found = tuple(tokens(text))
    plain, starts = _plain(found)
    owners = [0] * len(found)
    labels, spaces = [ELSEWHERE], [""]
    for begin, behind, label, space in _spans(_parse(plain)):
        first, last = bisect_left(starts, begin), bisect_left(starts, behind)
        while first and not plain[starts[first - 1]].strip() and found[first - 1].text.strip():
            first -= 1  # qualifiers in front, blanked
        if label.startswith(_KINDS) and last < len(found) and found[last].text == ";":
            last += 1
        owners[first:last] = [len(labels)] * (last - first)
        labels.append(label)
        spaces.append(space)
    pieces: list[list[str]] = [[] for _ in labels]
    named: list[set[str]] = [set() for _ in labels]
    for owner, token in zip(owners, found, strict=True):
        pieces[owner].append(token.text)
        if token.word:
            named[owner].add(token.text)
    by_label: dict[str, list[int]] = {}
    for index, label in enumerate(labels):
        by_label.setdefault(label, []).append(index)
    return {
        label: Part(
            label,
            tuple(word for piece in sorted(pieces[i] for i in these) for word in piece),
            frozenset(name for i in these for name in named[i]),
            frozenset(spaces[i] for i in these),
        )
        for label, these in by_label.items()
    }


def tree(text: str) -> Node:
    """tree-sitter's tree of a source text without comments, layout and CUDA's own syntax."""
    return _parse(_plain(tuple(tokens(text)))[0])


@lru_cache
def _parser() -> Parser:
    return Parser(Language(tree_sitter_cpp.language()))


def _parse(plain: str) -> Node:
    return _parser().parse(plain.encode()).root_node


def _plain(found: Sequence[Token]) -> tuple[str, list[int]]:
    """The tokens in ASCII, spaced in one way and in what the C++ grammar knows; their starts.

    So the tree, and with it every border of a part, depends on the tokens alone.
    """
    pieces: list[str] = []
    starts: list[int] = []
    at, before, last = 0, "", ""
    blank, directive = _directives(found), False
    for token, hidden in zip(found, blank, strict=True):
        together = (before == "define" and token.text == "(") or last + token.text in ("[[", "]]")
        space = "" if together or token.text == END_OF_DIRECTIVE else " "
        if token.text == "#" and not directive:
            directive, space = True, "\n"
        directive = directive and token.text != END_OF_DIRECTIVE
        shown = token.text if token.text.isascii() else _STRANGE.sub("x", token.text)
        pieces += [space, " " * len(shown) if hidden else shown]
        starts.append(at + len(space))
        at += len(space) + len(shown)
        before, last = last, token.text
    text = _QUALIFIER.sub(lambda word: " " * len(word[0]), "".join(pieces))
    return _LAUNCH.sub(lambda launch: f"(  {launch[1]}  )", text), starts


def _directives(found: Sequence[Token]) -> list[bool]:
    """Which tokens are of a preprocessor line that is no `#define`.

    They are blanked: a condition's two ways seldom fit into one tree.
    """
    hidden: list[bool] = []
    inside = defines = False
    for index, token in enumerate(found):
        if token.text == "#" and not inside:
            inside = True
            defines = index + 1 < len(found) and found[index + 1].text == "define"
        hidden.append(inside and not defines)
        inside = inside and token.text != END_OF_DIRECTIVE
    return hidden


def _spans(root: Node) -> Iterator[tuple[int, int, str, str]]:
    """(first, behind the last, label, namespace) of each part but ELSEWHERE; inner after outer."""
    waiting = [(root, "", "")]
    while waiting:
        node, scope, space = waiting.pop()
        label = _label(node, scope)
        if label:
            head = node
            while head.parent is not None and head.parent.type == "template_declaration":
                head = head.parent
            yield head.start_byte, node.end_byte, label, space
        if node.type == "function_definition" and label:
            continue
        if node.type in _TYPES and label:
            scope = f"{scope}{label.partition(' ')[2]}::"
        if node.type == "namespace_definition":
            space = f"{space}::{_text(node.child_by_field_name('name'))}".strip(":")
        waiting += [(child, scope, space) for child in reversed(node.children)]


def _bare(name: str) -> str:
    """A qualified name without template arguments."""
    while (shorter := _ARGUMENTS.sub("", name)) != name:
        name = shorter
    return name


def _label(node: Node, scope: str) -> str:
    """The label of the part that a node is, "" where it is none of its own."""
    if node.type == "function_definition":
        return scope + (_declared(node) or "?")
    if node.type in _TYPES and node.child_by_field_name("body"):
        name = node.child_by_field_name("name")
        return f"{node.type.partition('_')[0]} {scope}{_text(name)}" if name else ""
    if node.type in _MACROS:
        return f"macro {_text(node.child_by_field_name('name'))}"
    outside = not scope and node.type in ("declaration", "alias_declaration")
    if outside and node.type == "alias_declaration":
        return f"alias {_text(node.child_by_field_name('name'))}"
    if outside and any(child.type == "init_declarator" for child in node.children):
        declared = node.children_by_field_name("declarator")
        return f"variable {','.join(_declared_by(child) for child in declared)}"
    return ""


def _declared(node: Node) -> str:
    """The name that a definition declares."""
    inner = node.child_by_field_name("declarator")
    return _declared_by(inner) if inner is not None else ""


def _declared_by(inner: Node) -> str:
    """The name in a declarator, below pointers, references and parameters."""
    while True:
        deeper = inner.child_by_field_name("declarator")
        if deeper is None and inner.type in ("reference_declarator", "parenthesized_declarator"):
            deeper = next(iter(inner.named_children), None)
        if deeper is None:
            return _text(inner).partition("(")[0]
        inner = deeper


def _text(node: Node | None) -> str:
    raw = node.text if node is not None else None
    return "".join((raw or b"").decode().split())
