"""Builds the SM90 modules of one FlashInfer version; built ones are kept by content.

The variants and the environment variables are FlashInfer's own (0.7.2.post1, jit/attention and
jit/cpp_ext.py). The generator runs in a child process: it reads its settings at import.
"""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from conformance.bundle import child
from conformance.bundle.errors import CompileError, ToolMissing
from conformance.bundle.toolkit import Toolkit, ninja, search_path
from conformance.cache import Cache

ARCHITECTURE = "9.0a"
# FlashInfer's own wrapper asks for BF16 outputs, and so does smla where an FP8 cache has group
# scales; with one scale for all of it smla takes them as FP16.
_OUTPUTS = {"bfloat16": ("bfloat16",), "float8_e4m3fn": ("bfloat16", "float16")}
VARIANTS = tuple((kv, kpe, out) for kv, outs in _OUTPUTS.items() for out in outs for kpe in (0, 64))


@dataclass(frozen=True)
class Module:
    """One built module: FlashInfer's name for it, the variant, and its file in the cache."""

    uri: str
    kv_dtype: str
    head_dim_kpe: int
    out_dtype: str
    library: Path


@dataclass(frozen=True)
class Built:
    """The modules and the package files (relative to the package) their compilation read."""

    modules: tuple[Module, ...]
    sources: tuple[str, ...]


def build_modules(package: Path, digest: str, toolkit: Toolkit, cache: Cache) -> Built:
    """Build every variant from an unpacked package, or take what was built from equal inputs.

    `package` is the folder that holds `flashinfer/`; `digest` identifies its content.
    """
    inputs = {
        "package": digest,
        "nvcc": toolkit.nvcc,
        "cxx": toolkit.cxx,
        "tvm_ffi": tvm_ffi_version(),
        "architecture": ARCHITECTURE,
        "variants": VARIANTS,
    }
    return _load(cache.entry("modules", inputs, lambda empty: _build(package, toolkit, empty)))


def tvm_ffi_version() -> str:
    """Version of apache-tvm-ffi whose headers the modules are compiled with."""
    try:
        return importlib.metadata.version("apache-tvm-ffi")
    except importlib.metadata.PackageNotFoundError as error:
        raise ToolMissing(
            "apache-tvm-ffi: not installed, its headers are compiled in; to fix: "
            "python -m pip install -e '.[bundle]'"
        ) from error


def run_child(task: str, *arguments: str, env: dict[str, str]) -> str:
    """Run one task of `conformance.bundle.child` by its file; returns the last line it wrote."""
    command = [sys.executable, str(Path(child.__file__)), task, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    if done.returncode == child.MODULE_MISSING:
        raise ToolMissing(
            f"FlashInfer's generator: {done.stdout.strip().splitlines()[-1]}; to fix: "
            "python -m pip install -e '.[bundle]'"
        )
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-30:])
        raise CompileError(f"FlashInfer, task {task}: ended with {done.returncode}:\n{tail}")
    return done.stdout.strip().splitlines()[-1]


def child_env(package: Path, workspace: Path) -> dict[str, str]:
    """Environment in which FlashInfer is that package and writes into that folder alone."""
    return {
        **os.environ,
        "PATH": search_path(),
        "PYTHONPATH": str(package),
        "PYTHONDONTWRITEBYTECODE": "1",
        "FLASHINFER_CUDA_ARCH_LIST": ARCHITECTURE,
        "FLASHINFER_WORKSPACE_BASE": str(workspace),
    }


def _build(package: Path, toolkit: Toolkit, result: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="smla-modules-") as scratch_name:
        scratch = Path(scratch_name)
        workspace = scratch / "workspace"
        env = child_env(package, workspace)
        env.pop("FLASHINFER_DISABLE_JIT", None)
        env["CUDA_HOME"] = str(toolkit.home)
        env["FLASHINFER_EXTRA_LDFLAGS"] = f"-L{_stub_driver(scratch)}"
        env["FLASHINFER_EXTRA_CUDAFLAGS"] = " ".join(_nameless(package, workspace))
        specs = json.loads(run_child("build", json.dumps(VARIANTS), env=env))
        modules, sources = [], set()
        for spec in specs:
            library = Path(spec["library"])
            shutil.copyfile(library, result / library.name)
            modules.append({**spec, "library": library.name})
            sources |= _sources(library.parent, package)
        record = {"modules": modules, "sources": sorted(sources)}
        (result / "built.json").write_text(json.dumps(record, indent=1))


def _load(folder: Path) -> Built:
    record = json.loads((folder / "built.json").read_text())
    modules = [
        Module(**{**spec, "library": folder / spec["library"]}) for spec in record["modules"]
    ]
    return Built(tuple(modules), tuple(record["sources"]))


def _stub_driver(scratch: Path) -> Path:
    """A folder with an empty libcuda.so: the linker asks for one, the GPU host has the real one."""
    stub = scratch / "stub"
    stub.mkdir()
    command = [os.environ.get("CXX", "c++"), "-shared", "-x", "c", "/dev/null"]
    command += ["-o", str(stub / "libcuda.so")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CompileError(f"stub libcuda.so: the C++ compiler failed: {done.stderr[-500:]}")
    return stub


def _nameless(package: Path, workspace: Path) -> list[str]:
    """Flags that keep this machine's folders out of the file names inside error messages."""
    import importlib.util

    spec = importlib.util.find_spec("tvm_ffi")
    site = Path(spec.origin).parent.parent if spec is not None and spec.origin else package
    folders = {str(package): "flashinfer-wheel", str(workspace): "generated", str(site): "site"}
    return [f"-Xcompiler=-ffile-prefix-map={old}={new}" for old, new in folders.items()]


def _sources(build_dir: Path, package: Path) -> set[str]:
    """Files of the package that ninja recorded as read by the compilation in `build_dir`."""
    program = ninja()
    assert program is not None  # find_toolkit() has seen it
    done = subprocess.run(
        [program, "-t", "deps"], cwd=build_dir, capture_output=True, text=True, check=False
    )
    root = f"{package.resolve()}/"
    names = {line.strip() for line in done.stdout.splitlines() if line.startswith(" ")}
    found = {os.path.realpath(name).removeprefix(root) for name in names if name.startswith("/")}
    sources = {name for name in found if not name.startswith("/")}
    if not sources:
        raise CompileError(f"ninja -t deps: no file of FlashInfer among {len(names)} dependencies")
    return sources


def as_record(module: Module, path: str) -> dict[str, object]:
    """The module as the manifest tells it, with its place in the bundle."""
    return {**asdict(module), "library": path}
