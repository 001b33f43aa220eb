"""The one cache: entries named by the hash of what they are made from, each built once.

Below the root (setting `cache_root`, else `smla` in the user's cache folder):
  CACHEDIR.TAG            says that this suite made the folder; `clean` deletes nothing without it
  KIND/DIGEST/            an entry: its files, and entry.json with its inputs and every file's hash
  KIND/.building-DIGEST-* an entry in the making; a rename makes it one, so none is ever half there
  locks/KIND-DIGEST.lock  held while an entry is built
An entry that is there is used without lock, write or network. Locks are the operating system's
(flock, through filelock): one ends with the process that holds it, killed or not, so a lock file
left behind locks nothing, and the next builder removes what a killed one had begun. (On a
filesystem without flock, filelock warns and uses marker files, which it recovers by process id.)
"""

import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import filelock
import platformdirs

from conformance import ownership, settings
from conformance.entries import BUILDING, ENTRY, LOCKS, digest_of, is_whole, lock_of, seal

LOCK_SECONDS = 3600.0
_log = logging.getLogger(__name__)


class CacheError(RuntimeError):
    """The cache cannot be used; the message says what was found, what is allowed, what to do."""


@dataclass
class Cleaned:
    """What `clear` did. kept: (path, why it was left)."""

    entries: int = 0
    bytes: int = 0
    kept: list[tuple[Path, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Cache:
    """The cache below one root."""

    root: Path

    @classmethod
    def default(cls) -> "Cache":
        """The cache of the settings in force."""
        return cls.of(settings.load())

    @classmethod
    def of(cls, chosen: settings.Settings) -> "Cache":
        """The cache that these settings name."""
        root = chosen.cache_root
        return cls(root if root is not None else platformdirs.user_cache_path("smla"))

    def entry(self, kind: str, inputs: object, build: Callable[[Path], None]) -> Path:
        """The folder of an entry, built by `build(empty folder)` unless it is there and whole.

        inputs: all that decides the content, as JSON values. What `build` raises leaves no trace.
        Raises CacheError where the root cannot be written or belongs to somebody else.
        """
        digest = digest_of(kind, inputs)
        folder = self.root / kind / digest
        if is_whole(folder):
            return folder
        self._claim()
        with self._lock(kind, digest):
            if not is_whole(folder):  # nobody else built it while this process waited
                self._make(folder, inputs, build)
        return folder

    def clear(self) -> Cleaned:
        """Delete every entry, unfinished entry and lock file, and the root when it is empty then.

        Nothing is touched in a root without this suite's tag, nor what it does not know.
        """
        done = Cleaned()
        if not ownership.CACHE.owns(self.root):
            if self.root.exists():
                done.kept.append((self.root, f"no {ownership.CACHE.name} of this suite in it"))
            return done
        for path in sorted(self.root.glob("*/*")):
            if path.parent.name != LOCKS and path.is_dir() and not path.is_symlink():
                self._delete(path, done)
        held = {_named(kept) for kept, _ in done.kept}
        for path in self.root.glob(f"{LOCKS}/*.lock"):
            if path.stem.rpartition("-")[2] not in held:
                path.unlink()
        for folder in sorted(self.root.iterdir()):
            if folder.is_dir() and not folder.is_symlink():
                with contextlib.suppress(OSError):  # not empty
                    folder.rmdir()
        left = [path for path in self.root.iterdir() if path.name != ownership.CACHE.name]
        known = {parent for path, _ in done.kept for parent in path.parents}
        for path in left:
            if path not in known and not (held and path.name == LOCKS):
                done.kept.append((path, "not made by this suite"))
        if not left:
            (self.root / ownership.CACHE.name).unlink()
            self.root.rmdir()
        return done

    def _delete(self, path: Path, done: Cleaned) -> None:
        unfinished = path.name.startswith(BUILDING)
        if not unfinished and not (path / ENTRY).is_file():
            done.kept.append((path, f"no {ENTRY} in it"))
            return
        try:
            with self._lock(path.parent.name, _named(path), seconds=0):
                done.bytes += sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
                shutil.rmtree(path)
                done.entries += not unfinished
        except CacheError:
            done.kept.append((path, "another process is building it"))

    def _claim(self) -> None:
        try:
            claimed = ownership.CACHE.claim(self.root)
        except OSError as problem:
            raise CacheError(
                f"cache root {self.root}: found a folder that cannot be written "
                f"({problem.strerror}); allowed: one that can; to fix: set SMLA_CACHE_ROOT"
            ) from problem
        if not claimed:
            raise CacheError(
                f"cache root {self.root}: found a folder that already holds other files; allowed: "
                "an absent or empty one, or one that this suite made; to fix: name a folder in it"
            )

    @contextlib.contextmanager
    def _lock(self, kind: str, digest: str, seconds: float = LOCK_SECONDS) -> Iterator[None]:
        path = lock_of(self.root, kind, digest)
        path.parent.mkdir(exist_ok=True)
        lock = filelock.FileLock(path)
        try:
            try:
                lock.acquire(timeout=min(seconds, 1.0))
            except filelock.Timeout:
                if seconds:
                    _log.info("waiting for another process that builds %s %s", kind, digest)
                lock.acquire(timeout=seconds)
        except filelock.Timeout as held:
            raise CacheError(
                f"{path}: found it locked for {seconds:g} s by another process; allowed: a build "
                "that ends; to fix: look for that process (fuser, lsof) and end it"
            ) from held
        try:
            yield
        finally:
            lock.release()

    def _make(self, folder: Path, inputs: object, build: Callable[[Path], None]) -> None:
        folder.parent.mkdir(exist_ok=True)
        begun = f"{BUILDING}{folder.name}-"
        # Held by the lock's owner alone, so what stands here belongs to a builder that was killed.
        for left in (folder, *folder.parent.glob(f"{begun}*")):
            if left.exists():
                _log.warning("removing %s: unfinished or damaged", left)
                shutil.rmtree(left)
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=begun))
        try:
            build(scratch)
            seal(scratch, inputs)
            scratch.chmod(0o755)
            os.replace(scratch, folder)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise


def _named(folder: Path) -> str:
    return folder.name.removeprefix(BUILDING).partition("-")[0]
