"""Makes a bundle: fetch, compile, trim, describe, pack."""

import importlib.metadata
import json
import platform
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from conformance.bundle import fetch, manifest, modules, trim
from conformance.bundle.archive import files_below, pack_tar, sha256, unpack_wheel
from conformance.bundle.errors import CompileError, ToolMissing
from conformance.bundle.toolkit import Toolkit, find_toolkit
from conformance.cache import Cache

# Small pure-Python packages that FlashInfer and the suite import and a bare GPU host may lack.
SMALL = ("click", "einops", "filelock", "packaging", "platformdirs", "tabulate", "tqdm")
# The rest of what the suite imports, torch, triton and numpy aside.
SUITE = (
    *("execnet", "hypothesis", "iniconfig", "markdown-it-py", "mdurl", "pluggy", "pygments"),
    *("pytest", "pytest-xdist", "rich", "sortedcontainers"),
)
_TVM_FFI = "apache-tvm-ffi"
_NOTICE = """\
This bundle holds a part of FlashInfer {version} (the files its SM90 MLA path needs, unchanged, with
headers of NVIDIA CUTLASS and CCCL as FlashInfer ships them), modules compiled from it with NVIDIA's
CUDA toolkit {cuda}, and these packages, each with its own license beside it:
{packages}

FlashInfer's license:

"""


def build(
    version: str,
    out_dir: Path,
    python_tag: str = "cp312",
    *,
    with_suite: bool = False,
    cache: Cache | None = None,
) -> Path:
    """Build the bundle of one FlashInfer version and return the archive's path.

    python_tag: CPython of the GPU host. with_suite: add the suite's own pure-Python packages.
    cache: where wheels and compiled modules are kept; the one of the settings when left out.
    Raises a BundleError when something needed is absent or fails; `out_dir` is then untouched.
    """
    version, python_tag = fetch.checked_version(version), fetch.checked_python_tag(python_tag)
    toolkit = find_toolkit()
    cache = cache if cache is not None else Cache.default()
    wheel = fetch.wheel("flashinfer-python", version, cache)
    wheels = [(_TVM_FFI, fetch.wheel(_TVM_FFI, modules.tvm_ffi_version(), cache, python_tag))]
    names = (*SMALL, *SUITE) if with_suite else SMALL
    wheels += [(name, fetch.wheel(name, _installed(name), cache, python_tag)) for name in names]
    with tempfile.TemporaryDirectory(prefix="smla-bundle-") as scratch:
        package = Path(scratch, "package").resolve()
        unpack_wheel(wheel, package)
        built = modules.build_modules(package, sha256(wheel), toolkit, cache)
        stage = Path(scratch, "stage")
        python_path = ["flashinfer", python_tag]
        trim.copy_trimmed(package, stage / "flashinfer", built.sources)
        placed = _place_modules(built, stage, "flashinfer")
        _check_found(stage / "flashinfer", Path(scratch, "workspace"), placed)
        for _, extra in wheels:
            unpack_wheel(extra, stage / python_tag, keep=_wanted)
        _write_notice(stage, version, toolkit, [path.name for _, path in wheels])
        description = manifest.Manifest(
            flashinfer=version,
            python_tag=python_tag,
            platform="linux_x86_64",
            architecture=modules.ARCHITECTURE,
            cuda=toolkit.cuda,
            needs=[f"libcudart.so.{toolkit.cuda.split('.')[0]}", "libcuda.so.1"],
            python_path=python_path,
            modules=placed,
            wheels=[_wheel_record(path) for path in (wheel, *(path for _, path in wheels))],
            build=_build_versions(toolkit),
            files=manifest.digests(stage),
        )
        manifest.write(description, stage)
        manifest.verify(stage)
        out_dir.mkdir(parents=True, exist_ok=True)
        archive = out_dir / f"flashinfer-{version}-{python_tag}.tar.gz"
        pack_tar(stage, archive)
    return archive


def _place_modules(built: modules.Built, stage: Path, package: str) -> list[dict[str, object]]:
    """Copy each library to where FlashInfer looks for prebuilt ones: data/aot/<uri>/<uri>.so."""
    placed = []
    for module in built.modules:
        name = f"{package}/flashinfer/data/aot/{module.uri}/{module.uri}.so"
        (stage / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(module.library, stage / name)
        placed.append(modules.as_record(module, name))
    return placed


def _check_found(package: Path, workspace: Path, placed: Sequence[dict[str, object]]) -> None:
    """Import the trimmed tree in a child process and see that it finds every module prebuilt."""
    env = modules.child_env(package, workspace)
    env["FLASHINFER_DISABLE_JIT"] = "1"
    found = json.loads(modules.run_child("look-up", json.dumps(modules.VARIANTS), env=env))
    expected = [str(package.parent / str(module["library"])) for module in placed]
    if found != expected:
        raise CompileError(f"trimmed package: finds modules at {found}; expected {expected}")


def _wanted(name: str) -> bool:
    """Leave out of a wheel what importing never reads: sources, headers, lists of its files."""
    unused = ("tvm_ffi/include/", "tvm_ffi/src/", "tvm_ffi/3rdparty/", "tvm_ffi/cmake/")
    listing = re.search(r"\.dist-info/(RECORD$|INSTALLER$|sboms/)", name)
    return not name.startswith(unused) and listing is None


def _write_notice(stage: Path, version: str, toolkit: Toolkit, packages: Sequence[str]) -> None:
    texts = [
        (stage / name).read_text()
        for name in files_below(stage)
        if re.search(r"flashinfer_python-[^/]*\.dist-info/(licenses/)?LICENSE[^/]*$", str(name))
    ]
    if not texts:
        raise CompileError("FlashInfer's wheel: holds no license text, so it must not be packed")
    head = _NOTICE.format(version=version, cuda=toolkit.cuda, packages="\n".join(packages))
    (stage / "NOTICE").write_text(head + "\n".join(texts))


def _wheel_record(path: Path) -> dict[str, str]:
    return {"name": path.name, "sha256": sha256(path)}


def _build_versions(toolkit: Toolkit) -> dict[str, str]:
    return {
        "nvcc": toolkit.nvcc,
        "cxx": toolkit.cxx,
        "python": platform.python_version(),
        "torch": _installed("torch"),
        _TVM_FFI: modules.tvm_ffi_version(),
    }


def _installed(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError as error:
        raise ToolMissing(
            f"{name}: not installed, and the bundle takes the version that is installed here; to "
            "fix: python -m pip install -e '.[test,bundle]'"
        ) from error
