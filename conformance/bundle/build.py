"""Makes a bundle: fetch, compile, trim, gather the suite, describe, pack."""

import json
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from conformance.bundle import fetch, manifest, modules, packages, pyz, trim
from conformance.bundle.archive import files_below, sha256, unpack_wheel
from conformance.bundle.errors import CompileError, VersionError
from conformance.bundle.toolkit import Toolkit, find_toolkit
from conformance.cache import Cache
from conformance.core import environment

ROOT = Path(__file__).parents[2]
ROOMS = (*environment.ROOMS, "smla", "examples")
SHADOW = "shadow"
_NAME, _WHEEL = "flashinfer-python", ".whl"
_NOTICE = """\
This bundle holds smla and its conformance suite (Apache-2.0, see suite/LICENSE), a part of
FlashInfer {version} (the files its SM90 MLA path needs, unchanged, with headers of NVIDIA CUTLASS
and CCCL as FlashInfer ships them), modules compiled from it with NVIDIA's CUDA toolkit {cuda}, and
these packages, each with its own license beside it, files that nothing reads here left out:
{packages}

FlashInfer's license:

"""


def _version(asked: str) -> str:
    """The version that is asked for; VersionError where that is none and no wheel of FlashInfer."""
    if not asked.endswith(_WHEEL):
        return fetch.checked_version(asked)
    try:
        name, version, *_ = parse_wheel_filename(Path(asked).name)
    except InvalidWheelFilename as problem:
        raise VersionError(_wrong(asked, str(problem))) from problem
    if name != _NAME or not Path(asked).is_file():
        raise VersionError(_wrong(asked, f"no such file of {_NAME}"))
    return str(version)


def _wrong(asked: str, found: str) -> str:
    return (
        f"FlashInfer {asked}: found {found}; allowed: a version such as 0.7.2.post1, or the file "
        f"of a wheel of {_NAME}, under the name that it was built with; to fix: correct it"
    )


def file_name(version: str) -> str:
    """The bundle's name."""
    return f"smla-{version}-sm90.pyz"


def build(
    asked: str,
    out_dir: Path,
    python_tag: str = "cp312",
    *,
    cache: Cache | None = None,
    most: int = pyz.MOST_BYTES,
) -> Path:
    """Build the bundle of one FlashInfer and return its path.

    asked: a version in the index, or a wheel file. python_tag: CPython of the GPU host. cache:
    where wheels and compiled modules are kept; the one of the settings when left out. most: bytes
    that it may have. Raises a BundleError when something needed is absent or fails; an older bundle
    of that name is then untouched.
    """
    version, python_tag = _version(asked), fetch.checked_python_tag(python_tag)
    toolkit = find_toolkit()
    cache = cache if cache is not None else Cache.default()
    wheel = Path(asked) if asked.endswith(_WHEEL) else fetch.wheel(_NAME, version, cache)
    carried = packages.wheels(cache, python_tag)
    with tempfile.TemporaryDirectory(prefix="smla-bundle-") as scratch:
        package = Path(scratch, "package").resolve()
        unpack_wheel(wheel, package)
        built = modules.build_modules(package, sha256(wheel), toolkit, cache)
        stage = Path(scratch, "stage")
        trim.copy_trimmed(package, stage / "flashinfer", built.sources)
        placed = _place_modules(built, stage, "flashinfer")
        _copy(ROOT / "conformance/bundle/shadow", stage / SHADOW, "flashinfer_*.py")
        least = packages.least_versions(ROOT / "pyproject.toml", carried.values())
        along = packages.place(carried, stage, least)
        here = f"cp{sys.version_info[0]}{sys.version_info[1]}" == python_tag
        own = [stage / package.folder for package in along] if here else []
        _check_found(stage, Path(scratch, "workspace"), placed, own)
        _copy_suite(stage / manifest.SUITE)
        _write_notice(stage, version, toolkit, [path.name for path in carried.values()])
        description = manifest.Manifest(
            suite={
                "commit": environment.commit(),
                "sources": environment.digest(stage / manifest.SUITE),
            },
            flashinfer=version,
            wheel=sha256(wheel),
            python_tag=python_tag,
            platform="linux_x86_64",
            architecture=modules.ARCHITECTURE,
            cuda=toolkit.cuda,
            needs=[f"libcudart.so.{toolkit.cuda.split('.')[0]}", "libcuda.so.1"],
            python_path=[manifest.SUITE, "flashinfer", SHADOW],
            packages=along,
            programs=[packages.NINJA_PROGRAM],
            modules=placed,
            wheels=[_wheel_record(path) for path in (wheel, *carried.values())],
            build=_build_versions(toolkit),
            files=manifest.digests(stage),
        )
        target = out_dir / file_name(version)
        pyz.write(stage, description, target, most)
    return target


def _copy_suite(dest: Path) -> None:
    """Copy every file of the rooms, so that their digest is the checkout's."""
    for name in (*environment.files(ROOT, ROOMS), Path("LICENSE")):
        (dest / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, dest / name)


def _copy(source: Path, dest: Path, pattern: str) -> None:
    dest.mkdir(parents=True)
    for path in source.glob(pattern):
        shutil.copyfile(path, dest / path.name)


def _place_modules(built: modules.Built, stage: Path, package: str) -> list[dict[str, object]]:
    """Copy each library to where FlashInfer looks for prebuilt ones: data/aot/<uri>/<uri>.so."""
    placed = []
    for module in built.modules:
        name = f"{package}/flashinfer/data/aot/{module.uri}/{module.uri}.so"
        (stage / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(module.library, stage / name)
        placed.append(modules.as_record(module, name))
    return placed


def _check_found(
    stage: Path, workspace: Path, placed: Sequence[dict[str, object]], own: Sequence[Path]
) -> None:
    """Import the trimmed tree in a child process and see that it finds every module prebuilt.

    own: folders of the carried packages, where they are for this Python: all of them are imported
    from there then, in place of those that are installed here.
    """
    env = modules.child_env(stage / "flashinfer", workspace)
    env["PYTHONPATH"] = ":".join([env["PYTHONPATH"], str(stage / SHADOW), *map(str, own)])
    env["FLASHINFER_DISABLE_JIT"] = "1"
    found = json.loads(modules.run_child("look-up", json.dumps(modules.VARIANTS), env=env))
    expected = [str(stage / str(module["library"])) for module in placed]
    if found != expected:
        raise CompileError(f"trimmed package: finds modules at {found}; expected {expected}")


def _write_notice(stage: Path, version: str, toolkit: Toolkit, names: Iterable[str]) -> None:
    texts = [
        (stage / name).read_text()
        for name in files_below(stage)
        if re.search(r"flashinfer_python-[^/]*\.dist-info/(licenses/)?LICENSE[^/]*$", str(name))
    ]
    if not texts:
        raise CompileError("FlashInfer's wheel: holds no license text, so it must not be packed")
    head = _NOTICE.format(version=version, cuda=toolkit.cuda, packages="\n".join(names))
    (stage / "NOTICE").write_text(head + "\n".join(texts))


def _wheel_record(path: Path) -> dict[str, str]:
    return {"name": path.name, "sha256": sha256(path)}


def _build_versions(toolkit: Toolkit) -> dict[str, str]:
    return {
        "nvcc": toolkit.nvcc,
        "cxx": toolkit.cxx,
        "python": platform.python_version(),
        "torch": packages.installed("torch"),
        packages.TVM_FFI: modules.tvm_ffi_version(),
    }
