"""A bundle holds what was asked for, tells it truly, and cannot write outside its folder."""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from conformance.bundle import archive, build, fetch, manifest, modules, toolkit, trim, unpack
from conformance.bundle.cli import bundle_command
from conformance.bundle.errors import (
    CompileError,
    FetchError,
    ManifestError,
    ToolMissing,
    UnsafeArchive,
    VersionError,
)
from conformance.cache import Cache

ROOT = Path(__file__).parents[3]
VERSION = "9.8.7"
INFO = f"flashinfer_python-{VERSION}.dist-info"

# A FlashInfer in miniature: what the bundle needs of it, and files it must leave behind.
GENERATOR = """
import os, pathlib

AOT = pathlib.Path(__file__).parents[2] / "data/aot"
WORK = pathlib.Path(os.environ["FLASHINFER_WORKSPACE_BASE"])


class Spec:
    def __init__(self, name):
        self.name = name
        self.jit_library_path = WORK / name / f"{name}.so"

    def build(self, verbose):
        self.jit_library_path.parent.mkdir(parents=True)
        self.jit_library_path.write_bytes(self.name.encode())

    def get_library_path(self):
        prebuilt = AOT / self.name / f"{self.name}.so"
        return prebuilt if prebuilt.exists() else self.jit_library_path


def gen_batch_mla_module(backend, q, kv, out, index, ckv, kpe, profiler):
    kinds = [str(kind).removeprefix("torch.") for kind in (kv, out)]
    return Spec(f"mla_{backend}_{'_'.join(kinds)}_{ckv}_{kpe}")
"""
FLASHINFER = {
    "flashinfer/__init__.py": "from .norm import rms\n",
    "flashinfer/norm.py": "def rms():\n    from .lazy import other\n",
    "flashinfer/lazy.py": "other = 1\n",
    "flashinfer/unused.py": "import nothing_like_it\n",
    "flashinfer/py.typed": "",
    "flashinfer/utils.py": "def f():\n    from . import deep\n",
    "flashinfer/deep.py": "",
    "flashinfer/types.py": "",
    "flashinfer/dsl.py": "",
    "flashinfer/mla/__init__.py": (
        "from typing import TYPE_CHECKING\n"
        "from ..utils import f\n"
        "from ..jit.attention import gen_batch_mla_module\n"
        "if TYPE_CHECKING:\n    from .. import types\n"
        "try:\n    import cutlass_is_not_here\n    from flashinfer import dsl\n"
        "except ImportError:\n    pass\n"
    ),
    "flashinfer/mla/_backends/fa.py": "",
    "flashinfer/jit/__init__.py": "",
    "flashinfer/jit/attention/__init__.py": GENERATOR,
    "flashinfer/data/csrc/batch_mla_sm90_run.cu": "// kernel",
    "flashinfer/data/csrc/other.cu": "// no",
    "flashinfer/data/include/flashinfer/attention/mla_hopper.cuh": "// header",
    "flashinfer/data/include/flashinfer/attention/decode.cuh": "// no",
    f"{INFO}/METADATA": f"Metadata-Version: 2.1\nName: flashinfer-python\nVersion: {VERSION}\n",
    f"{INFO}/RECORD": "",
    f"{INFO}/licenses/LICENSE": "The license of FlashInfer.",
}
# Importing the real one takes seconds, several times per test.
TORCH = "".join(
    f"{name} = 'torch.{name}'\n" for name in ("bfloat16", "float16", "float8_e4m3fn", "int32")
)
HEADER = "flashinfer/data/include/flashinfer/attention/mla_hopper.cuh"


def make_wheel(path: Path, files: Mapping[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as out:
        for name, text in files.items():
            out.writestr(name, text)


def keep_wheel(
    cache: Cache,
    name: str,
    version: str,
    tag: str | None,
    file: str,
    files: Mapping[str, str],
) -> None:
    """Make this the wheel that the cache holds, in place of the one it held."""
    for _ in range(2):
        entry = cache.entry(
            fetch.KIND,
            fetch.inputs(name, version, tag),
            lambda folder: make_wheel(folder / file, files),
        )
        with zipfile.ZipFile(entry / file) as held:
            if {name: held.read(name).decode() for name in held.namelist()} == {**files}:
                return
        (entry / file).unlink()


def keep_flashinfer(cache: Cache, files: Mapping[str, str]) -> None:
    name = f"flashinfer_python-{VERSION}-py3-none-any.whl"
    keep_wheel(cache, "flashinfer-python", VERSION, None, name, files)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """A cache that already holds wheels in miniature, on a machine with a stand-in toolkit."""
    cache = Cache(tmp_path / "cache")
    keep_flashinfer(cache, FLASHINFER)
    for name in ("apache-tvm-ffi", *build.SMALL, *build.SUITE):
        stem = name.replace("-", "_")
        files = {f"{stem}/__init__.py": "", f"{stem}-1.0.dist-info/METADATA": "Name: x"}
        if name == "apache-tvm-ffi":
            files |= {"tvm_ffi/core.so": "binary", "tvm_ffi/include/tvm/ffi/object.h": "// no"}
        keep_wheel(cache, name, "1.0", "cp312", f"{stem}-1.0-py3-none-any.whl", files)
    (tmp_path / "stand-ins").mkdir()
    (tmp_path / "stand-ins/torch.py").write_text(TORCH)
    child_env = modules.child_env

    def with_stand_ins(package: Path, workspace: Path) -> dict[str, str]:
        env = child_env(package, workspace)
        return {**env, "PYTHONPATH": f"{env['PYTHONPATH']}:{tmp_path / 'stand-ins'}"}

    monkeypatch.setattr(modules, "child_env", with_stand_ins)
    kit = toolkit.Toolkit(Path("/nowhere/cuda"), "13.0", "V13.0.88", "c++ 12")
    monkeypatch.setattr(build, "find_toolkit", lambda: kit)
    monkeypatch.setattr(build, "_installed", lambda name: "1.0")
    monkeypatch.setattr(modules, "tvm_ffi_version", lambda: "1.0")
    monkeypatch.setattr(modules, "_stub_driver", lambda scratch: scratch)
    monkeypatch.setattr(modules, "_sources", lambda build_dir, package: {HEADER})
    return cache


@pytest.fixture
def bundle(cache: Cache, tmp_path: Path) -> Path:
    return build.build(VERSION, tmp_path / "bundles", cache=cache)


def test_bundle_holds_what_the_mla_path_needs_and_no_more(bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "there"
    found = unpack.unpack(bundle, folder)
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
    assert "cp312/tvm_ffi/core.so" in names
    assert "cp312/tvm_ffi/include/tvm/ffi/object.h" not in names
    assert "The license of FlashInfer." in (folder / "NOTICE").read_text()


def test_manifest_tells_the_modules_and_no_machine_path(bundle: Path, tmp_path: Path) -> None:
    found = unpack.unpack(bundle, tmp_path / "there")
    keys = ("kv_dtype", "head_dim_kpe", "out_dtype")
    variants = [tuple(module[key] for key in keys) for module in found.modules]
    assert variants == [tuple(variant) for variant in modules.VARIANTS]
    assert (found.flashinfer, found.python_tag, found.cuda) == (VERSION, "cp312", "13.0")
    assert found.needs == ["libcudart.so.13", "libcuda.so.1"]
    text = (tmp_path / "there" / manifest.NAME).read_text()
    for path in (str(tmp_path), str(ROOT), "/nowhere", str(Path.home()), sys.prefix):
        assert path not in text, f"the manifest tells {path}"
    assert json.loads(text)["schema"] == manifest.SCHEMA


def test_equal_inputs_give_equal_bytes(bundle: Path, cache: Cache, tmp_path: Path) -> None:
    again = build.build(VERSION, tmp_path / "again", cache=cache)
    assert archive.sha256(again) == archive.sha256(bundle)


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
        build.build(VERSION, tmp_path / "out", cache=cache)
    assert tasks.count("build") == 1, tasks
    other = toolkit.Toolkit(Path("/nowhere/cuda"), "13.1", "V13.1.1", "c++ 12")
    monkeypatch.setattr(build, "find_toolkit", lambda: other)
    build.build(VERSION, tmp_path / "out", cache=cache)
    assert tasks.count("build") == 2, tasks


def test_the_suite_s_packages_come_along_on_request(cache: Cache, tmp_path: Path) -> None:
    path = build.build(VERSION, tmp_path / "out", cache=cache, with_suite=True)
    names = unpack.unpack(path, tmp_path / "there").files
    assert "cp312/pytest/__init__.py" in names and "cp312/platformdirs/__init__.py" in names


def test_a_module_that_would_not_be_found_fails_the_build(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules, "run_child", lambda *a, env: json.dumps([]))
    monkeypatch.setattr(modules, "build_modules", lambda *a: modules.Built((), (HEADER,)))
    placed = [{"library": "flashinfer/flashinfer/data/aot/x/x.so"}]
    monkeypatch.setattr(build, "_place_modules", lambda *a: placed)
    with pytest.raises(CompileError, match=r"x\.so"):
        build.build(VERSION, tmp_path / "out", cache=cache)
    assert not (tmp_path / "out").exists(), "nothing is written by a build that fails"


def test_a_wheel_without_license_is_not_packed(cache: Cache, tmp_path: Path) -> None:
    bare = {name: text for name, text in FLASHINFER.items() if "LICENSE" not in name}
    keep_flashinfer(cache, bare)
    with pytest.raises(CompileError, match="license"):
        build.build(VERSION, tmp_path / "out", cache=cache)


def test_an_absent_python_package_is_told_with_the_remedy(cache: Cache, tmp_path: Path) -> None:
    broken = {**FLASHINFER, "flashinfer/norm.py": "import a_package_that_is_not_here\n"}
    keep_flashinfer(cache, broken)
    with pytest.raises(ToolMissing, match=r"a_package_that_is_not_here.*pip install"):
        build.build(VERSION, tmp_path / "out", cache=cache)


def test_the_unpacker_prints_a_line_that_works(bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    command = [sys.executable, "-m", "conformance.bundle.unpack", str(bundle), str(folder)]
    env = {**os.environ, "PYTHONPATH": "", "FLASHINFER_WORKSPACE_BASE": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    use = f"{done.stdout.strip()}\n'{sys.executable}' -c 'import flashinfer.mla as m; print(m)'"
    shown = subprocess.run(["sh", "-c", use], env=env, capture_output=True, text=True, check=False)
    assert str(folder / "flashinfer/flashinfer/mla") in shown.stdout, shown


def test_the_unpacker_needs_the_standard_library_alone() -> None:
    code = "import conformance.bundle.unpack, sys; print(sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"expected to import without site-packages: {done.stderr}"


@pytest.mark.parametrize("change", ["changed", "missing", "not in the manifest"])
def test_a_changed_bundle_is_refused(bundle: Path, tmp_path: Path, change: str) -> None:
    folder = tmp_path / "there"
    unpack.unpack(bundle, folder)
    victim = folder / "flashinfer/flashinfer/norm.py"
    if change == "changed":
        victim.write_text("other = 2\n")
    elif change == "missing":
        victim.unlink()
    else:
        (folder / "flashinfer/sitecustomize.py").touch()
    archive.pack_tar(folder, tmp_path / "changed.tar.gz")
    with pytest.raises(ManifestError, match=change):
        unpack.unpack(tmp_path / "changed.tar.gz", tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists(), "nothing is left of a refused bundle"


def test_a_truncated_bundle_is_refused(bundle: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.tar.gz"
    short.write_bytes(bundle.read_bytes()[:-200])
    with pytest.raises(UnsafeArchive, match="again"):
        unpack.unpack(short, tmp_path / "there")


def test_another_schema_is_refused(bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "there"
    unpack.unpack(bundle, folder)
    record = json.loads((folder / manifest.NAME).read_text())
    (folder / manifest.NAME).write_text(json.dumps({**record, "schema": "smla-bundle/2"}))
    with pytest.raises(ManifestError, match="smla-bundle/2"):
        manifest.read(folder)


def test_a_folder_in_use_is_not_touched(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there/mine").touch()
    with pytest.raises(ManifestError, match="not empty"):
        unpack.unpack(bundle, tmp_path / "there")
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["mine"]


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
