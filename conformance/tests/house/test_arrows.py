"""Which room may import which; the wheel ships smla alone."""

import ast
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
OURS = ("smla", "golden", "conformance", "fuzz")
LEAVES = (
    *("conformance.settings", "conformance.ownership", "conformance.cache"),
    *("conformance.entries", "conformance.logs", "conformance.driver"),
)
"""Modules that stand beside the rooms, for any of them to import."""


def modules() -> dict[str, Path]:
    """Every module of ours, by dotted name."""
    found = {}
    for room in OURS:
        for path in sorted((ROOT / room).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(
    module: str, source: str, *, is_package: bool = False
) -> Iterator[tuple[str, int, bool]]:
    """(dotted name, line, whether it runs at import) of each import of ours in a source text."""
    tree = ast.parse(source)
    late = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            here = module.split(".")
            above = here[: len(here) - node.level + is_package] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) in ("importlib.import_module", "__import__")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            names = [str(node.args[0].value)]
        for name in names:
            if name.split(".")[0] in OURS:
                yield name, getattr(node, "lineno", 0), id(node) not in late


def within(name: str, *rooms: str) -> bool:
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def forbidden(module: str, name: str) -> str | None:
    """The rule that an import breaks, None when it breaks none."""
    tests_of_smla = within(module, "smla.tests") and within(name, "golden")
    if within(module, "golden") and not within(name, "golden"):
        return "golden imports nothing of ours"
    if within(module, "smla") and not within(name, "smla") and not tests_of_smla:
        return "smla imports nothing of the other rooms"
    if within(module, "conformance.twin") and within(name, "smla", "conformance.core", "fuzz"):
        return "the twin derives everything anew: neither smla nor conformance.core"
    if module in LEAVES:
        allowed = within(name, *LEAVES) or name == "conformance"
        return None if allowed else "leaves import each other alone"
    beside = within(name, "conformance") and not within(name, "conformance.twin", *LEAVES)
    if within(module, "conformance.twin") and beside:
        return "of the suite, the twin imports itself and the leaves alone"
    if within(module, "conformance.core"):
        if within(name, "smla", "fuzz", "conformance.subjects"):
            return "the core knows no subject"
        if name.startswith("conformance.twin.") and name.count(".") > 2:
            return "the core does not look inside the twin"
    if within(module, "conformance.hardware"):
        if within(name, "smla"):
            return "a hardware record knows no subject"
        if within(name, "conformance.subjects") and module != "conformance.hardware.cli":
            return "of conformance.hardware, only the commands choose a subject"
    subjects = within(module, "conformance.subjects")
    if within(name, "smla") and within(module, "conformance") and not subjects:
        return "only conformance.subjects names a subject"
    if within(name, "fuzz") and not within(module, "fuzz"):
        return "nothing imports fuzz"
    if within(module, "fuzz") and within(name, "smla"):
        return "fuzz names no subject"
    return None


def broken_rules() -> list[str]:
    broken = []
    for module, path in modules().items():
        text = path.read_text()
        for name, line, _ in imports(module, text, is_package=path.name == "__init__.py"):
            rule = forbidden(module, name)
            if rule is not None:
                broken.append(f"{path.relative_to(ROOT)}:{line}: imports {name}: {rule}")
    return broken


def import_graph() -> dict[str, set[str]]:
    """Module -> modules of ours that it imports while it is imported."""
    known = modules()
    graph: dict[str, set[str]] = {}
    for module, path in known.items():
        text, targets = path.read_text(), set()
        for name, _, eager in imports(module, text, is_package=path.name == "__init__.py"):
            target = name if name in known else name.rpartition(".")[0]
            if eager and target in known and target != module:
                targets.add(target)
        graph[module] = targets
    return graph


def find_circle(graph: dict[str, set[str]]) -> list[str] | None:
    """One chain of modules that leads back to its start, None when there is none."""
    done: set[str] = set()

    def visit(module: str, chain: list[str]) -> list[str] | None:
        if module in chain:
            return [*chain[chain.index(module) :], module]
        if module in done:
            return None
        for target in sorted(graph.get(module, ())):
            circle = visit(target, [*chain, module])
            if circle:
                return circle
        done.add(module)
        return None

    return next(filter(None, (visit(module, []) for module in sorted(graph))), None)


def test_imports_follow_the_arrows() -> None:
    broken = broken_rules()
    assert not broken, "imports against the arrows:\n" + "\n".join(broken)


def test_imports_form_no_circle() -> None:
    circle = find_circle(import_graph())
    assert circle is None, f"import circle: {' -> '.join(circle or [])}"


@pytest.mark.parametrize(
    ("module", "source", "allowed"),
    [
        ("golden.oracle", "import torch\nfrom golden import draw", True),
        ("golden.oracle", "from smla import lengths", False),
        ("smla.builder", "from smla.layout import BatchLayout", True),
        ("smla.builder", "from . import layout", True),
        ("smla.builder", "def f():\n    import conformance.twin", False),
        ("smla.tests.test_kernels", "from golden.draw import Draw", True),
        ("conformance.twin.planner", "from smla.schedule import Schedule", False),
        ("conformance.twin.planner", "from ..core import case", False),
        ("conformance.twin.planner", "from .errors import TwinFault", True),
        ("conformance.twin.compiled", "from conformance.cache import Cache", True),
        ("conformance.twin.planner", "from conformance import report", False),
        ("conformance.cache", "from conformance import settings", True),
        ("conformance.cache", "from conformance.core.run import SuiteError", False),
        ("conformance.core.run", "from conformance.twin import kernel", True),
        ("conformance.core.run", "from conformance.twin.kernel import tiles", False),
        ("conformance.core.run", "import importlib\nimportlib.import_module('smla')", False),
        ("conformance.hardware.cli", "from conformance.subjects import factory_of", True),
        ("conformance.hardware.cli", "def f():\n    import smla", False),
        ("conformance.hardware.replay", "from conformance.subjects import factory_of", False),
        ("conformance.hardware.replay", "from conformance import subjects", False),
        ("conformance.hardware.recording", "from ..subjects.smla import Smla", False),
        ("conformance.hardware.recording", "from smla.schedule import Schedule", False),
        ("conformance.subjects.smla", "import smla", True),
        ("conformance.tests.test_num", "import smla", False),
    ],
)
def test_the_arrow_test_sees_what_it_must(module: str, source: str, allowed: bool) -> None:
    found = [rule for name, _, _ in imports(module, source) if (rule := forbidden(module, name))]
    assert bool(found) is not allowed, f"{module!r} with {source!r}: broken rules {found}"


def test_the_circle_test_sees_a_circle() -> None:
    assert find_circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]
    assert find_circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None


def test_the_wheel_ships_smla_alone(tmp_path: Path) -> None:
    wheel_builder = pytest.importorskip("hatchling.builders.wheel").WheelBuilder(str(ROOT))
    (wheel,) = wheel_builder.build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    strangers = [name for name in names if not name.startswith(("smla/", "smla-"))]
    assert not strangers, f"in the wheel besides smla: {strangers[:5]}"
    assert "smla/py.typed" in names, f"smla/py.typed is not among {names}"
    tests = [name for name in names if name.startswith("smla/tests")]
    assert not tests, f"tests in the wheel: {tests[:5]}"
    shipped = {name for name in names if name.endswith(".py")}
    expected = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "smla").rglob("*.py")
        if "tests" not in path.relative_to(ROOT).parts
    }
    assert shipped == expected, f"missing or extra modules: {sorted(shipped ^ expected)}"
