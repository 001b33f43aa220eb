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


def test_a_missing_package_is_named():
    pytest.importorskip("click", reason="golden's command line needs click")
    code = (
        "import sys; sys.modules['safetensors'] = None; sys.argv = ['golden', 'check']\n"
        "from golden.cli import entry; entry()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOM.parent, capture_output=True)
    assert done.returncode == 3 and b"no package safetensors" in done.stderr, done.stderr


def test_golden_runs_as_a_module():
    pytest.importorskip("click", reason="golden's command line needs click")
    command = [sys.executable, "-m", "golden", "chekc"]
    done = subprocess.run(command, cwd=ROOM.parent, capture_output=True)
    assert done.returncode == 3 and b"chekc" in done.stderr
