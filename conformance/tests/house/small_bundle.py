"""Bundles in miniature for tests: a small FlashInfer, empty packages, no compiler."""

import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from conformance.bundle import build, fetch, modules, packages, toolkit
from conformance.cache import Cache

VERSION = "9.8.7"
INFO = f"flashinfer_python-{VERSION}.dist-info"
TAG = f"cp{sys.version_info[0]}{sys.version_info[1]}"

# A FlashInfer in miniature: what the bundle needs of it, and files it must leave behind.
GENERATOR = """
import os, pathlib

AOT = pathlib.Path(__file__).parents[2] / "data/aot"
WORK = pathlib.Path(os.environ["FLASHINFER_WORKSPACE_BASE"])


class Spec:
    def __init__(self, name):
        self.name = name
        self.jit_library_path = WORK / name / f"{name}.so"

    def build(self, verbose):
        self.jit_library_path.parent.mkdir(parents=True)
        self.jit_library_path.write_bytes(self.name.encode())

    def get_library_path(self):
        prebuilt = AOT / self.name / f"{self.name}.so"
        return prebuilt if prebuilt.exists() else self.jit_library_path


def gen_batch_mla_module(backend, q, kv, out, index, ckv, kpe, profiler):
    kinds = [str(kind).removeprefix("torch.") for kind in (kv, out)]
    return Spec(f"mla_{backend}_{'_'.join(kinds)}_{ckv}_{kpe}")
"""
FLASHINFER = {
    "flashinfer/__init__.py": "from .norm import rms\n",
    "flashinfer/norm.py": "def rms():\n    from .lazy import other\n",
    "flashinfer/lazy.py": "other = 1\n",
    "flashinfer/unused.py": "import nothing_like_it\n",
    "flashinfer/py.typed": "",
    "flashinfer/utils.py": "def f():\n    from . import deep\n",
    "flashinfer/deep.py": "",
    "flashinfer/types.py": "",
    "flashinfer/dsl.py": "",
    "flashinfer/mla/__init__.py": (
        "from typing import TYPE_CHECKING\n"
        "from ..utils import f\n"
        "from ..jit.attention import gen_batch_mla_module\n"
        "if TYPE_CHECKING:\n    from .. import types\n"
        "try:\n    import cutlass_is_not_here\n    from flashinfer import dsl\n"
        "except ImportError:\n    pass\n"
    ),
    "flashinfer/mla/_backends/fa.py": "",
    "flashinfer/jit/__init__.py": "",
    "flashinfer/jit/attention/__init__.py": GENERATOR,
    "flashinfer/data/csrc/batch_mla_sm90_run.cu": "// kernel",
    "flashinfer/data/csrc/other.cu": "// no",
    "flashinfer/data/include/flashinfer/attention/mla_hopper.cuh": "// header",
    "flashinfer/data/include/flashinfer/attention/decode.cuh": "// no",
    f"{INFO}/METADATA": f"Metadata-Version: 2.1\nName: flashinfer-python\nVersion: {VERSION}\n",
    f"{INFO}/RECORD": "",
    f"{INFO}/licenses/LICENSE": "The license of FlashInfer.",
}
# Importing the real one takes seconds, several times per test.
TORCH = "".join(
    f"{name} = 'torch.{name}'\n" for name in ("bfloat16", "float16", "float8_e4m3fn", "int32")
)
HEADER = "flashinfer/data/include/flashinfer/attention/mla_hopper.cuh"


def make_wheel(path: Path, files: Mapping[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as out:
        for name, text in files.items():
            out.writestr(name, text)


def keep_wheel(
    cache: Cache,
    name: str,
    version: str,
    tag: str | None,
    file: str,
    files: Mapping[str, str],
) -> None:
    """Make this the wheel that the cache holds, in place of the one it held."""
    for _ in range(2):
        entry = cache.entry(
            fetch.KIND,
            fetch.inputs(name, version, tag),
            lambda folder: make_wheel(folder / file, files),
        )
        with zipfile.ZipFile(entry / file) as held:
            if {name: held.read(name).decode() for name in held.namelist()} == {**files}:
                return
        (entry / file).unlink()


def keep_flashinfer(cache: Cache, files: Mapping[str, str]) -> None:
    name = f"flashinfer_python-{VERSION}-py3-none-any.whl"
    keep_wheel(cache, "flashinfer-python", VERSION, None, name, files)


def stand_in(folder: Path, patch: pytest.MonkeyPatch, tag: str = TAG) -> Cache:
    """A cache that already holds wheels in miniature, on a machine with a stand-in toolkit."""
    cache = Cache(folder / "cache")
    keep_flashinfer(cache, FLASHINFER)
    for name in (*packages.ALL, packages.NINJA):
        stem = name.replace("-", "_")
        files = {f"{stem}/__init__.py": "", f"{stem}-1.0.dist-info/METADATA": f"Name: {name}\n"}
        if name == packages.TVM_FFI:
            files |= {"tvm_ffi/core.so": "binary", "tvm_ffi/include/tvm/ffi/object.h": "// header"}
            files |= {"tvm_ffi/src/object.cc": "// no", "tvm_ffi/3rdparty/dlpack/LICENSE": "no"}
            files |= {"tvm_ffi/3rdparty/dlpack/include/dlpack.h": "// header"}
        if name == packages.NINJA:
            files |= {"ninja-1.0.data/scripts/ninja": "#!/bin/sh\necho carried ninja\n"}
        if name == "requests":
            files[f"{stem}-1.0.dist-info/METADATA"] += "Requires-Dist: urllib3<3,>=0.5\n"
        keep_wheel(cache, name, "1.0", tag, f"{stem}-1.0-py3-none-any.whl", files)
    (folder / "stand-ins").mkdir()
    (folder / "stand-ins/torch.py").write_text(TORCH)
    child_env = modules.child_env

    def with_stand_ins(package: Path, workspace: Path) -> dict[str, str]:
        env = child_env(package, workspace)
        return {**env, "PYTHONPATH": f"{env['PYTHONPATH']}:{folder / 'stand-ins'}"}

    patch.setattr(modules, "child_env", with_stand_ins)
    kit = toolkit.Toolkit(Path("/nowhere/cuda"), "13.0", "V13.0.88", "c++ 12")
    patch.setattr(build, "find_toolkit", lambda: kit)
    patch.setattr(packages, "installed", lambda name: "1.0")
    patch.setattr(modules, "tvm_ffi_version", lambda: "1.0")
    patch.setattr(modules, "_stub_driver", lambda scratch: scratch)
    patch.setattr(modules, "_sources", lambda build_dir, package: {HEADER})
    return cache
