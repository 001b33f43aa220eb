"""A package's Python read without importing it: where a dotted name leads, and what is there."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from conformance.gate.errors import PackageError

Definition = ast.FunctionDef | ast.AsyncFunctionDef
LOCALS = "<locals>"


@dataclass(frozen=True)
class Imported:
    """A name that `from MODULE import NAME` binds; without a name, the module itself."""

    module: str
    name: str


Bound = Definition | ast.ClassDef | ast.expr | Imported


class Module:
    """One parsed file. name: dotted. file: relative to the folder that holds the package."""

    def __init__(self, name: str, file: str, tree: ast.Module) -> None:
        self.name, self.file, self.tree = name, file, tree
        self._package = name if file.endswith("/__init__.py") else name.rpartition(".")[0]

    @cached_property
    def names(self) -> Mapping[str, tuple[Bound, ...]]:
        """What each name is bound to at the end of the file: one thing, or a property's parts."""
        return bindings(self.tree.body, self)

    @cached_property
    def stars(self) -> tuple[str, ...]:
        """Modules whose names are all imported."""
        return tuple(
            self.absolute(node)
            for node in self.tree.body
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
        )

    @cached_property
    def texts(self) -> frozenset[str]:
        """Every string constant."""
        return frozenset(
            node.value
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        )

    def absolute(self, node: ast.ImportFrom) -> str:
        """The dotted module of a `from` import."""
        return self.relative("." * node.level + (node.module or ""))

    def relative(self, name: str) -> str:
        """The dotted module that a name with leading dots stands for here."""
        bare = name.lstrip(".")
        level = len(name) - len(bare)
        if not level:
            return name
        above = self._package.split(".")
        above = above[: len(above) - level + 1]
        return ".".join([*above, *([bare] if bare else [])])


@dataclass(frozen=True)
class Found:
    """What a name leads to. nodes: a definition (with its setters), a class or a value.

    qualname: within the module. owner: the class that holds it, None for a module's own.
    """

    module: Module
    qualname: str
    nodes: tuple[Definition | ast.ClassDef | ast.expr, ...]
    owner: "Found | None" = None

    @property
    def function(self) -> Definition | None:
        """The definition, None where it is no function."""
        node = self.nodes[0]
        return node if isinstance(node, Definition) else None

    @property
    def cls(self) -> ast.ClassDef | None:
        """The class, None where it is none."""
        node = self.nodes[0]
        return node if isinstance(node, ast.ClassDef) else None

    @property
    def place(self) -> str:
        """As `FILE:QUALNAME`."""
        return f"{self.module.file}:{self.qualname}"

    @property
    def cause(self) -> str:
        """As a finding's cause says it."""
        return f"{self.module.file}: {self.qualname}"


class Library:
    """The Python files below a folder, parsed when first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._modules: dict[str, Module | None] = {}

    def module(self, name: str) -> Module | None:
        """A module by dotted name; None where there is no such file."""
        if name not in self._modules:
            base = name.replace(".", "/")
            files = (f"{base}.py", f"{base}/__init__.py")
            file = next((f for f in files if name and (self._folder / f).is_file()), None)
            self._modules[name] = self._parsed(name, file) if file else None
        return self._modules[name]

    def at(self, file: str) -> Module | None:
        """A module by its file."""
        return self.module(file.removesuffix(".py").removesuffix("/__init__").replace("/", "."))

    def below(self, folder: str) -> Iterator[Module]:
        """Every module below a folder, by name."""
        for path in sorted((self._folder / folder).rglob("*.py")):
            module = self.at(path.relative_to(self._folder).as_posix())
            if module is not None:
                yield module

    def find(self, name: str) -> Found | None:
        """What `MODULE:QUALNAME` leads to, through imports; None where it leads nowhere."""
        dotted, _, qualname = name.partition(":")
        module = self.module(dotted)
        return self.inside(module, qualname) if module is not None else None

    def place(self, place: str) -> Found | None:
        """What stands at `FILE:QUALNAME`."""
        file, _, qualname = place.partition(":")
        module = self.at(file)
        return self.inside(module, qualname) if module is not None else None

    def inside(self, module: Module, qualname: str) -> Found | None:
        """What a qualified name leads to in a module."""
        first, *rest = [part for part in qualname.split(".") if part != LOCALS]
        found = self._named(module, first, set())
        while rest and isinstance(found, Module):
            found = self._named(found, rest.pop(0), set())
        for part in rest:
            found = self.member(found, part) if isinstance(found, Found) else None
        return found if isinstance(found, Found) else None

    def member(self, found: Found, name: str) -> Found | None:
        """A class's attribute, its bases' included, or a function's inner definition."""
        if found.cls is not None:
            return next(
                (one for cls in self.lineage(found) if (one := self._own(cls, name)) is not None),
                None,
            )
        for node in ast.walk(found.nodes[0]) if found.function else ():
            if isinstance(node, Definition | ast.ClassDef) and node.name == name:
                qualname = f"{found.qualname}.{LOCALS}.{name}"
                return Found(found.module, qualname, (node,))
        return None

    def lineage(self, found: Found) -> list[Found]:
        """A class and the bases of it that the package defines, each once."""
        line: list[Found] = []
        waiting = [found]
        while waiting:
            one = waiting.pop(0)
            if one.cls is None or any(one.place == other.place for other in line):
                continue
            line.append(one)
            bases = (self.dotted(one.module, base) for base in one.cls.bases)
            waiting += [base for base in bases if base is not None]
        return line

    def dotted(self, module: Module, node: ast.expr) -> Found | None:
        """What an expression such as `a.b.C` or `C[T]` names in a module."""
        if isinstance(node, ast.Subscript):
            node = node.value
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.insert(0, node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        return self.inside(module, ".".join([node.id, *parts]))

    def _own(self, cls: Found, name: str) -> Found | None:
        assert cls.cls is not None
        bound = bindings(cls.cls.body, cls.module).get(name)
        if bound is None or isinstance(bound[0], Imported):
            return None
        nodes = tuple(node for node in bound if not isinstance(node, Imported))
        if isinstance(nodes[0], ast.Name) and nodes[0].id != name:
            return self._own(cls, nodes[0].id) or self.inside(cls.module, nodes[0].id)
        return Found(cls.module, f"{cls.qualname}.{name}", nodes, cls)

    def _named(
        self, module: Module, name: str, seen: set[tuple[str, str]]
    ) -> Found | Module | None:
        if (module.name, name) in seen:
            return None
        seen.add((module.name, name))
        bound = module.names.get(name)
        if bound is None:
            return self._offered(module, name, seen)
        first = bound[0]
        if isinstance(first, Imported):
            source = self.module(first.module)
            if not first.name:
                return source
            led = self._named(source, first.name, seen) if source is not None else None
            return led or self.module(f"{first.module}.{first.name}")
        if isinstance(first, ast.Name | ast.Attribute):
            led = self.dotted(module, first) if ast.unparse(first) != name else None
            if led is not None:
                return led
        nodes = tuple(node for node in bound if not isinstance(node, Imported))
        return Found(module, name, nodes)

    def _offered(
        self, module: Module, name: str, seen: set[tuple[str, str]]
    ) -> Found | Module | None:
        """A name that a module has by a star import, a lazy `__getattr__`, or as a submodule."""
        for star in module.stars:
            source = self.module(star)
            if source is not None and not name.startswith("_"):
                led = self._named(source, name, seen)
                if led is not None:
                    return led
        lazily = module.names.get("__getattr__")
        if lazily and name in module.texts and isinstance(lazily[0], ast.FunctionDef):
            for source_name in _modules_in(lazily[0], module):
                source = self.module(source_name)
                led = self._named(source, name, seen) if source is not None else None
                if led is not None:
                    return led
        return self.module(f"{module.name}.{name}")

    def _parsed(self, name: str, file: str) -> Module:
        try:
            return Module(name, file, _tree((self._folder / file).read_bytes()))
        except (SyntaxError, ValueError) as problem:
            raise PackageError(
                f"{file}: found text that this Python cannot parse ({problem}); allowed: a package "
                "that runs on this Python; to fix: run the gate on a Python that it supports"
            ) from problem


@lru_cache(maxsize=512)  # two packages share most of their files; nothing changes a tree
def _tree(text: bytes) -> ast.Module:
    return ast.parse(text)


def _modules_in(function: ast.FunctionDef, module: Module) -> Iterator[str]:
    """Modules that a lazy `__getattr__` may import: by statement, or named by a text."""
    for node in ast.walk(function):
        if isinstance(node, ast.ImportFrom):
            base = module.absolute(node)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
    for text in sorted(module.texts):
        if text.startswith(".") and text.strip("."):
            yield module.relative(text)
        elif text.startswith(module.name.partition(".")[0] + "."):
            yield text


def bindings(body: list[ast.stmt], module: Module) -> dict[str, tuple[Bound, ...]]:
    """Names that statements bind; of both ways of an `if` or `try`, what the first binds is first.

    Of several definitions in a row the last counts, overloads aside.
    """
    found: dict[str, tuple[Bound, ...]] = {}
    for node in body:
        if isinstance(node, Definition | ast.ClassDef):
            marks = {ast.unparse(mark).rpartition(".")[2] for mark in node.decorator_list}
            if "overload" in marks:
                continue
            more = found.get(node.name, ()) if marks & {"setter", "getter", "deleter"} else ()
            found[node.name] = (*more, node)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name):
                        found[name.id] = (node.value,)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = (node.value or node.target,)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = (*found.get(node.target.id, ()), node.value)
        elif isinstance(node, ast.ImportFrom):
            base = module.absolute(node)
            for alias in node.names:
                if alias.name != "*":
                    found[alias.asname or alias.name] = (Imported(base, alias.name),)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name if alias.asname else alias.name.partition(".")[0]
                found[alias.asname or top] = (Imported(top, ""),)
        elif isinstance(node, ast.If | ast.Try | ast.With):
            found |= _branches(node, module)
    return found


def _branches(node: ast.If | ast.Try | ast.With, module: Module) -> dict[str, tuple[Bound, ...]]:
    bodies = [node.body]
    if isinstance(node, ast.Try):
        bodies[0] = [*node.body, *node.orelse, *node.finalbody]
        bodies += [handler.body for handler in node.handlers]
    elif isinstance(node, ast.If):
        bodies.append(node.orelse)
    found: dict[str, tuple[Bound, ...]] = {}
    for body in bodies:
        for name, bound in bindings(body, module).items():
            found[name] = (*found.get(name, ()), *bound)
    return found
