"""The packages that come along with FlashInfer and the suite, and the least versions that will do.

All but apache-tvm-ffi are taken only where the host lacks them: what a host has fits its torch.
"""

import importlib.metadata
import re
import shutil
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from conformance.bundle import fetch
from conformance.bundle.archive import unpack_wheel
from conformance.bundle.errors import ToolMissing
from conformance.bundle.manifest import Carried
from conformance.cache import Cache

TVM_FFI = "apache-tvm-ffi"
"""Loads the modules, which were compiled against its headers."""
NINJA = "ninja"
FLASHINFER = (
    *("certifi", "charset-normalizer", "einops", "idna", "jinja2", "markupsafe", "nvidia-ml-py"),
    *("requests", "tabulate", "tqdm", "typing-extensions", "urllib3"),
)
"""What `import flashinfer.mla` and the building of its modules import."""
SUITE = (
    *("click", "execnet", "filelock", "hypothesis", "iniconfig", "markdown-it-py", "mdurl"),
    *("packaging", "platformdirs", "pluggy", "pygments", "pytest", "pytest-xdist", "rich"),
    *("safetensors", "sortedcontainers", "tree-sitter", "tree-sitter-cpp"),
)
"""What the suite imports besides; pytest and Hypothesis too, since a serving image has neither."""
ALL = (TVM_FFI, *FLASHINFER, *SUITE)
FOLDER = "packages"
NINJA_PROGRAM = "bin/ninja"

# Never read by an import, nor by a compilation.
_LEFT_OUT = re.compile(
    r"[^/]+\.dist-info/(RECORD|INSTALLER|WHEEL|top_level\.txt|sboms/.*)$"
    r"|tvm_ffi/(src|cmake|cython|stub|testing|share|3rdparty/(?!dlpack/include/))/?.*"
    r"|tvm_ffi/CMakeLists\.txt"  # libtvm_ffi_testing.so stays: core.so is linked against it
    r"|.*\.(pyi|pyx|pxd)$|tree_sitter_cpp/queries/.*"
    r"|pygments/lexers/(?!(__init__|_mapping|diff|python|special)\.py$).*"  # rich's and pytest's
)


def installed(name: str) -> str:
    """The version that is installed here, which is the one to carry."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError as error:
        raise ToolMissing(
            f"{name}: not installed, and the bundle takes the version that is installed here; to "
            "fix: python -m pip install -e '.[test,bundle]'"
        ) from error


def wheels(cache: Cache, python_tag: str) -> dict[str, Path]:
    """The wheels to carry, by package, from the cache or pip's index."""
    return {n: fetch.wheel(n, installed(n), cache, python_tag) for n in (*ALL, NINJA)}


def place(found: dict[str, Path], stage: Path, least: dict[str, str]) -> list[Carried]:
    """Unpack each package below `stage`, in a folder of its own; ninja's program apart."""
    carried = []
    for name in ALL:
        folder = f"{FOLDER}/{name}"
        unpack_wheel(found[name], stage / folder, keep=lambda n: not _LEFT_OUT.fullmatch(n))
        version = found[name].name.split("-")[1]
        carried.append(Carried(name, version, folder, least.get(name, "0"), always=name == TVM_FFI))
    _place_ninja(found[NINJA], stage)
    return carried


def _place_ninja(wheel: Path, stage: Path) -> None:
    unpacked = stage / "ninja-wheel"
    unpack_wheel(wheel, unpacked)
    programs = [*unpacked.glob("*.data/scripts/ninja"), *unpacked.glob("ninja/data/bin/ninja")]
    if not programs:
        raise ToolMissing(
            f"{wheel.name}: found no program ninja in it; allowed: the wheel of PyPI's ninja; to "
            "fix: python -m pip install --upgrade ninja, then build again"
        )
    (stage / NINJA_PROGRAM).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(programs[0], stage / NINJA_PROGRAM)
    shutil.rmtree(unpacked)


def least_versions(pyproject: Path, wheels: Iterable[Path]) -> dict[str, str]:
    """The least version of each package that pyproject.toml or another carried one asks for."""
    project = tomllib.loads(pyproject.read_text())["project"]
    asked: list[str] = [*project["dependencies"]]
    for extra in ("test", "bundle"):
        asked += project["optional-dependencies"][extra]
    for wheel in wheels:
        asked += _requirements(wheel)
    least: dict[str, Version] = {}
    for text in asked:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        name = canonicalize_name(requirement.name)
        for bound in requirement.specifier:
            if bound.operator in (">=", "~=", "=="):
                version = Version(bound.version.removesuffix(".*"))
                least[name] = max(version, least.get(name, version))
    return {name: str(version) for name, version in sorted(least.items())}


def _requirements(wheel: Path) -> Sequence[str]:
    (found,) = importlib.metadata.MetadataPathFinder.find_distributions(
        importlib.metadata.DistributionFinder.Context(
            name=wheel.name.split("-")[0], path=[str(wheel)]
        )
    )
    return found.requires or []
