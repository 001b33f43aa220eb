"""FlashInfer packages to compare: a version from the index, a wheel file, or a trusted checkout.

A wheel is unpacked into the cache, never installed, and only what planning, running and building
the SM90 MLA path can need. Nothing is imported here.
"""

import hashlib
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from conformance.bundle import fetch
from conformance.bundle.archive import files_below, sha256, unpack_wheel
from conformance.bundle.errors import BundleError
from conformance.cache import Cache
from conformance.gate.errors import PackageError
from conformance.gate.model import Side

NAME = "flashinfer-python"
KIND = "flashinfer"
_TOP = "flashinfer"
# Sources of modules for other kernels: most of a wheel.
_LEFT_OUT = re.compile(
    r"flashinfer/data/(csrc/(?!batch_mla|tvm_ffi_utils)|spdlog/|cutlass/(?!include/)"
    r"|cccl/(?!libcudacxx/include/|cub/|thrust/))"
)
_ALLOWED = "a version of the index, a wheel file, or with --trust the folder of a source checkout"


@dataclass(frozen=True)
class Package:
    """An unpacked FlashInfer. folder: holds `flashinfer/`, to put on a child's PYTHONPATH.

    asked: as it was named. digest: SHA-256 of the wheel, or of a checkout's files. trusted: a
    checkout, whose own build was not isolated from its author.
    """

    asked: str
    version: str
    folder: Path
    digest: str
    trusted: bool = False

    @property
    def data(self) -> Path:
        """Headers and sources of the native modules."""
        return self.folder / _TOP / "data"

    @property
    def side(self) -> Side:
        """What a report says of it."""
        return Side(self.asked, self.version, self.digest)


def resolve(asked: str, cache: Cache, *, trust: bool = False) -> Package:
    """Return the package that a command line names; raise PackageError where there is none."""
    path, version = Path(asked), _version(asked)
    try:
        if version is not None:
            return _wheel(asked, fetch.wheel(NAME, version, cache), cache)
        if asked and path.is_dir():
            return _checkout(asked, path.resolve(), trust)
        if path.suffix == ".whl" or path.is_file():
            return _wheel(asked, path, cache)
    except BundleError as problem:
        raise PackageError(f"FlashInfer {asked}: {problem}") from problem
    raise PackageError(
        f"FlashInfer: found {asked!r}, which is no version and no file; allowed: {_ALLOWED}; "
        "to fix: correct it"
    )


def _version(asked: str) -> str | None:
    try:
        return str(Version(asked))
    except InvalidVersion:
        return None


def _wheel(asked: str, wheel: Path, cache: Cache) -> Package:
    if not wheel.is_file():
        raise PackageError(f"{asked}: found no such file; allowed: {_ALLOWED}; to fix: correct it")
    try:
        with zipfile.ZipFile(wheel) as archive:
            damaged = archive.testzip()
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, EOFError) as problem:
        raise PackageError(
            f"{asked}: found no whole wheel ({problem}); allowed: {_ALLOWED}; to fix: fetch it "
            "again"
        ) from problem
    if damaged is not None:
        raise PackageError(
            f"{asked}: found {damaged} damaged; allowed: a whole wheel; to fix: fetch it again"
        )
    version = _named(asked, names)
    digest = sha256(wheel)
    folder = cache.entry(
        KIND,
        {"wheel": digest, "left out": _LEFT_OUT.pattern},
        lambda empty: unpack_wheel(wheel, empty, keep=lambda name: not _LEFT_OUT.match(name)),
    )
    return Package(asked, version, folder, digest)


def _named(asked: str, names: list[str]) -> str:
    """The version that a wheel's metadata folder bears."""
    found = {
        m[1] for name in names if (m := re.match(r"flashinfer_python-([^/]+)\.dist-info/", name))
    }
    if len(found) != 1 or not {f"{_TOP}/mla.py", f"{_TOP}/mla/__init__.py"} & set(names):
        raise PackageError(
            f"{asked}: found no flashinfer_python with flashinfer.mla in it; allowed: {_ALLOWED}; "
            "to fix: name a wheel of flashinfer-python"
        )
    return found.pop()


def _checkout(asked: str, root: Path, trust: bool) -> Package:
    if not trust:
        raise PackageError(
            f"{asked}: found a folder; allowed: a wheel, whose code runs in a child process with "
            "a bare environment, or a checkout that you trust as you trust your own code; to fix: "
            "give --trust, or build a wheel"
        )
    if not (root / _TOP / "mla").is_dir() and not (root / _TOP / "mla.py").is_file():
        raise PackageError(
            f"{asked}: found no flashinfer/mla in this folder; allowed: {_ALLOWED}; to fix: name "
            "the folder that holds the package `flashinfer`"
        )
    if not (root / _TOP / "data" / "include").exists():
        raise PackageError(
            f"{asked}: found no flashinfer/data/include; allowed: a checkout whose data folder is "
            "linked, as `pip install -e .` leaves it; to fix: run that, or build a wheel"
        )
    version = next(_versions(root), "0+checkout")
    digest = hashlib.sha256()
    for name in files_below(root / _TOP):
        if name.suffix != ".pyc":
            digest.update(f"{name}\0{sha256(root / _TOP / name)}\0".encode())
    return Package(asked, version, root, digest.hexdigest(), trusted=True)


def _versions(root: Path) -> Iterator[str]:
    for file in (root / "version.txt", root / _TOP / "_build_meta.py"):
        if file.is_file():
            yield from re.findall(r"\d+\.\d+\.\d+[\w.+]*", file.read_text())
