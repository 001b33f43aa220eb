"""Every effect on a device goes through `smla.runtime`, told from the source.

What could touch a device is forbidden wherever it stands, except in functions listed here with the
reason why they work on the host. `test_seam_watched` watches real steps for the rest.
"""

import ast
from pathlib import Path

import pytest
import torch

import smla

ROOT = Path(smla.__file__).parent

ON_THE_HOST = {
    ("admission.py", "_try"): "a batch made on the host, then taken to the device by the runtime",
    ("builder.py", "SparseMLABuilder._read_lengths"): "what runtime.read() returned",
    ("layout.py", "BatchLayout.check"): "query_start_loc_cpu and bounds, found to be on the host",
    ("layout.py", "query_lengths"): "numpy",
    ("lengths.py", "row_bounds"): "numpy",
    ("plan_state.py", "PlanState._prove_layout"): "a block of runtime.staging()",
    ("plan_state.py", "PlanState._replan"): "a block of runtime.staging()",
    ("plan_state.py", "PlanState.addresses"): "a dict",
    ("schedule.py", "ScheduleLayout.offsets"): "a dict",
}
TWINS = {  # what a CpuRuntime runs inside launch(), in the place of a kernel
    (f"kernels/{name}.py", f"_{name}_torch")
    for name in ("clamp", "convert", "ds_mla", "pack", "rescale", "row_map")
} | {
    ("kernels/write_kv.py", f"_{name}")
    for name in ("write_per_tensor_torch", "write_per_group_torch")
}
WAITS_OR_MOVES = {"cuda", "cpu", "item", "tolist", "numpy", "pin_memory", "is_pinned", "to_local"}
KEYWORDS = {"non_blocking", "pin_memory", "device"}


class Reader(ast.NodeVisitor):
    """Collects (function, what) for everything in a module that could touch a device."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []
        self._where: list[str] = []

    def add(self, node: ast.AST, what: str) -> None:
        self.found.append((".".join(self._where), f"line {getattr(node, 'lineno', 0)}: {what}"))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.visit_FunctionDef(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        marks = [mark.func if isinstance(mark, ast.Call) else mark for mark in node.decorator_list]
        if any(ast.unparse(mark) == "triton.jit" for mark in marks):
            return  # the source of a kernel
        self._where.append(node.name)
        self.generic_visit(node)
        self._where.pop()

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if "cuda" in alias.name.split("."):
                self.add(node, f"imports {alias.name}")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            if "cuda" in [*(node.module or "").split("."), alias.name]:
                self.add(node, f"imports {node.module}.{alias.name}")

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and node.value.split(":")[0] == "cuda":
            self.add(node, f"names the device {node.value!r}")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if ast.unparse(node) == "torch.cuda":
            self.add(node, "torch.cuda")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        call = node.func
        if isinstance(call, ast.Subscript):
            self.add(node, f"launches {ast.unparse(call.value)}")
        if isinstance(call, ast.Attribute):
            name = call.attr
            if name in WAITS_OR_MOVES or (name.endswith("_") and not name.endswith("__")):
                self.add(node, f".{name}()")
            if name == "to":
                self._visit_to(node)
        for keyword in node.keywords:
            if keyword.arg in (*KEYWORDS, "out"):
                self.add(node, f"{ast.unparse(call)}({keyword.arg}=...)")
        self.generic_visit(node)

    def _visit_to(self, node: ast.Call) -> None:
        target = ast.unparse(node.args[0]) if len(node.args) == 1 else ""
        is_dtype = target.startswith("torch.") and isinstance(
            getattr(torch, target.removeprefix("torch."), None), torch.dtype
        )
        if not is_dtype or node.keywords:
            self.add(node, f".to() of other than a dtype: {ast.unparse(node)}")

    def _visit_store(self, node: ast.Assign | ast.AugAssign) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(target, ast.Subscript) for target in targets):
            self.add(node, f"stores into {ast.unparse(targets[0])}")
        self.generic_visit(node)

    visit_Assign = _visit_store
    visit_AugAssign = _visit_store


def effects(source: str) -> list[tuple[str, str]]:
    reader = Reader()
    reader.visit(ast.parse(source))
    return reader.found


def test_no_module_but_the_runtime_touches_a_device():
    allowed, used, broken = {*ON_THE_HOST, *TWINS}, set(), []
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name == "runtime.py" or name.startswith("tests/"):
            continue
        for function, what in effects(path.read_text()):
            hard = "cuda" in what or "launches" in what or "non_blocking" in what
            if hard or (name, function) not in allowed:
                broken.append(f"smla/{name}, {function or 'module'}, {what}")
            used.add((name, function))
    assert not broken, "outside of smla.runtime:\n" + "\n".join(broken)
    assert allowed <= used, f"listed for nothing: {sorted(allowed - used)}"


@pytest.mark.parametrize(
    "snippet",
    [
        "import torch.cuda",
        "from torch import cuda",
        "from torch.cuda import Stream",
        "stream = torch.cuda.current_stream()",
        "y = getattr(torch, 'cuda')",
        "y = torch.empty(3, device='cuda:0')",
        "y = torch.empty(3, device=runtime.device)",
        "y = torch.empty(3, pin_memory=True)",
        "y = x.cuda()",
        "y = x.cpu()",
        "y = x.item()",
        "y = x.tolist()",
        "y = x.to(device)",
        "y = x.to('cpu')",
        "y = x.to(torch.int32, non_blocking=True)",
        "y = x.to(torch.device('cpu'))",
        "y = x.pin_memory()",
        "x.copy_(y)",
        "x.copy_(y, non_blocking=True)",
        "x.zero_()",
        "x.fill_(3)",
        "x[0] = 3",
        "x[:3] += y",
        "torch.cumsum(x, 0, out=y)",
        "kernel[grid](x, y)",
        "kernel.triton[(1, 2)](x)",
        "class A:\n    def f(self):\n        def g():\n            self.kernel[self.grid](1)",
    ],
)
def test_the_source_test_sees_what_it_must(snippet):
    assert effects(snippet), f"nothing found in {snippet!r}"


@pytest.mark.parametrize(
    "snippet",
    [
        "runtime.upload(x, y)\nruntime.fill(x, 0)\nruntime.retain(y)",
        "y = x.to(torch.int32)",
        "y = x[0]\nz: tuple[int, ...] = f(x[1])",
        "@triton.jit\ndef f(x):\n    x.to('cuda')",
        "super().__init__()",
    ],
)
def test_the_source_test_lets_pass_what_is_harmless(snippet):
    assert not effects(snippet), f"found {effects(snippet)} in {snippet!r}"
