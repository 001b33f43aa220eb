"""What a bundle needs of the host, and the environment in which the suite runs there.

The standard library alone.
"""

import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from conformance.bundle import layout, toolkit
from conformance.bundle.errors import StartError
from conformance.bundle.manifest import Carried, Manifest

NEEDED = ("torch", "triton", "numpy")
"""Too large, or too much of the host's own, to come along."""


def dotted(tag: str) -> str:
    """A tag such as cp312 as people write it: 3.12."""
    return f"{tag[2]}.{tag[3:]}"


def check_python(told: Manifest) -> None:
    """Raise StartError unless this Python and machine are those the bundle was made for."""
    here = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    if sys.implementation.name != "cpython" or here != told.python_tag:
        raise StartError(
            f"Python: found {sys.implementation.name} {dotted(here)}; allowed: CPython "
            f"{dotted(told.python_tag)}, for which this bundle's binary packages (apache-tvm-ffi) "
            f"are; to fix: start it with python{dotted(told.python_tag)}, or build it with "
            f"`conformance bundle --python {here}`"
        )
    machine = f"{sys.platform}_{os.uname().machine}"
    if machine != told.platform:
        raise StartError(
            f"machine: found {machine}; allowed: {told.platform}; to fix: use such a host"
        )


def check_packages() -> None:
    """Raise StartError where a package is absent that the host must have itself."""
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if absent:
        raise StartError(
            f"packages: found no {', '.join(absent)} in {sys.prefix}; allowed: a Python that has "
            f"{', '.join(NEEDED)}, torch as a build for CUDA 13; to fix: start the bundle with "
            "that one"
        )


def check_compiler() -> None:
    """Raise StartError where FlashInfer could not build its modules."""
    if toolkit.cuda_home() is None:
        raise StartError(
            f"--jit: found no nvcc; allowed: a host with a CUDA toolkit; to fix: "
            f"{toolkit.NVCC_REMEDY}, or leave --jit out, which takes the modules in the bundle"
        )


def environment(
    folder: Path,
    told: Manifest,
    jit: str | None,
    caller: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The variables under which the bundle's suite and FlashInfer are found, and no others.

    A package that the host has in a version that will do is the host's own: it fits what else is
    there. The user's PYTHONPATH comes last. jit: whether FlashInfer may build, None for no. caller:
    the variables to begin with, this process's by default.
    """
    ours = {**(os.environ if caller is None else caller)}
    ours["PYTHONDONTWRITEBYTECODE"] = "1"  # an entry of the cache stays as it is
    ours["PYTHONSAFEPATH"] = "1"  # a checkout in the current folder is another suite
    search = [*told.python_path, *(package.folder for package in lacking(told.packages))]
    paths = [str(folder / name) for name in search]
    ours["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [ours.get("PYTHONPATH")])])
    programs = dict.fromkeys(str((folder / name).parent) for name in told.programs)
    ours["PATH"] = os.pathsep.join([ours.get("PATH", os.defpath), *programs])
    ours.setdefault("FLASHINFER_WORKSPACE_BASE", str(layout.workspace(folder)))
    ours.setdefault("FLASHINFER_CUDA_ARCH_LIST", told.architecture)
    ours.pop("FLASHINFER_DISABLE_JIT", None)
    home = toolkit.cuda_home()
    if jit is None:
        ours["FLASHINFER_DISABLE_JIT"] = "1"
    elif home is not None:  # the one that was found, wherever FlashInfer would look first
        ours["CUDA_HOME"] = str(home)
    return ours


def lacking(packages: Iterable[Carried]) -> list[Carried]:
    """Those of a bundle's packages that the host has not, or only in too old a version."""
    return [p for p in packages if p.always or _installed(p.name) < _release(p.least)]


def _installed(name: str) -> tuple[int, ...]:
    """The release that the host has; less than any where it has none."""
    try:
        return _release(metadata.version(name) or "")
    except metadata.PackageNotFoundError:
        return ()


def _release(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with, which order releases."""
    found = re.match(r"v?(?:\d+!)?(\d+(?:\.\d+)*)", version)
    numbers = [int(number) for number in found[1].split(".")] if found else []
    while len(numbers) > 1 and numbers[-1] == 0:  # 8 and 8.0 are one version
        numbers.pop()
    return tuple(numbers)
