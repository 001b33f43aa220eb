"""A FlashInfer to compare is had whole and read-only, or refused with a clear text and no trace."""

import shutil
import zipfile
from pathlib import Path

import pytest

from conformance.bundle import fetch
from conformance.bundle.archive import sha256
from conformance.cache import Cache
from conformance.gate.errors import PackageError
from conformance.gate.package import KIND, resolve

FILES = {
    "flashinfer/__init__.py": "raise RuntimeError('imported')\n",
    "flashinfer/mla/__init__.py": "VALUE = 1\n",
    "flashinfer/data/include/flashinfer/attention/scheduler.cuh": "// a header\n",
    "flashinfer/data/csrc/batch_mla_sm90_plan.cu": "// kept\n",
    "flashinfer/data/csrc/gemm.cu": "// left out\n",
    "flashinfer/data/spdlog/include/spdlog.h": "// left out\n",
    "flashinfer_python-9.1.0.dist-info/METADATA": "Name: flashinfer-python\nVersion: 9.1.0\n",
}


def wheel_of(folder: Path, files: dict[str, str] = FILES, name: str = "9.1.0") -> Path:
    path = folder / f"flashinfer_python-{name}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return path


def entries(cache: Cache) -> list[str]:
    kinds = [KIND, fetch.KIND]
    return [str(path) for kind in kinds for path in (cache.root / kind).glob("*")]


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def test_a_wheel_is_unpacked_without_being_run_and_without_other_kernels(
    tmp_path: Path, cache: Cache
) -> None:
    wheel = wheel_of(tmp_path)
    found = resolve(str(wheel), cache)
    assert (found.version, found.digest, found.trusted) == ("9.1.0", sha256(wheel), False)
    kept = {p.relative_to(found.folder).as_posix() for p in found.folder.rglob("*") if p.is_file()}
    left_out = {name for name in FILES if "left out" in FILES[name]}
    assert kept - {"entry.json"} == set(FILES) - left_out
    assert (found.data / "include").is_dir()
    assert resolve(str(wheel), cache) == found


def test_order_of_files_changes_the_digest_alone(tmp_path: Path, cache: Cache) -> None:
    (tmp_path / "turned").mkdir()
    one = resolve(str(wheel_of(tmp_path)), cache)
    turned = dict(reversed(FILES.items()))
    other = resolve(str(wheel_of(tmp_path / "turned", turned)), cache)
    assert one.digest != other.digest and one.version == other.version
    assert sorted(p.read_bytes() for p in one.folder.rglob("*.py")) == sorted(
        p.read_bytes() for p in other.folder.rglob("*.py")
    )


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("not a version", "no version and no file"),
        ("9.9.x", "no version and no file"),
        ("missing/flashinfer_python-9.1.0-py3-none-any.whl", "no such file"),
        ("", "no version and no file"),
    ],
)
def test_what_names_nothing_is_refused(cache: Cache, asked: str, told: str) -> None:
    with pytest.raises(PackageError, match=told) as caught:
        resolve(asked, cache)
    assert "allowed:" in str(caught.value) and "to fix:" in str(caught.value)
    assert not cache.root.exists()


def test_a_version_that_no_index_has_leaves_nothing(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # as without network: nothing is found
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(
        PackageError, match=r"9\.8\.7: not fetched .* check pip's index and network"
    ):
        resolve("9.8.7", cache)
    assert not entries(cache)


def damaged(folder: Path) -> Path:
    wheel = wheel_of(folder)
    content = bytearray(wheel.read_bytes())
    place = content.index(b"VALUE = 1")
    content[place] ^= 0xFF
    wheel.write_bytes(content)
    return wheel


def cut(folder: Path) -> Path:
    wheel = wheel_of(folder)
    wheel.write_bytes(wheel.read_bytes()[:-100])
    return wheel


def climbing(folder: Path) -> Path:
    return wheel_of(folder, FILES | {"flashinfer/../../outside.py": ""})


def other(folder: Path) -> Path:
    return wheel_of(folder, {"numpy/__init__.py": "", "numpy-2.0.dist-info/METADATA": ""})


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (damaged, "flashinfer/mla/__init__.py damaged"),
        (cut, "no whole wheel"),
        (climbing, "leads outside"),
        (other, "no flashinfer_python"),
    ],
)
def test_a_broken_or_wrong_wheel_is_refused_and_writes_nothing(
    tmp_path: Path, cache: Cache, make, told: str
) -> None:
    with pytest.raises(PackageError, match=told):
        resolve(str(make(tmp_path)), cache)
    assert not entries(cache)
    assert not (tmp_path / "outside.py").exists()


def test_a_version_wins_over_a_folder_of_its_name(
    tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "9.8.7").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fetch, "wheel", lambda *args: wheel_of(tmp_path, name="9.8.7"))
    assert resolve("9.8.7", cache).asked == "9.8.7"
    with pytest.raises(PackageError, match="--trust"):
        resolve("./9.8.7", cache)


def test_a_checkout_needs_trust_and_its_headers(tmp_path: Path, cache: Cache) -> None:
    root = tmp_path / "checkout"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "version.txt").write_text("9.2.0\n")
    with pytest.raises(PackageError, match="--trust"):
        resolve(str(root), cache)
    found = resolve(str(root), cache, trust=True)
    assert (found.version, found.folder, found.trusted) == ("9.2.0", root, True)
    (root / "flashinfer/mla/__init__.py").write_text("VALUE = 2\n")
    assert resolve(str(root), cache, trust=True).digest != found.digest
    shutil.rmtree(root / "flashinfer/data")
    with pytest.raises(PackageError, match="data/include"):
        resolve(str(root), cache, trust=True)
    with pytest.raises(PackageError, match="no flashinfer/mla"):
        resolve(str(tmp_path), cache, trust=True)
