"""The environments of children that run a package's code: what that takes, and no more.

The code finds no token, proxy or home folder of whoever asked. On a GPU host each package has a
folder of its own for what it builds: modules of two builds of one version must not meet.
"""

import os
import site
from collections.abc import Iterable, Mapping
from pathlib import Path

from conformance.core.gpus import VARIABLE
from conformance.core.request import ROOT
from conformance.settings import TRIAL

PLAIN = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "SMLA_CACHE_ROOT")
"""All that a child on the CPU sees of its parent's variables."""

_KEPT = (
    *("PATH", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "CC", "CXX", "MAX_JOBS", VARIABLE),
    *("SMLA_CACHE_ROOT", "SMLA_LOG_LEVEL"),
)
_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "NVCC_", "TORCH_CUDA_")


def plain(search: Iterable[str], home: Path) -> dict[str, str]:
    """Return the variables of a child on the CPU.

    search: folders on its path behind the suite's own. home: made here, for all that it writes.
    """
    home.mkdir(parents=True, exist_ok=True)
    return {
        **{name: os.environ[name] for name in PLAIN if name in os.environ},
        "HOME": str(home),
        "TMPDIR": str(home),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *search]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def environment(
    folder: Path,
    home: Path,
    caller: Mapping[str, str] | None = None,
    more: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the variables of a child on a GPU host.

    folder: holds the package `flashinfer`; it comes before all that the caller's PYTHONPATH names,
    where a subject may be. home: made here, for what the package builds and caches,
    of this package alone. caller: the variables to keep some of, this process's by default. more:
    set beside them, such as what a bundle needs.
    """
    home.mkdir(parents=True, exist_ok=True)
    caller = os.environ if caller is None else caller
    kept = {k: v for k, v in caller.items() if k in _KEPT or k.startswith(_PREFIXES)}
    search = [str(ROOT), str(folder.resolve())]
    search += [str(Path(p).resolve()) for p in caller.get("PYTHONPATH", "").split(os.pathsep) if p]
    return {
        **kept,
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "FLASHINFER_WORKSPACE_BASE": str(home),
        "PYTHONUSERBASE": site.getuserbase(),  # torch may be there, and HOME no longer says where
        "PYTHONPATH": os.pathsep.join(search),
        "PYTHONDONTWRITEBYTECODE": "1",
        TRIAL: "1",  # whether a version is known says nothing here: it is to be found out
        **(more or {}),
    }
