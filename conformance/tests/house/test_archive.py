"""Neither a wheel nor a bundle can write outside the folder it is unpacked into."""

import tarfile
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from conformance.bundle import archive
from conformance.bundle.errors import UnsafeArchive


def make_wheel(path: Path, names: list[str]) -> Path:
    with zipfile.ZipFile(path, "w") as out:
        for name in names:
            out.writestr(name, "x")
    return path


def make_tar(path: Path, entries: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    with tarfile.open(path, "w:xz") as out:
        for item, data in entries:
            item.size = len(data)
            out.addfile(item, BytesIO(data))
    return path


BAD_NAMES = ["../out", "/etc/out", "a/../../out", "a\\..\\out", "C:/out", ".."]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_wheel_cannot_write_outside_its_folder(tmp_path: Path, name: str) -> None:
    wheel = make_wheel(tmp_path / "bad-1.0-py3-none-any.whl", ["good.py", name])
    with pytest.raises(UnsafeArchive, match="outside"):
        archive.unpack_wheel(wheel, tmp_path / "dest")
    assert not (tmp_path / "dest").exists(), "nothing is written before every name is checked"


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bundle_cannot_write_outside_its_folder(tmp_path: Path, name: str) -> None:
    items = [(tarfile.TarInfo("good.py"), b""), (tarfile.TarInfo(name), b"x")]
    bad = make_tar(tmp_path / "bad.tar.xz", items)
    with pytest.raises(UnsafeArchive, match="outside"):
        archive.unpack_tar(bad, tmp_path / "dest")
    assert not (tmp_path / "dest").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_a_bundle_holds_files_alone(tmp_path: Path, kind: bytes) -> None:
    item = tarfile.TarInfo("link")
    item.type, item.linkname = kind, "/etc/passwd"
    bad = make_tar(tmp_path / "bad.tar.xz", [(item, b"")])
    with pytest.raises(UnsafeArchive, match="link"):
        archive.unpack_tar(bad, tmp_path / "dest")


def test_a_link_in_a_wheel_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "bad-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as out:
        item = zipfile.ZipInfo("link")
        item.external_attr = 0o120777 << 16
        out.writestr(item, "/etc/passwd")
    with pytest.raises(UnsafeArchive, match="link"):
        archive.unpack_wheel(wheel, tmp_path / "dest")


def test_one_name_twice_is_refused(tmp_path: Path) -> None:
    items = [(tarfile.TarInfo("a.py"), b"1"), (tarfile.TarInfo("a.py"), b"2")]
    bad = make_tar(tmp_path / "bad.tar.xz", items)
    with pytest.raises(UnsafeArchive, match="twice"):
        archive.unpack_tar(bad, tmp_path / "dest")


def test_what_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    big = make_tar(tmp_path / "big.tar.xz", [(tarfile.TarInfo("zeros"), bytes(1 << 22))])
    with pytest.raises(UnsafeArchive, match=r"\d bytes or more in it; allowed: 1048576"):
        archive.unpack_tar(big, tmp_path / "dest", most=1 << 20)
    assert not (tmp_path / "dest").exists()


def test_what_is_no_wheel_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.whl").write_text("<html>not found</html>")
    with pytest.raises(UnsafeArchive, match="not a wheel"):
        archive.unpack_wheel(tmp_path / "x.whl", tmp_path / "dest")


def test_an_archive_cut_behind_its_last_file_is_refused(tmp_path: Path) -> None:
    whole = make_tar(tmp_path / "whole.tar.xz", [(tarfile.TarInfo("a.py"), b"1" * 5000)])
    whole.write_bytes(whole.read_bytes()[:-1])
    with pytest.raises(UnsafeArchive, match="not a whole"):
        archive.unpack_tar(whole, tmp_path / "dest")
    assert not (tmp_path / "dest").exists()
