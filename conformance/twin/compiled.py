"""FlashInfer's real MLAPlan, compiled from an installed package's headers with g++.

The reference that `conformance.twin.planner` must equal. Needed: g++ (C++17), a flashinfer package
on sys.path (found, never imported) and NVIDIA's header packages (see HEADER_PACKAGES). The shared
library is an entry of the suite's cache, so it is built once for all processes.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from conformance.cache import Cache, CacheError
from conformance.twin.errors import CompilerMissing, NativeError, TwinDomainError
from conformance.twin.planner import INFO_FIELDS, MAX_WORKS, Ints, layout

HEADER_PACKAGES = ("nvidia-cuda-runtime==13.0.88", "nvidia-cuda-crt==13.0.88")
FLAGS = ("-O2", "-std=c++17", "-fPIC", "-shared")

_HERE = Path(__file__).parent
_SOURCES = (_HERE / "compiled_planner.cpp", _HERE / "compiled_pos_enc.h")
# All that the scheduler includes from FlashInfer, besides the header that is replaced.
_FLASHINFER_HEADERS = (
    "attention/scheduler.cuh",
    "attention/heap.h",
    "allocator.h",
    "exception.h",
    "utils.cuh",
)
_ERROR_BYTES = 4096
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
        self._plan = ctypes.CDLL(str(library)).twin_mla_plan
        self._plan.restype = ctypes.c_int

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
        info = np.zeros(len(INFO_FIELDS), np.int64)
        staged = ctypes.c_size_t()
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        status = self._plan(
            ctypes.c_void_p(starts.ctypes.data),
            ctypes.c_void_p(kv_starts.ctypes.data),
            ctypes.c_void_p(lengths.ctypes.data),
            ctypes.c_uint(len(lengths)),
            ctypes.c_uint(num_heads),
            ctypes.c_uint(head_dim_o),
            ctypes.c_int(num_sms),
            ctypes.c_void_p(staging.data_ptr()),
            ctypes.c_size_t(staging.numel()),
            ctypes.c_size_t(float_bytes),
            ctypes.c_void_p(info.ctypes.data),
            ctypes.byref(staged),
            error,
            ctypes.c_size_t(_ERROR_BYTES),
        )
        if status:
            raise NativeError(error.value.decode(errors="replace"))
        return info.tolist(), staged.value


@lru_cache
def compiled_planner(cache: Cache | None = None) -> CompiledPlanner:
    """Build (or find) the library for the flashinfer package on sys.path and load it.

    cache: where it is kept; the one of the settings when left out. Raises CompilerMissing, with
    the remedy, where it cannot be built.
    """
    compiler = shutil.which("g++")
    if compiler is None:
        raise CompilerMissing("g++ not found; install a C++17 compiler (package g++ or gcc-c++)")
    flashinfer, cuda = flashinfer_include(), cuda_include()
    cccl = flashinfer.parent / "cccl" / "libcudacxx" / "include"
    try:
        folder = (cache if cache is not None else Cache.default()).entry(
            "planner",
            _inputs(compiler, flashinfer, cuda),
            lambda empty: _build(compiler, empty / _LIBRARY, flashinfer, (cuda, cccl)),
        )
    except CacheError as problem:
        raise CompilerMissing(str(problem)) from problem
    return CompiledPlanner(folder / _LIBRARY)


def _build(compiler: str, library: Path, flashinfer: Path, system: tuple[Path, ...]) -> None:
    command = [compiler, *FLAGS, f"-I{_HERE}", f"-I{flashinfer}"]
    for include in system:
        command += ["-isystem", str(include)]
    command += [str(_SOURCES[0]), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompilerMissing(
            f"{compiler} could not compile FlashInfer's scheduler ({flashinfer}); check that "
            f"the header packages match ({', '.join(HEADER_PACKAGES)}):\n{done.stderr[-2000:]}"
        )


def _inputs(compiler: str, flashinfer: Path, cuda: Path) -> dict[str, object]:
    """All that decides what the library is, for its name in the cache."""
    version = subprocess.run([compiler, "--version"], capture_output=True, check=False).stdout
    headers = [flashinfer / "flashinfer" / name for name in _FLASHINFER_HEADERS]
    files = (*_SOURCES, *headers, cuda / "cuda_runtime_api.h")
    return {
        "compiler": version.decode(errors="replace"),
        "flags": FLAGS,
        "max_works": MAX_WORKS,
        "files": {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
            for path in files
        },
    }


def _int32(values: Ints) -> np.ndarray:
    array = values.numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    return np.ascontiguousarray(array, np.int32)
