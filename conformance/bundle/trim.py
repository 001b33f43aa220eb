"""Chooses which files of FlashInfer's package the SM90 MLA path needs.

Python files: everything reachable by import statements from `flashinfer.mla`, those inside `if`
and `try` included (the GPU host may have packages that the building machine lacks), those inside
functions only in the modules that plan, generate and load. Nothing is imported to find out.
"""

import ast
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from conformance.bundle.archive import files_below
from conformance.bundle.errors import CompileError

ROOT = "flashinfer.mla"
# Where imports inside functions count too. Missing ones are other FlashInfer versions' names.
_DEEP = (
    "flashinfer.jit.attention",
    "flashinfer.jit.core",
    "flashinfer.mla._batch_mla",
    "flashinfer.utils",
)
_SOURCES = ("flashinfer/data/csrc/batch_mla*", "flashinfer/data/csrc/tvm_ffi_utils.h")
_EXTRA_FILES = ("flashinfer/py.typed", "flashinfer_python-*.dist-info/**/*")
# Lists every file of the whole wheel, which is no longer true.
_LEFT_OUT = ("RECORD",)


def copy_trimmed(package: Path, dest: Path, sources: Iterable[str]) -> None:
    """Copy from an unpacked wheel what the path needs; `sources` are the headers it compiles."""
    for name in sorted({*python_files(package), *other_files(package), *sources}):
        target = dest / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(package / name, target)


def other_files(package: Path) -> set[str]:
    """Module sources, templates, metadata and license texts (relative names)."""
    return {
        path.relative_to(package).as_posix()
        for pattern in (*_SOURCES, *_EXTRA_FILES)
        for path in package.glob(pattern)
        if path.is_file() and path.name not in _LEFT_OUT
    }


def python_files(package: Path) -> set[str]:
    """Relative names of the Python files that importing and loading the MLA path can reach."""
    if _module_file(package, ROOT) is None:
        raise CompileError(f"{ROOT}: not in this wheel; allowed: FlashInfer 0.6.17 and newer")
    mla = [name for name in files_below(package / "flashinfer/mla") if name.suffix == ".py"]
    todo = ["flashinfer.mla." + ".".join(name.with_suffix("").parts) for name in mla]
    todo.append(ROOT)
    found: dict[str, Path] = {}
    while todo:
        for module in _with_parents(todo.pop()):
            file = _module_file(package, module)
            if module in found or file is None:
                continue
            found[module] = file
            todo += (name for name in _imports(module, file) if name.startswith("flashinfer"))
    return {file.relative_to(package).as_posix() for file in found.values()}


def _with_parents(module: str) -> list[str]:
    parts = module.removesuffix(".__init__").split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def _module_file(package: Path, module: str) -> Path | None:
    base = package.joinpath(*module.split("."))
    for file in (base / "__init__.py", base.with_name(base.name + ".py")):
        if file.is_file():
            return file
    return None


def _imports(module: str, file: Path) -> Iterator[str]:
    """Names of modules, or of attributes of modules, that a file imports."""
    tree = ast.parse(file.read_bytes(), filename=module)
    for node in ast.walk(tree) if module.startswith(_DEEP) else _top_level(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(module, file.name == "__init__.py", node)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _base(module: str, is_package: bool, node: ast.ImportFrom) -> str:
    if node.level == 0:
        return node.module or ""
    here = module.split(".") if is_package else module.split(".")[:-1]
    above = here[: len(here) - (node.level - 1)]
    return ".".join([*above, *([node.module] if node.module else [])])


def _top_level(node: ast.AST) -> Iterator[ast.AST]:
    """Statements that run at import: everything outside functions and TYPE_CHECKING blocks."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield other
                yield from _top_level(other)
            continue
        yield child
        yield from _top_level(child)
