"""FlashInfer's real MLAPlan, compiled from a package's headers with g++.

The reference that `conformance.twin.planner` must equal. Needed: g++ (C++17), a flashinfer package
(the one on sys.path is found, never imported) and NVIDIA's header packages (see HEADER_PACKAGES).
The shared library is an entry of the suite's cache, so it is built once for all processes.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from conformance.cache import Cache, CacheError
from conformance.twin.binding import Binding
from conformance.twin.errors import (
    CompilerMissing,
    DoesNotCompile,
    NativeError,
    TwinDomainError,
)
from conformance.twin.planner import Ints, layout

HEADER_PACKAGES = ("nvidia-cuda-runtime==13.0.88", "nvidia-cuda-crt==13.0.88")
FLAGS = ("-O2", "-std=c++17")

_HERE = Path(__file__).parent
_SOURCE = _HERE / "compiled_planner.cpp"
_SYSTEM = ("cccl/libcudacxx/include", "cccl/cub", "cccl/thrust", "cutlass/include")
_LIBRARY = "mla_plan.so"


def flashinfer_include() -> Path:
    """Include folder of the flashinfer package on sys.path, which is not imported."""
    spec = importlib.util.find_spec("flashinfer")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        include = Path(root) / "data" / "include"
        if (include / "flashinfer" / "attention" / "scheduler.cuh").is_file():
            return include
    raise CompilerMissing(
        "no flashinfer package with data/include on sys.path; install flashinfer-python "
        "(--no-deps is enough) or put an unpacked wheel on PYTHONPATH"
    )


def cuda_include() -> Path:
    """Include folder that holds CUDA's runtime and compiler headers."""
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations or ()) if spec else []
    candidates = [include for root in roots for include in sorted(Path(root).glob("*/include"))]
    home = os.environ.get("CUDA_HOME")
    if home:
        candidates.append(Path(home) / "include")
    for include in candidates:
        needed = (include / "cuda_runtime.h", include / "crt" / "host_config.h")
        if all(header.is_file() for header in needed):
            return include
    raise CompilerMissing(
        "cuda_runtime.h with crt/host_config.h not found; pip install --no-deps "
        + " ".join(HEADER_PACKAGES)
    )


class CompiledPlanner:
    """The compiled function, with the signature of `conformance.twin.planner.plan`."""

    def __init__(self, library: Path) -> None:
        self.library = library
        self._binding = Binding(library)

    def plan(
        self,
        qo_indptr: Ints,
        kv_indptr: Ints,
        kv_len: Ints,
        num_heads: int,
        head_dim_o: int,
        num_sms: int,
        staging: torch.Tensor,
        float_bytes: int,
    ) -> tuple[list[int], int]:
        """As `planner.plan`; raises NativeError with FlashInfer's own text where it throws.

        The number of staged bytes is what MLAPlan returns, or asked to have copied where it copies
        by itself (0.6.18). The caller keeps to the planner's domain: the C++ code checks neither
        the number of work items nor its inputs (0 rows end the process).
        """
        starts, kv_starts, lengths = (_int32(x) for x in (qo_indptr, kv_indptr, kv_len))
        if len(lengths) == 0 or staging.numel() < layout(num_sms).staged_bytes:
            raise TwinDomainError(
                f"{len(lengths)} rows, {staging.numel()} staging bytes: needed are at least 1 and "
                f"{layout(num_sms).staged_bytes}"
            )
        sizes = (num_heads, head_dim_o, num_sms)
        done = self._binding.plan(starts, kv_starts, lengths, *sizes, staging.numpy(), float_bytes)
        if done.refused:
            raise NativeError(done.refused)
        return list(done.info), done.staged


@lru_cache
def compiled_planner(cache: Cache | None = None, data: Path | None = None) -> CompiledPlanner:
    """Build (or find) a package's library and load it into this process.

    cache: where it is kept; the one of the settings when left out. data: as for `library`. Raises
    CompilerMissing, with the remedy, where it cannot be built.
    """
    return CompiledPlanner(library(cache if cache is not None else Cache.default(), data))


def library(cache: Cache, data: Path | None = None) -> Path:
    """Build (or find) the shared library of a package's planner, without loading it.

    data: the package's `data` folder; that of the flashinfer on sys.path when left out. An entry
    of the cache is named by what the compiler sees once the preprocessor is through: every header
    that it reads, and no comment. Raises CompilerMissing, of which DoesNotCompile says that
    compiler and headers are there and the package's sources are to blame.
    """
    compiler = shutil.which("g++")
    if compiler is None:
        raise CompilerMissing("g++ not found; install a C++17 compiler (package g++ or gcc-c++)")
    data = flashinfer_include().parent if data is None else data
    includes = _includes(data)
    seen = _compile(compiler, includes, "-E", "-P").replace(str(data), "")
    version = subprocess.run([compiler, "--version"], capture_output=True, check=False).stdout
    named = {
        "compiler": version.decode(errors="replace"),
        "flags": FLAGS,
        "seen": hashlib.sha256(seen.encode()).hexdigest(),
    }
    try:
        folder = cache.entry(
            "planner", named, lambda empty: _build(compiler, includes, empty / _LIBRARY)
        )
    except CacheError as problem:
        raise CompilerMissing(str(problem)) from problem
    return folder / _LIBRARY


def sources(data: Path) -> tuple[Path, ...]:
    """The files of a package's `data` folder that its planner is compiled from, by name.

    Raises as `library` does.
    """
    compiler = shutil.which("g++")
    if compiler is None:
        raise CompilerMissing("g++ not found; install a C++17 compiler (package g++ or gcc-c++)")
    rule = _compile(compiler, _includes(data), "-M").partition(":")[2]
    words = re.split(r"(?<!\\)\s+", rule.replace("\\\n", " "))
    paths = {Path(os.path.normpath(word.replace("\\ ", " "))) for word in words if word}
    return tuple(sorted(path for path in paths if path.is_relative_to(data)))


def _includes(data: Path) -> list[str]:
    """The compiler's options that name folders of headers."""
    system = [cuda_include(), *(data / place for place in _SYSTEM)]
    options = [f"-I{_HERE}", f"-I{data / 'include'}"]
    for folder in system:
        options += ["-isystem", str(folder)]
    return options


def _build(compiler: str, includes: list[str], library: Path) -> None:
    _compile(compiler, includes, "-fPIC", "-shared", "-o", str(library))


def _compile(compiler: str, includes: list[str], *options: str) -> str:
    """Run the compiler on the C function; return what it writes to its standard output."""
    command = [compiler, *FLAGS, *includes, str(_SOURCE), *options]
    # Messages in English: whoever reads the first error looks for its words.
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    if done.returncode:
        raise DoesNotCompile(
            f"{compiler} could not compile FlashInfer's scheduler; check that the header packages "
            f"match ({', '.join(HEADER_PACKAGES)}):\n{done.stderr.decode(errors='replace')[:4000]}"
        )
    return done.stdout.decode(errors="replace")


def _int32(values: Ints) -> np.ndarray:
    array = values.numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    return np.ascontiguousarray(array, np.int32)
