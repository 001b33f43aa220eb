"""Finds the programs that compile FlashInfer's modules; each absence comes with its remedy."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from conformance.bundle.errors import ToolMissing

NVCC_REMEDY = (
    "install NVIDIA's CUDA toolkit 13.0 or newer (no GPU or driver is needed to compile) and set "
    "CUDA_HOME to its folder"
)
NINJA_REMEDY = "python -m pip install ninja"
CXX_REMEDY = "install a C++17 compiler, on Debian and Ubuntu: apt-get install g++"


@dataclass(frozen=True)
class Toolkit:
    """A CUDA toolkit folder and the versions of what compiles with it."""

    home: Path
    cuda: str  # such as "13.0"
    nvcc: str  # such as "V13.0.88"
    cxx: str  # first line of the C++ compiler's --version


def cuda_home() -> Path | None:
    """The real folder of a CUDA toolkit, None when there is none.

    A `nvcc` on PATH may be a script that runs another one elsewhere, so a folder counts only when
    it holds both the compiler and the runtime's header.
    """
    candidates = [Path(value) for name in ("CUDA_HOME", "CUDA_PATH") if (value := os.getenv(name))]
    on_path = shutil.which("nvcc")
    if on_path is not None:
        candidates.append(Path(on_path).resolve().parent.parent)
    candidates.append(Path("/usr/local/cuda"))
    candidates += sorted(Path("/usr/local").glob("cuda-*"), key=_version_key, reverse=True)
    for folder in candidates:
        home = folder.resolve()
        if (home / "bin/nvcc").is_file() and (home / "include/cuda_runtime.h").is_file():
            return home
    return None


def ninja() -> str | None:
    """Path of the ninja program, that of this Python environment first."""
    return shutil.which("ninja", path=search_path())


def search_path() -> str:
    """PATH with this Python environment's programs first."""
    import sysconfig

    return os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])


def find_toolkit() -> Toolkit:
    """Everything needed to compile; ToolMissing names the first thing that is not there."""
    home = cuda_home()
    if home is None:
        raise ToolMissing(f"nvcc: found no CUDA toolkit; to fix: {NVCC_REMEDY}")
    if ninja() is None:
        raise ToolMissing(f"ninja: not found; to fix: {NINJA_REMEDY}")
    cxx = os.environ.get("CXX", "c++")
    if shutil.which(cxx) is None:
        raise ToolMissing(f"C++ compiler: found no {cxx!r}; to fix: {CXX_REMEDY}")
    text = _first_output([str(home / "bin/nvcc"), "--version"])
    match = re.search(r"release (\d+\.\d+), (V[\d.]+)", text)
    if match is None:
        raise ToolMissing(f"nvcc: --version answered {text[-200:]!r}; to fix: {NVCC_REMEDY}")
    cxx_version = (_first_output([cxx, "--version"]).splitlines() or [""])[0]
    return Toolkit(home, match[1], match[2], cxx_version)


def _first_output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout


def _version_key(folder: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", folder.name))
