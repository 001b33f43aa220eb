"""Loading vLLM's files: from where, with what for the rest, and without a trace afterwards."""

import importlib
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from conformance.core.request import SuiteError
from conformance.core.worker import load_subject
from conformance.subjects import resolver
from conformance.subjects.vllm import source
from conformance.subjects.vllm.loader import Loaded
from conformance.subjects.vllm.source import BACKEND, cut, read

PACKAGE = {
    BACKEND: (
        "import inspect\n"
        "from vllm.elsewhere import Base, helper, known\n"
        "from vllm.utils.math_utils import two\n"
        "import vllm.envs as envs\n"
        "@helper\n"
        "@helper.register('x', option=1)\n"
        "class Backend(Base[int]):\n"
        "    kind: helper | None = None\n"
        "    def late(self):\n"
        "        from vllm.late import value\n"
        "        return value\n"
        "def text():\n"
        "    return inspect.getsource(text)\n"
        "flag, number = bool(envs.ANYTHING), two\n"
    ),
    "vllm/utils/math_utils.py": "two = 2\n",
    "vllm/secret.py": "raise RuntimeError('nothing asks for this file')\n",
    "vllm-9.8.7.dist-info/METADATA": "Name: vllm\n",
}
NAME = BACKEND.removesuffix(".py").replace("/", ".")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "unpacked"
    for name, text in PACKAGE.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def archive(path: Path, files: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as made:
        for name, text in files.items():
            made.writestr(name, text)
    return path


def test_a_folder_a_wheel_and_a_cut_give_the_same(folder: Path, tmp_path: Path) -> None:
    unpacked = read(str(folder))
    wheel = read(str(archive(tmp_path / "vllm-9.8.7-cp38-abi3-any.whl", PACKAGE)))
    small = read(str(cut(wheel, tmp_path / "any-name.zip")))
    assert {unpacked.version, wheel.version, small.version} == {"9.8.7"}
    assert unpacked.files == wheel.files == small.files
    assert set(small.files) == {BACKEND, "vllm/utils/math_utils.py"}, "only what is needed"
    once = (tmp_path / "any-name.zip").read_bytes()
    assert cut(unpacked, tmp_path / "again.zip").read_bytes() == once, "the same bytes each time"


def test_a_wheels_own_name_says_its_version(tmp_path: Path) -> None:
    files = {BACKEND: PACKAGE[BACKEND]}
    assert read(str(archive(tmp_path / "vllm-1.2.3-py3-none-any.whl", files))).version == "1.2.3"
    with pytest.raises(SuiteError, match="found no version"):
        read(str(archive(tmp_path / "some.zip", files)))


@pytest.mark.parametrize(
    "name", ["../vllm/x.py", "/etc/x.py", "vllm/../../x.py", "vllm\\x.py", "C:/x.py"]
)
def test_paths_that_leave_the_archive_are_refused(tmp_path: Path, name: str) -> None:
    path = archive(tmp_path / "vllm-9.8.7-x.whl", PACKAGE)
    with zipfile.ZipFile(path, "a") as made:
        info = zipfile.ZipInfo("x")
        info.filename = name
        made.writestr(info, "bad = 1\n")
    with pytest.raises(SuiteError, match="member"):
        read(str(path))


def test_links_that_leave_the_folder_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "outside.py").write_text("two = 3\n")
    target = folder / "vllm/utils/math_utils.py"
    target.unlink()
    target.symlink_to(tmp_path / "outside.py")
    with pytest.raises(SuiteError, match="leads out of the folder"):
        read(str(folder))


@pytest.mark.parametrize("made", ["nothing", "text", "without"])
def test_what_is_no_source_is_an_error_that_says_the_ways(tmp_path: Path, made: str) -> None:
    path = tmp_path / "vllm-9.8.7.whl"
    if made == "text":
        path.write_text("no archive")
    if made == "without":
        archive(path, {"vllm/__init__.py": ""})
    with pytest.raises(SuiteError) as problem:
        read(str(path))
    assert "found" in str(problem.value)
    assert "allowed" in str(problem.value)


def test_files_are_served_and_the_rest_stood_in_for(folder: Path) -> None:
    loaded = Loaded(read(str(folder)), {"vllm.late": {"value": 5}, "vllm.elsewhere": {"known": 3}})
    module = loaded.module(NAME)
    assert module.number == 2
    assert module.known == 3
    assert module.flag is False
    with loaded.active():
        assert module.Backend().late() == 5, "names imported at a call are of the same load"
        assert "def text():" in module.text(), "sources can be read again"
    assert module.Backend.__name__ == "Backend", "a stand-in decorates without a trace"


def test_nothing_is_left_behind_and_an_installed_vllm_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, below = ModuleType("vllm"), ModuleType("vllm.config")
    monkeypatch.setitem(sys.modules, "vllm", theirs)
    monkeypatch.setitem(sys.modules, "vllm.config", below)
    others = {"flashinfer": ModuleType("flashinfer"), "flashinfer.mla": ModuleType("mla")}
    before, finders = dict(sys.modules), list(sys.meta_path)
    loaded = Loaded(read(str(folder)), {})
    with loaded.active(others):
        assert importlib.import_module("vllm") is not theirs
        assert importlib.import_module("flashinfer.mla") is others["flashinfer.mla"]
        with loaded.active():
            module = importlib.import_module(NAME)
    assert sys.modules == before
    assert sys.meta_path == finders
    with pytest.raises(RuntimeError, match="an error inside"), loaded.active():
        raise RuntimeError("an error inside")
    assert sys.modules == before
    assert loaded.module(NAME) is module, "a load keeps its modules"
    assert Loaded(read(str(folder)), {}).module(NAME) is not module


def test_names_of_a_command_line_become_factories(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert resolver("smla") is None
    assert resolver("my_vllm.module:factory") is None
    named = resolver("vllm@x")
    assert named is not None
    monkeypatch.chdir(folder.parent)
    assert named("vllm@unpacked") == f"conformance.subjects.vllm:subject@{folder.resolve()}"
    fetched = cut(read(str(folder)), tmp_path / "fetched.zip")
    monkeypatch.setattr(source, "fetched", lambda version: fetched if version == "9.8.7" else None)
    assert named("vllm==9.8.7") == f"conformance.subjects.vllm:subject@{fetched}"
    subject = load_subject(named("vllm@unpacked"))
    assert (subject.name, getattr(subject, "version", "")) == ("vllm", "9.8.7")
    assert getattr(subject, "spec", "") == f"vllm@{folder.resolve()}"


@pytest.mark.parametrize("name", ["vllm@", "vllm==", "vllm>=1", "vllm==1@x", "vllm==one"])
def test_other_words_are_an_error(name: str) -> None:
    named = resolver(name)
    assert named is not None
    with pytest.raises(SuiteError, match="allowed"):
        named(name)


def test_without_an_installed_vllm_the_ways_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "find_spec", lambda name: None)
    named = resolver("vllm")
    assert named is not None
    with pytest.raises(SuiteError, match=r"found no vllm.*vllm==VERSION.*vllm@PATH"):
        named("vllm")


def test_an_installed_vllm_is_read_where_it_lies(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Spec:
        submodule_search_locations = (str(folder / "vllm"),)

    monkeypatch.setattr(source, "find_spec", lambda name: Spec)
    assert read("").version == "9.8.7"
    assert read("").place == ""
