"""Where vLLM's sources come from: the installed package, a wheel, a folder, or a few files of them.

Nothing is imported or run here, and nothing but `FILES` is ever read.
"""

import hashlib
import io
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from packaging.version import InvalidVersion, Version

from conformance.cache import Cache
from conformance.core.request import SuiteError

FILES = (
    "vllm/model_executor/layers/attention/mla_attention.py",
    "vllm/model_executor/layers/attention/sparse_mla_attention.py",
    "vllm/model_executor/warmup/jit_warmup.py",
    "vllm/model_executor/warmup/jit_warmup_triton_helper.py",
    "vllm/utils/flashinfer.py",
    "vllm/utils/math_utils.py",
    "vllm/v1/attention/backend.py",
    "vllm/v1/attention/backends/mla/flashinfer_mla_sparse.py",
    "vllm/v1/attention/backends/mla/flashinfer_mla_sparse_sm90.py",
    "vllm/v1/attention/backends/mla/sparse_utils.py",
    "vllm/v1/attention/backends/utils.py",
    "vllm/v1/attention/ops/metadata.py",
)
"""What the backend for Hopper needs of vLLM 0.33.0; every other `vllm.*` import gets a stand-in."""

BACKEND = "vllm/v1/attention/backends/mla/flashinfer_mla_sparse_sm90.py"
"""The one without which there is nothing to judge."""

KIND = "vllm"
_WHEEL_NAME = re.compile(r"vllm-([^-]+)-.*\.(whl|zip)")
_WAYS = (
    "a vllm that is installed, --subject vllm==VERSION, or --subject vllm@PATH with a wheel, an "
    "unpacked folder, or an archive that `python -m conformance.subjects.vllm` has cut"
)


@dataclass(frozen=True)
class Source:
    """Sources by path (POSIX, below the package's parent), and the version that they are of."""

    version: str
    files: dict[str, str] = field(hash=False)
    place: str

    @property
    def digest(self) -> str:
        """A hash of all that was read."""
        digest = hashlib.blake2b(digest_size=16)
        for name, text in sorted(self.files.items()):
            digest.update(f"{name}\0{text}\0".encode())
        return digest.hexdigest()


def read(place: str) -> Source:
    """The sources at a place: "" for the installed vLLM, else a path. SuiteError if there is none.

    Files that a version lacks are left out; `BACKEND` must be there.
    """
    if not place:
        return _installed()
    path = Path(place)
    if path.is_dir():
        return _folder(path)
    if path.is_file() and zipfile.is_zipfile(path):
        return _archive(path)
    found = "a file that is no archive" if path.exists() else "nothing"
    raise SuiteError(f"vLLM's sources at {place}: found {found}; allowed: {_WAYS}")


def _installed() -> Source:
    spec = find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise SuiteError(f"subject vllm: found no vllm in this environment; allowed: {_WAYS}")
    root = Path(spec.submodule_search_locations[0]).parent
    return _made("", str(root), _reader(root), _version_of(root) or metadata.version("vllm"))


def _folder(root: Path) -> Source:
    return _made(str(root), str(root), _reader(root), _version_of(root))


def _reader(root: Path) -> Callable[[str], str | None]:
    top = root.resolve()

    def text(name: str) -> str | None:
        path = (top / name).resolve()
        if not path.is_relative_to(top):  # a link that leads elsewhere
            raise SuiteError(f"{root}: {name} leads out of the folder, to {path}; remove the link")
        return path.read_text(encoding="utf-8") if path.is_file() else None

    return text


def _version_of(root: Path) -> str:
    """The version that an unpacked wheel's metadata names, empty if there is none."""
    for found in sorted(root.glob("vllm-*.dist-info")):
        return found.name.removesuffix(".dist-info").partition("-")[2]
    return ""


def _archive(path: Path) -> Source:
    with zipfile.ZipFile(path) as archive:
        names = {member.filename: member for member in archive.infolist()}
        for name in names:
            checked_member(name, path)

        def text(name: str) -> str | None:
            return archive.read(names[name]).decode("utf-8") if name in names else None

        inside = {name.split("/")[0] for name in names}
        version = next(
            (
                name.removesuffix(".dist-info").partition("-")[2]
                for name in sorted(inside)
                if name.startswith("vllm-") and name.endswith(".dist-info")
            ),
            "",
        )
        named = _WHEEL_NAME.fullmatch(path.name)
        return _made(str(path), path.name, text, version or (named[1] if named else ""))


def checked_member(name: str, archive: Path) -> str:
    """An archive member's name; SuiteError for one that leaves the archive's own folder."""
    parts = PurePosixPath(name).parts
    if name.startswith(("/", "\\")) or ".." in parts or "\\" in name or ":" in name:
        raise SuiteError(
            f"{archive}: found the member {name!r}; allowed: paths below the archive's own folder; "
            "to fix: take the archive from where it was published"
        )
    return name


def _made(place: str, shown: str, text: Callable[[str], str | None], version: str) -> Source:
    files = {name: found for name in FILES if (found := text(name)) is not None}
    if BACKEND not in files:
        raise SuiteError(
            f"vLLM's sources at {shown}: found {version or 'a version without a name'}, without "
            f"{BACKEND}; allowed: a vLLM that has this backend, such as 0.33.0"
        )
    try:
        known = str(Version(version))
    except InvalidVersion:
        raise SuiteError(
            f"vLLM's sources at {shown}: found no version ({version!r}); allowed: a folder or "
            "archive with vllm-VERSION.dist-info beside vllm, or a wheel under its own name"
        ) from None
    return Source(known, files, place)


def cut(source: Source, path: Path) -> Path:
    """Write an archive of a source's files alone, a few hundred KiB; the same bytes each time."""
    data = io.BytesIO()
    info = f"vllm-{source.version}.dist-info/METADATA"
    text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {source.version}\n"
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted({**source.files, info: text}.items()):
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    path.write_bytes(data.getvalue())
    return path


def fetched(version: str, cache: Cache | None = None) -> Path:
    """An archive with the files of a released version, from the cache or fetched with pip.

    The wheel, hundreds of MiB, is not kept. Raises SuiteError when pip cannot fetch it.
    """
    try:
        wanted = str(Version(version))
    except InvalidVersion:
        raise SuiteError(
            f"subject vllm=={version}: found no version; allowed: one such as vllm==0.33.0"
        ) from None

    def build(folder: Path) -> None:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            (wheel,) = _download(wanted, Path(scratch)).glob("*.whl")
            cut(read(str(wheel)), folder / f"vllm-{wanted}-cut.zip")

    inputs = {"vllm": wanted, "files": FILES}
    return (cache or Cache.default()).entry(KIND, inputs, build) / f"vllm-{wanted}-cut.zip"


def _download(version: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(folder), f"vllm=={version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise SuiteError(
            f"vllm=={version}: not fetched ({lines[-1] if lines else done.returncode}); give a "
            "released version, or --subject vllm@PATH on a machine without network"
        )
    return folder
