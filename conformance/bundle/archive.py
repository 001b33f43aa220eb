"""Reads wheels and bundles without letting them write outside a folder; packs reproducibly."""

import hashlib
import lzma
import shutil
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from conformance.bundle.errors import UnsafeArchive

MAX_BYTES = 4 << 30  # unpacked; FlashInfer's wheels are about 450 MB
_EPOCH = 315532800  # 1980-01-01, the oldest time every archive format can hold


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_below(folder: Path) -> Iterator[PurePosixPath]:
    """Relative names of all regular files below a folder, sorted."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield PurePosixPath(path.relative_to(folder).as_posix())


def unpack_wheel(wheel: Path, dest: Path, keep: Callable[[str], bool] = lambda name: True) -> None:
    """Unpack a wheel's files (those `keep` wants) below `dest`.

    Raises UnsafeArchive before anything is written when any name in the wheel leads outside.
    """
    try:
        archive = zipfile.ZipFile(wheel)
    except zipfile.BadZipFile as error:
        raise UnsafeArchive(f"{wheel.name}: not a wheel ({error}); fetch it again") from error
    with archive:
        members = [item for item in archive.infolist() if not item.is_dir()]
        for item in members:
            _check_name(wheel.name, item.filename)
            if stat.S_ISLNK(item.external_attr >> 16):
                raise UnsafeArchive(f"{wheel.name}: {item.filename!r} is a link; allowed: files")
        _check_size(wheel.name, sum(item.file_size for item in members))
        for item in members:
            if keep(item.filename):
                with archive.open(item) as source:
                    _write(dest / item.filename, source)


def unpack_tar(
    archive: Path | IO[bytes],
    dest: Path,
    keep: Callable[[str], bool] = lambda name: True,
    *,
    most: int = MAX_BYTES,
) -> None:
    """Unpack a .tar.xz below `dest` (what `keep` wants): regular files alone, `most` bytes in all.

    Raises UnsafeArchive before anything is written. A name that occurs twice is refused too: the
    second would replace the first unseen.
    """
    called = Path(archive if isinstance(archive, Path) else archive.name).name
    try:
        with tempfile.TemporaryFile() as plain:
            _decompress(called, archive, plain, most)
            with tarfile.open(fileobj=plain, mode="r:") as tar:
                members = tar.getmembers()
                for item in members:
                    _check_name(called, item.name)
                    if not item.isfile():
                        raise UnsafeArchive(
                            f"{called}: found {item.name!r}, which is no file; allowed: files; to "
                            "fix: do not use this archive"
                        )
                if len({item.name for item in members}) != len(members):
                    raise UnsafeArchive(
                        f"{called}: found one name twice; allowed: each file once; to fix: do not "
                        "use this archive"
                    )
                for item in members:
                    source = tar.extractfile(item)
                    assert source is not None  # it is a regular file
                    if keep(item.name):
                        _write(dest / item.name, source)
    except (tarfile.TarError, EOFError, lzma.LZMAError) as error:
        raise UnsafeArchive(
            f"{called}: found not a whole .tar.xz ({error}); allowed: a whole one; to fix: copy or "
            "build it again"
        ) from error


def _decompress(called: str, archive: Path | IO[bytes], plain: IO[bytes], most: int) -> None:
    """Write the whole of it, to its last check sum: tarfile alone stops where the members end."""
    size = 0
    with lzma.open(archive) as packed:
        while block := packed.read(1 << 20):
            size += len(block)
            _check_size(called, size, most)
            plain.write(block)
    plain.seek(0)


def pack_tar(folder: Path, archive: Path) -> None:
    """Pack a folder's files as .tar.xz; the same files give the same bytes."""
    partial = archive.with_name(archive.name + ".partial")
    with (
        lzma.open(partial, "wb", preset=9 | lzma.PRESET_EXTREME) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name in files_below(folder):
            item = tarfile.TarInfo(str(name))
            item.size = (folder / name).stat().st_size
            item.mtime = _EPOCH
            item.mode = 0o644
            with (folder / name).open("rb") as source:
                tar.addfile(item, source)
    partial.replace(archive)


def _check_name(archive: str, name: str) -> None:
    path = PurePosixPath(name)
    inside = name and not path.is_absolute() and ".." not in path.parts
    if not inside or "\\" in name or "\0" in name or ":" in path.parts[0]:
        raise UnsafeArchive(
            f"{archive}: found entry {name!r}, which leads outside the folder; allowed: relative "
            "names without '..'; to fix: do not use this archive"
        )


def _check_size(archive: str, size: int, most: int = MAX_BYTES) -> None:
    if size > most:
        raise UnsafeArchive(
            f"{archive}: found {size} bytes or more in it; allowed: {most}; to fix: do not use "
            "this archive"
        )


def _write(path: Path, source: IO[bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as out:
        shutil.copyfileobj(source, out)
