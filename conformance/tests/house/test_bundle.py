"""A bundle holds what was asked for and tells it truly; one that cannot be made is told."""

import ast
import json
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from conformance.bundle import (
    archive,
    build,
    fetch,
    host,
    layout,
    manifest,
    modules,
    packages,
    pyz,
    start,
    toolkit,
    trim,
)
from conformance.bundle.cli import bundle_command
from conformance.bundle.errors import (
    CompileError,
    FetchError,
    TooLarge,
    ToolMissing,
    VersionError,
)
from conformance.cache import Cache
from conformance.core import environment
from conformance.tests.house.small_bundle import (
    FLASHINFER,
    HEADER,
    INFO,
    TAG,
    VERSION,
    keep_flashinfer,
    stand_in,
)

ROOT = Path(__file__).parents[3]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """Wheels in miniature; of the suite one room alone, which is packed sooner."""
    monkeypatch.setattr(build, "ROOMS", ("golden",))
    return stand_in(tmp_path, monkeypatch)


@pytest.fixture
def bundle(cache: Cache, tmp_path: Path) -> Path:
    return build.build(VERSION, tmp_path / "bundles", TAG, cache=cache)


def unpacked(bundle: Path, folder: Path) -> manifest.Manifest:
    """The bundle's manifest; its files, all of them checked, are laid out below the folder."""
    told = start.read_manifest(bundle)
    with zipfile.ZipFile(bundle) as whole, whole.open(layout.PAYLOAD) as payload:
        archive.unpack_tar(payload, folder)
    manifest.verify(folder, told)
    return told


def test_bundle_holds_what_the_mla_path_needs_and_no_more(bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "there"
    found = unpacked(bundle, folder)
    names = set(found.files)
    for name in (
        *("__init__.py", "norm.py", "utils.py", "deep.py", "dsl.py", "py.typed"),
        *("mla/__init__.py", "mla/_backends/fa.py", "jit/attention/__init__.py"),
        *("data/csrc/batch_mla_sm90_run.cu", HEADER.removeprefix("flashinfer/")),
        *(f"data/aot/{uri}/{uri}.so" for uri in [module["uri"] for module in found.modules]),
    ):
        assert f"flashinfer/flashinfer/{name}" in names, f"{name} is missing"
    for name in ("unused.py", "lazy.py", "types.py", "data/csrc/other.cu"):
        assert f"flashinfer/flashinfer/{name}" not in names, f"{name} is not needed"
    assert f"flashinfer/{INFO}/METADATA" in names, "importlib.metadata must find the version"
    assert f"flashinfer/{INFO}/RECORD" not in names, "RECORD lists files that are not there"
    tvm_ffi = {
        n.removeprefix("packages/apache-tvm-ffi/tvm_ffi/") for n in names if "/tvm_ffi/" in n
    }
    headers = {"include/tvm/ffi/object.h", "3rdparty/dlpack/include/dlpack.h"}
    assert tvm_ffi == {"core.so", *headers}, "what loads modules, and what they are compiled with"
    assert "bin/ninja" in names and found.programs == ["bin/ninja"]
    notice = (folder / "NOTICE").read_text()
    assert "The license of FlashInfer." in notice and "pytest-1.0-py3-none-any.whl" in notice
    assert (folder / "suite/LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_every_file_of_a_room_is_in_it(bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "there"
    unpacked(bundle, folder)
    for name in environment.files(ROOT, ["golden"]):
        assert (folder / "suite" / name).read_bytes() == (ROOT / name).read_bytes(), name
    for left_out in environment.LEFT_OUT:
        assert (ROOT / left_out).is_dir(), "where it lies, so that it can be left out"
        assert not (folder / "suite" / left_out).exists()
        assert all(left_out not in n.parents for n in environment.files(ROOT, environment.ROOMS))
    assert set(build.ROOMS) == {"golden"}, "the fixture's; all of them are in test_bundle_start"


def test_manifest_tells_the_modules_and_no_machine_path(bundle: Path, tmp_path: Path) -> None:
    found = start.read_manifest(bundle)
    keys = ("kv_dtype", "head_dim_kpe", "out_dtype")
    variants = [tuple(module[key] for key in keys) for module in found.modules]
    assert variants == [tuple(variant) for variant in modules.VARIANTS]
    # What smla loads: of an FP8 cache FP16 outputs under one scale, BF16 under group scales.
    for kpe in (0, 64):
        for loaded in (
            ("bfloat16",) * 2,
            ("float8_e4m3fn", "float16"),
            ("float8_e4m3fn", "bfloat16"),
        ):
            assert (loaded[0], kpe, loaded[1]) in variants
    assert (found.flashinfer, found.python_tag, found.cuda) == (VERSION, TAG, "13.0")
    assert found.needs == ["libcudart.so.13", "libcuda.so.1"]
    assert found.suite["commit"] == environment.commit()
    (wheel,) = [w for w in found.wheels if w["name"].startswith("flashinfer_python-")]
    assert found.wheel == wheel["sha256"]
    text = manifest.text_of(found)
    for path in (str(tmp_path), str(ROOT), "/nowhere", str(Path.home()), sys.prefix):
        assert path not in text, f"the manifest tells {path}"
    assert json.loads(text)["schema"] == manifest.SCHEMA


def test_a_package_s_least_version_is_the_most_that_anything_asks_for(bundle: Path) -> None:
    least = {package.name: package.least for package in start.read_manifest(bundle).packages}
    assert least["urllib3"] == "0.5", "the carried requests asks for it"
    assert least["pytest"] == "8", "pyproject.toml asks for it"
    assert least["mdurl"] == "0", "nothing asks for any"


def test_the_compiled_against_package_alone_replaces_the_host_s(bundle: Path) -> None:
    packages_ = start.read_manifest(bundle).packages
    assert [package.name for package in packages_ if package.always] == ["apache-tvm-ffi"]


def third_party(room: str) -> set[str]:
    """Top-level modules of others that a room imports, outside of tests."""
    found: set[str] = set()
    for path in (ROOT / room).rglob("*.py"):
        if "tests" in path.parts and "requirements" not in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found.add((node.module or "").partition(".")[0])
    return found - sys.stdlib_module_names - {"conformance", "fuzz", "golden", "smla", "examples"}


@pytest.mark.parametrize("room", ["conformance", "fuzz", "golden", "smla", "examples"])
def test_what_the_suite_imports_is_carried_or_the_host_s(room: str) -> None:
    of_modules = {"tvm_ffi": "apache-tvm-ffi", "pynvml": "nvidia-ml-py"}
    carried = {of_modules.get(name, name.replace("_", "-")) for name in third_party(room)}
    # The bundle's own; the host's; never asked for: a fuzzer's database.
    optional = {"flashinfer", "cuda", "redis"}
    absent = carried - {*packages.ALL, *host.NEEDED} - optional
    assert not absent, f"{room} imports {sorted(absent)}, which no GPU host need have"


def test_equal_inputs_give_equal_bytes(bundle: Path, cache: Cache, tmp_path: Path) -> None:
    again = build.build(VERSION, tmp_path / "again", TAG, cache=cache)
    assert archive.sha256(again) == archive.sha256(bundle)


def test_a_wheel_file_gives_what_the_index_s_gives(
    bundle: Path, cache: Cache, tmp_path: Path
) -> None:
    version = fetch.wheel("flashinfer-python", VERSION, cache)
    wheel = tmp_path / "mine" / version.name
    wheel.parent.mkdir()
    wheel.write_bytes(version.read_bytes())
    mine = build.build(str(wheel), tmp_path / "again", TAG, cache=cache)
    assert mine.name == bundle.name
    assert archive.sha256(mine) == archive.sha256(bundle)


@pytest.mark.parametrize("name", ["mine.whl", "torch-2.8.0-py3-none-any.whl"])
def test_a_file_that_is_no_wheel_of_flashinfer_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    with pytest.raises(VersionError, match="allowed"):
        build.build(str(tmp_path / name), tmp_path / "out")
    with pytest.raises(VersionError, match="no such file"):
        build.build("flashinfer_python-0.7.4-py3-none-any.whl", tmp_path / "out")


def test_one_that_is_too_large_is_not_made_and_its_parts_are_told(
    bundle: Path, cache: Cache, tmp_path: Path
) -> None:
    before = bundle.read_bytes()
    with pytest.raises(TooLarge, match=r"allowed: 0\.01 MB.*suite/golden \d.*to fix") as caught:
        build.build(VERSION, bundle.parent, TAG, cache=cache, most=10_000)
    assert bundle.name in str(caught.value)
    assert [path.name for path in bundle.parent.iterdir()] == [bundle.name]
    assert bundle.read_bytes() == before, "the one that was there stays"
    assert pyz.MOST_BYTES == 10_000_000


def test_built_modules_are_reused_and_rebuilt_for_another_compiler(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: list[str] = []
    run_child = modules.run_child

    def counted(task: str, *arguments: str, env: dict[str, str]) -> str:
        tasks.append(task)
        return run_child(task, *arguments, env=env)

    monkeypatch.setattr(modules, "run_child", counted)
    for _ in range(2):
        build.build(VERSION, tmp_path / "out", TAG, cache=cache)
    assert tasks.count("build") == 1, tasks
    other = toolkit.Toolkit(Path("/nowhere/cuda"), "13.1", "V13.1.1", "c++ 12")
    monkeypatch.setattr(build, "find_toolkit", lambda: other)
    build.build(VERSION, tmp_path / "out", TAG, cache=cache)
    assert tasks.count("build") == 2, tasks


def test_a_module_that_would_not_be_found_fails_the_build(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules, "run_child", lambda *a, env: json.dumps([]))
    monkeypatch.setattr(modules, "build_modules", lambda *a: modules.Built((), (HEADER,)))
    placed = [{"library": "flashinfer/flashinfer/data/aot/x/x.so"}]
    monkeypatch.setattr(build, "_place_modules", lambda *a: placed)
    with pytest.raises(CompileError, match=r"x\.so"):
        build.build(VERSION, tmp_path / "out", TAG, cache=cache)
    assert not (tmp_path / "out").exists(), "nothing is written by a build that fails"


def test_a_wheel_without_license_is_not_packed(cache: Cache, tmp_path: Path) -> None:
    bare = {name: text for name, text in FLASHINFER.items() if "LICENSE" not in name}
    keep_flashinfer(cache, bare)
    with pytest.raises(CompileError, match="license"):
        build.build(VERSION, tmp_path / "out", TAG, cache=cache)


def test_an_absent_python_package_is_told_with_the_remedy(cache: Cache, tmp_path: Path) -> None:
    broken = {**FLASHINFER, "flashinfer/norm.py": "import a_package_that_is_not_here\n"}
    keep_flashinfer(cache, broken)
    with pytest.raises(ToolMissing, match=r"a_package_that_is_not_here.*pip install"):
        build.build(VERSION, tmp_path / "out", TAG, cache=cache)


@pytest.mark.parametrize("version", ["latest", "--help", "0.7.2/../x", ""])
def test_what_is_no_version_is_refused(version: str, tmp_path: Path) -> None:
    with pytest.raises(VersionError, match="allowed"):
        build.build(version, tmp_path)


@pytest.mark.parametrize("tag", ["cp310", "py3", "3.12", "cp312; rm"])
def test_what_is_no_python_tag_is_refused(tag: str, tmp_path: Path) -> None:
    with pytest.raises(VersionError, match="cp312"):
        build.build(VERSION, tmp_path, tag)


def test_what_the_index_does_not_have_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(FetchError, match=r"flashinfer-python==0\.0\.1"):
        fetch.wheel("flashinfer-python", "0.0.1", Cache(tmp_path / "cache"))


def test_the_command_ends_with_3_when_there_is_no_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolkit, "cuda_home", lambda: None)
    result = CliRunner().invoke(bundle_command, [VERSION, "--out", str(tmp_path)])
    assert result.exit_code == 3, f"expected 3, got {result.exit_code}: {result.output}"
    assert "CUDA_HOME" in result.output, result.output


def test_a_wheel_without_mla_is_refused(tmp_path: Path) -> None:
    (tmp_path / "flashinfer").mkdir()
    with pytest.raises(CompileError, match=r"flashinfer\.mla"):
        trim.python_files(tmp_path)


def test_ninja_s_record_gives_the_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = tmp_path / HEADER
    header.parent.mkdir(parents=True)
    header.touch()
    told = f"a.o: #deps 2, deps mtime 1 (VALID)\n    {header}\n    /usr/include/stdio.h\n\n"
    answer = SimpleNamespace(stdout=told)
    monkeypatch.setattr(modules, "ninja", lambda: "ninja")
    monkeypatch.setattr(modules.subprocess, "run", lambda *a, **k: answer)
    assert modules._sources(tmp_path, tmp_path) == {HEADER}
