"""golden's library part needs torch and the standard library, nothing else."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOM = Path(__file__).parents[1]
OF_THE_COMMAND = {"click": {"cli.py"}, "safetensors": {"store.py"}}
"""Packages that single modules import, which no other may import in turn but these."""
FILES = {"store.py", "check.py", "canonical.py", "cli.py", "__main__.py"}


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]


@pytest.mark.parametrize("path", sorted(ROOM.glob("*.py")), ids=lambda path: path.name)
def test_only_the_command_imports_more(path):
    for name in {*imported(path)} - sys.stdlib_module_names - {"torch", "golden"}:
        assert path.name in OF_THE_COMMAND.get(name, set()), f"{path.name} imports {name}"


def test_the_library_is_usable_without_these_packages():
    modules = [f"golden.{path.stem}" for path in ROOM.glob("*.py") if path.name not in FILES]
    assert {"golden.draw", "golden.cache", "golden.oracle", "golden.tolerance"} <= {*modules}
    lines = [
        "import sys",
        *(f"sys.modules[{name!r}] = None" for name in OF_THE_COMMAND),
        *(f"import {module}" for module in modules),
        "from golden.inputs import draw_inputs",
        "from golden.standard import recipes",
        "assert draw_inputs(recipes()[0]).attend().out.isfinite().all()",
    ]
    code = "\n".join(lines)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOM.parent, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("package", ["click", "safetensors"])
@pytest.mark.parametrize("arguments", [["check"], ["regenerate", "x"], ["add", "x"]], ids=" ".join)
def test_a_missing_package_is_named(package, arguments, tmp_path):
    if package != "click":
        pytest.importorskip("click", reason="golden's command line needs click")
    code = (
        f"import sys; sys.modules[{package!r}] = None; sys.path.insert(0, {str(ROOM.parent)!r})\n"
        f"import runpy; sys.argv = ['golden', *{arguments}]\n"
        "runpy.run_module('golden', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True)
    said = done.stderr.decode()
    assert done.returncode == 3 and f"found no package {package};" in said, said
    assert f"pip install {package}" in said and "Traceback" not in said
    assert not any(tmp_path.iterdir())


def test_of_a_part_of_a_package_the_package_is_named():
    from golden.refusal import missing_package

    said = missing_package(ModuleNotFoundError("no", name="numpy.core"))
    assert "found no package numpy;" in said and said.endswith("pip install numpy")


def test_golden_runs_as_a_module():
    pytest.importorskip("click", reason="golden's command line needs click")
    command = [sys.executable, "-m", "golden", "chekc"]
    done = subprocess.run(command, cwd=ROOM.parent, capture_output=True)
    assert done.returncode == 3 and b"chekc" in done.stderr
