"""Lays a bundle out as an entry of the cache: all of it or nothing, checked at every start.

The standard library alone. The entry has the cache's own form, so `clean` deletes it. A host with
several FlashInfers has an entry for each, and one more for each way of building modules itself.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from conformance import ownership, settings
from conformance.bundle import manifest
from conformance.bundle.archive import unpack_tar
from conformance.bundle.errors import ManifestError, StartError
from conformance.entries import BUILDING, digest_of, lock_of, seal

KIND = "bundles"
PAYLOAD = "payload.tar.xz"
WORKSPACES = "workspaces"
"""Kind of the folders that FlashInfer builds modules in."""


def lay_out(archive: Path, digest: str, told: manifest.Manifest, jit: str | None = None) -> Path:
    """The folder with a bundle's files, unpacked unless it is there and whole.

    digest: the archive's SHA-256. jit: pattern of the modules to leave out, so that FlashInfer
    builds them. Raises a BundleError for an archive that is unsafe or differs from its manifest,
    or for a cache that cannot be used; nothing half-written is left then, nor by a kill: what a
    killed one began is removed by the next.
    """
    root, keep = cache_root(), _keep(jit)
    inputs = {"bundle": digest, "without": jit}
    name = digest_of(KIND, inputs)
    folder = root / KIND / name
    if _is_whole(folder, told, keep):
        return folder
    _claim(root)
    with _locked(lock_of(root, KIND, name)):
        if not _is_whole(folder, told, keep):  # nobody else did it while this process waited
            _unpack(archive, folder, told, keep, inputs)
    return folder


def workspace(folder: Path) -> Path:
    """A folder for what FlashInfer builds and notes, of this bundle alone."""
    root = folder.parents[1]
    own = root / WORKSPACES / folder.name
    if not own.is_dir():
        own.mkdir(parents=True, exist_ok=True)
        seal(own, {"workspace of": folder.name})
    return own


def cache_root() -> Path:
    """The cache's root, as the settings name it, else in the user's cache folder."""
    chosen = settings.load().cache_root
    if chosen is not None:
        return chosen.absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "smla"


def _keep(jit: str | None) -> Callable[[str], bool]:
    def keep(name: str) -> bool:
        module = PurePosixPath(name).parent.name
        return not (jit and name.startswith(manifest.PREBUILT) and fnmatch(module, jit))

    return keep


def _is_whole(folder: Path, told: manifest.Manifest, keep: Callable[[str], bool]) -> bool:
    if not folder.is_dir():
        return False
    try:
        manifest.verify(folder, told, keep)
        return True
    except (ManifestError, OSError):
        return False


def _unpack(
    archive: Path,
    folder: Path,
    told: manifest.Manifest,
    keep: Callable[[str], bool],
    inputs: object,
) -> None:
    folder.parent.mkdir(exist_ok=True)
    begun = f"{BUILDING}{folder.name}-"
    for left in folder.parent.glob(f"{begun}*"):  # of a process that was killed: we have the lock
        shutil.rmtree(left)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=begun))
    try:
        with zipfile.ZipFile(archive) as bundle, bundle.open(PAYLOAD) as payload:
            unpack_tar(payload, scratch, keep)
            (scratch / manifest.NAME).write_bytes(bundle.read(manifest.NAME))
        manifest.verify(scratch, told, keep)
        for program in told.programs:
            (scratch / program).chmod(0o755)
        seal(scratch, inputs)
        scratch.chmod(0o755)
        if folder.exists():  # damaged; renamed first, so that nobody finds half of it
            folder.rename(f"{scratch}-damaged")
        scratch.rename(folder)
    except (KeyError, zipfile.BadZipFile) as problem:
        raise StartError(
            f"{archive.name}: found no whole bundle ({problem}); allowed: a file that "
            "`conformance bundle` made; to fix: copy it again"
        ) from problem
    finally:
        for left in (scratch, Path(f"{scratch}-damaged")):
            shutil.rmtree(left, ignore_errors=True)


def _claim(root: Path) -> None:
    try:
        claimed = ownership.CACHE.claim(root)
    except OSError as problem:
        raise StartError(
            f"cache root {root}: found a folder that cannot be written ({problem.strerror}); "
            "allowed: one that can; to fix: set SMLA_CACHE_ROOT"
        ) from problem
    if not claimed:
        raise StartError(
            f"cache root {root}: found a folder that already holds other files; allowed: an absent "
            "or empty one, or one that this suite made; to fix: set SMLA_CACHE_ROOT to a folder "
            "in it"
        )


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Wait for and hold a lock that the operating system ends with its process."""
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
