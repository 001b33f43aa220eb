"""A bundle starts where nothing of the suite is, whole or not at all, and goes on as the command.

Each is run as a GPU host runs it: by its file, in an empty folder, without PYTHONPATH.
"""

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from conformance.bundle import archive, build, host, layout, manifest, pyz, start, toolkit
from conformance.bundle.errors import ManifestError, StartError
from conformance.bundle.manifest import Carried
from conformance.core import environment
from conformance.report.sources import read_sources
from conformance.tests.house.small_bundle import TAG, VERSION, stand_in

ROOT = Path(__file__).parents[3]
FIRST = ROOT / "conformance/bundle/first.py"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A bundle of the whole suite and a FlashInfer in miniature, for this Python."""
    folder = tmp_path_factory.mktemp("bundle")
    with pytest.MonkeyPatch.context() as patch:
        cache = stand_in(folder, patch)
        yield build.build(VERSION, folder / "out", TAG, cache=cache)


class Host:
    """A host with Python and what the suite needs of it; of the suite it has the one file."""

    def __init__(self, bundle: Path, folder: Path) -> None:
        self.folder, self.cache = folder, folder / "cache"
        self.bundle = folder / bundle.name
        self.cwd = folder / "elsewhere"
        self.cwd.mkdir(parents=True)
        shutil.copyfile(bundle, self.bundle)
        kept = ("PATH", "HOME", "LANG", "TMPDIR")
        self.env = {name: os.environ[name] for name in kept if name in os.environ}
        self.env["SMLA_CACHE_ROOT"] = str(self.cache)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, str(self.bundle), *arguments]

    def run(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments), cwd=self.cwd, env={**self.env, **more},
            capture_output=True, text=True, check=False, timeout=600,
        )  # fmt: skip

    def lay_out(self) -> None:
        """Start it up to the point where it would become the command."""
        code = (
            "import sys; sys.path.insert(0, sys.argv[1]); from conformance.bundle import start\n"
            "start.become = lambda *_: sys.exit(0)\n"
            "sys.exit(start.main(sys.argv[1], ['conformance', 'list']))"
        )
        done = subprocess.run(
            [sys.executable, "-I", "-c", code, str(self.bundle)], cwd=self.cwd, env=self.env,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    def refused(self, *arguments: str, **more: str) -> str:
        """What the refusal says; it ends with 3 and tells what was found, allowed and to do."""
        done = self.run(*arguments, **more)
        assert done.returncode == 3, f"expected 3, got {done.returncode}: {done.stderr}"
        for word in ("bundle: ", "found ", "allowed: ", "to fix: "):
            assert word in done.stderr, f"{word!r} is not in {done.stderr!r}"
        assert "Traceback" not in done.stderr, done.stderr
        return done.stderr

    @property
    def entries(self) -> list[Path]:
        """All that is in the cache's folder of bundles."""
        return sorted((self.cache / layout.KIND).glob("*"))

    @property
    def unpacked(self) -> Path:
        (folder,) = self.entries
        return folder


@pytest.fixture
def there(made: Path, tmp_path: Path) -> Host:
    return Host(made, tmp_path)


def test_without_arguments_it_says_what_it_is_and_writes_nothing(there: Host) -> None:
    for arguments in ([], ["--help"]):
        done = there.run(*arguments)
        assert done.returncode == 0, done.stderr
        for word in (VERSION, *start.COMMANDS, "--expect-sha256", "--jit"):
            assert word in done.stdout, f"{word!r} is not in {done.stdout!r}"
    assert not there.cache.exists()


def test_up_to_the_command_it_needs_the_standard_library_alone(there: Host) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(there.bundle)],
        cwd=there.cwd, env=there.env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and VERSION in done.stdout, done.stderr


def test_too_old_a_python_is_told_before_anything_else_is_read() -> None:
    tree = ast.parse(FIRST.read_text(), feature_version=(3, 6))
    check, ours = (
        next(n for n, node in enumerate(tree.body) if isinstance(node, kind))
        for kind in (ast.If, ast.ImportFrom)
    )
    assert check < ours, "expected the version's check before the first import of ours"
    old = f"import sys; sys.version_info = (3, 8); exec(open({str(FIRST)!r}).read())"
    done = subprocess.run([sys.executable, "-c", old], capture_output=True, text=True, check=False)
    assert done.returncode == 3 and "3.11 or newer" in done.stderr, done


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["nonsense"], "'nonsense'"),
        (["--nonsense", "doctor"], "'--nonsense'"),
        (["--expect-sha256"], "without a value"),
        (["--jit"], "no command"),
    ],
)
def test_what_it_is_asked_wrongly_is_told(there: Host, arguments: list[str], word: str) -> None:
    assert word in there.refused(*arguments)
    assert not there.cache.exists()


def test_the_wrong_hash_stops_it_before_anything_is_written(there: Host) -> None:
    right = archive.sha256(there.bundle)
    wrong = f"{int(right[0], 16) ^ 1:x}{right[1:]}"
    told = there.refused("--expect-sha256", wrong, "doctor")
    assert right in told and wrong in told, told
    assert not there.cache.exists(), list(there.cache.rglob("*"))
    assert not list(there.cwd.iterdir())


def test_the_right_hash_lets_it_start(there: Host) -> None:
    digest = archive.sha256(there.bundle).upper()
    done = there.run(f"--expect-sha256={digest}", "conformance", "list", "--count")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kept", [0.999, 0.5, 0.01])
def test_a_truncated_file_does_not_start(there: Host, kept: float) -> None:
    whole = there.bundle.read_bytes()
    there.bundle.write_bytes(whole[: int(len(whole) * kept)])
    done = there.run("doctor")
    assert done.returncode != 0, done.stdout
    assert not there.cache.exists(), list(there.cache.rglob("*"))


def test_a_changed_byte_in_the_payload_is_found(there: Host) -> None:
    whole = bytearray(there.bundle.read_bytes())
    whole[len(whole) // 2] ^= 1
    there.bundle.write_bytes(whole)
    there.refused("conformance", "list")
    assert there.entries == []


def test_a_payload_of_other_files_than_the_manifest_tells_is_found(there: Host) -> None:
    told = start.read_manifest(there.bundle)
    name = "suite/conformance/clean.py"
    changed = replace(told, files={**told.files, name: "0" * 64})
    rewritten(there.bundle, {manifest.NAME: manifest.text_of(changed)})
    assert f"{name} (changed)" in there.refused("conformance", "list")
    assert there.entries == []


def test_another_schema_is_refused(there: Host) -> None:
    told = replace(start.read_manifest(there.bundle), schema="smla-bundle/99")
    rewritten(there.bundle, {manifest.NAME: manifest.text_of(told)})
    assert "smla-bundle/99" in there.refused("doctor")


def rewritten(bundle: Path, changes: dict[str, str]) -> None:
    """Replace members of a bundle."""
    with zipfile.ZipFile(bundle) as old:
        members = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(bundle, "w") as new:
        for name, content in members.items():
            new.writestr(name, changes.get(name, content))


def test_another_python_is_told_what_to_do(there: Host) -> None:
    told = replace(start.read_manifest(there.bundle), python_tag="cp399")
    rewritten(there.bundle, {manifest.NAME: manifest.text_of(told)})
    said = there.refused("conformance", "list")
    assert "3.99" in said and f"--python {TAG}" in said, said
    assert not there.cache.exists()


def test_what_the_host_must_have_itself_is_told(there: Host) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(there.bundle), "conformance", "list"],
        cwd=there.cwd, env=there.env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 3, done
    assert "torch, triton, numpy" in done.stderr and "to fix" in done.stderr, done.stderr


@pytest.mark.parametrize("variable", [{"SMLA_CACH_ROOT": "x"}, {"SMLA_WORKERS": "many"}])
def test_wrong_settings_are_told(there: Host, variable: dict[str, str]) -> None:
    assert next(iter(variable)) in there.refused("doctor", **variable)


def test_a_cache_folder_of_somebody_else_is_left_alone(there: Host) -> None:
    there.cache.mkdir()
    (there.cache / "mine").touch()
    assert "SMLA_CACHE_ROOT" in there.refused("doctor")
    assert [path.name for path in there.cache.iterdir()] == ["mine"]


def test_the_second_start_unpacks_nothing(there: Host) -> None:
    there.lay_out()
    before = {path: path.stat().st_mtime_ns for path in there.unpacked.rglob("*")}
    there.lay_out()
    assert {path: path.stat().st_mtime_ns for path in there.unpacked.rglob("*")} == before


@pytest.mark.parametrize("damage", ["edited", "deleted", "added"])
def test_a_damaged_cache_folder_is_made_anew(there: Host, damage: str) -> None:
    there.lay_out()
    victim = there.unpacked / "suite/conformance/listing.py"
    whole = victim.read_bytes()
    if damage == "edited":
        victim.write_bytes(whole.replace(b"import", b"imp0rt", 1))
    elif damage == "deleted":
        victim.unlink()
    else:
        (there.unpacked / "suite/sitecustomize.py").write_text("raise SystemExit(9)")
    there.lay_out()
    assert victim.read_bytes() == whole
    assert not (there.unpacked / "suite/sitecustomize.py").exists()


_KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from conformance.bundle import archive, start
write, left = archive._write, [40]
def killed(path, source):
    write(path, source)
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
archive._write = killed
start.main(sys.argv[1], ["conformance", "list", "--count"])
"""


def test_a_killed_unpacking_leaves_nothing_that_is_used(there: Host) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED, str(there.bundle)], cwd=there.cwd, env=there.env,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed
    assert there.unpacked.name.startswith(".building-"), "half of it lies there"
    there.lay_out()
    assert not there.unpacked.name.startswith(".building-"), "and went with the next start"


def test_an_interrupted_unpacking_leaves_nothing(
    there: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv("SMLA_CACHE_ROOT", str(there.cache))
    monkeypatch.setattr(layout.manifest, "verify", interrupted)
    told = start.read_manifest(there.bundle)
    with pytest.raises(KeyboardInterrupt):
        layout.lay_out(there.bundle, archive.sha256(there.bundle), told)
    assert there.entries == []


def test_several_starts_at_once_share_one_unpacking(there: Host) -> None:
    with ThreadPoolExecutor(3) as pool:
        for started in [pool.submit(there.lay_out) for _ in range(3)]:
            started.result()
    assert (there.unpacked / manifest.NAME).is_file()


def test_doctor_says_what_the_host_has_and_which_bundle_this_is(there: Host) -> None:
    done = there.run("doctor", "--require", "hopper")
    told = start.read_manifest(there.bundle)
    assert done.returncode in (0, 2), done.stderr
    for word in ("FlashInfer", VERSION, told.wheel[:12]):
        assert word in done.stdout, f"{word!r} is not in {done.stdout!r}"


def test_a_checkout_in_the_current_folder_is_another_suite(there: Host) -> None:
    (there.cwd / "conformance").mkdir()
    (there.cwd / "conformance/__init__.py").write_text("raise SystemExit(9)")
    done = there.run("conformance", "list", "--count")
    assert done.returncode == 0, done.stderr


def test_the_suite_runs_from_it_and_its_records_are_the_checkout_s(
    there: Host, tmp_path: Path
) -> None:
    done = there.run("conformance", "run", "--tier", "twin", "--smoke", "-n", "0", "--report", "r")
    assert done.returncode == 0, done.stdout + done.stderr
    (source,) = read_sources([there.cwd / "r"])
    assert source.records and all(record.subject == "smla" for record in source.records)
    assert source.sources == environment.digest(ROOT), "one suite, in the bundle and here"
    assert (
        source.commit == environment.commit() == start.read_manifest(there.bundle).suite["commit"]
    )
    assert source.environment["flashinfer"] == VERSION


def test_its_commit_is_told_without_git_and_inside_of_other_checkouts(
    there: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    there.lay_out()
    monkeypatch.setattr(environment, "ROOT", there.unpacked / "suite")
    monkeypatch.setattr(environment, "_output", lambda *command: "0" * 40)
    assert environment.commit() == start.read_manifest(there.bundle).suite["commit"]
    assert environment.digest(environment.ROOT) == environment.digest(ROOT)
    monkeypatch.setattr(environment, "ROOT", ROOT)
    assert environment.commit() == "0" * 40, "a checkout asks git"


def test_every_file_of_the_suite_s_rooms_is_in_it(there: Host) -> None:
    told = set(start.read_manifest(there.bundle).files)
    rooms = ("conformance", "fuzz", "golden", "smla", "examples")
    absent = {f"suite/{name}" for name in environment.files(ROOT, rooms)} - told
    assert not absent, sorted(absent)[:5]
    assert not [name for name in told if "__pycache__" in name or "/." in name]


def test_the_fuzzer_starts_from_it(there: Host) -> None:
    done = there.run("fuzz", "run", "--help")
    assert done.returncode == 0 and "--minutes" in done.stdout, done.stderr


def test_exit_codes_are_the_command_s(there: Host) -> None:
    assert there.run("conformance", "nonsense").returncode == 3
    done = there.run("conformance", "run", "--tier", "hopper", "--smoke", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2, done.stdout + done.stderr


def test_the_command_takes_the_process_so_signals_reach_it(there: Host, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    note = tmp_path / "pid"
    (mine / "stranger.py").write_text(
        f"import os, pathlib, sys\npathlib.Path({str(note)!r}).write_text(str(os.getpid()))\n"
        "sys.exit(77)\n"
    )
    command = there.command("conformance", "run", "--subject", "stranger:factory")
    process = subprocess.Popen(
        command, cwd=there.cwd, env={**there.env, "PYTHONPATH": str(mine)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.wait(600) == 77, "the exit code of a module that ends the command's process"
    assert int(note.read_text()) == process.pid


def test_clean_deletes_it(there: Host) -> None:
    there.lay_out()
    done = there.run("conformance", "clean", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not there.cache.exists(), sorted(there.cache.rglob("*"))[:5]


@pytest.fixture
def told(made: Path) -> manifest.Manifest:
    return start.read_manifest(made)


def aot(folder: Path) -> set[str]:
    return {path.name for path in (folder / manifest.PREBUILT).glob("*")}


@pytest.mark.parametrize(("jit", "left"), [(None, 6), ("*_0", 3), ("*", 0)])
def test_jit_hides_the_modules_that_it_names(
    made: Path, told: manifest.Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    jit: str | None, left: int,
) -> None:  # fmt: skip
    monkeypatch.setenv("SMLA_CACHE_ROOT", str(tmp_path))
    monkeypatch.setenv("FLASHINFER_DISABLE_JIT", "1")
    folder = layout.lay_out(made, archive.sha256(made), told, jit)
    assert len(aot(folder)) == left, aot(folder)
    variables = host.environment(folder, told, jit)
    assert variables.get("FLASHINFER_DISABLE_JIT") == (None if jit else "1")
    assert variables["FLASHINFER_CUDA_ARCH_LIST"] == "9.0a"
    headers = [n for n in told.files if n.endswith((".cuh", ".h", ".cu"))]
    assert headers and all((folder / name).is_file() for name in headers)


def test_bundles_and_ways_of_building_have_workspaces_of_their_own(
    made: Path, told: manifest.Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMLA_CACHE_ROOT", str(tmp_path))
    monkeypatch.delenv("FLASHINFER_WORKSPACE_BASE", raising=False)
    folders = [layout.lay_out(made, archive.sha256(made), told, jit) for jit in (None, "*")]
    spaces = {host.environment(f, told, None)["FLASHINFER_WORKSPACE_BASE"] for f in folders}
    assert len(spaces) == 2
    assert not any(Path(space).is_relative_to(f) for space in spaces for f in folders)


def test_jit_without_a_compiler_is_told(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(toolkit, "cuda_home", lambda: None)
    assert start.main(str(made), ["--jit", "conformance", "list"]) == 3
    said = capsys.readouterr().err
    assert "nvcc" in said and "leave --jit out" in said, said


def test_ninja_is_a_program_behind_the_host_s_own(
    made: Path, told: manifest.Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMLA_CACHE_ROOT", str(tmp_path / "cache"))
    folder = layout.lay_out(made, archive.sha256(made), told)
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    path = host.environment(folder, told, None, {"PATH": str(nothing)})["PATH"]
    assert subprocess.check_output([shutil.which("ninja", path=path) or ""]) == b"carried ninja\n"
    (nothing / "ninja").write_text("#!/bin/sh\n")
    (nothing / "ninja").chmod(0o755)
    assert shutil.which("ninja", path=path) == str(nothing / "ninja")


@pytest.mark.parametrize(
    ("installed", "taken"),
    [("8", False), ("8.0.0", False), ("9.2.0rc1", False), ("7.4.4", True), (None, True)],
)
def test_a_carried_package_is_taken_where_the_host_s_will_not_do(
    monkeypatch: pytest.MonkeyPatch, installed: str | None, taken: bool
) -> None:
    def version(name: str) -> str:
        if installed is None:
            raise metadata.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(host.metadata, "version", version)
    one = Carried("pytest", "9.2.0", "packages/pytest", least="8.0")
    assert (host.lacking([one]) == [one]) is taken
    assert host.lacking([replace(one, always=True)]), "what modules were compiled against"
    unasked = replace(one, least="0")
    assert (host.lacking([unasked]) == [unasked]) is (installed is None)


def test_flashinfer_comes_before_the_host_s_and_the_user_s_own_path_last(
    told: manifest.Manifest, tmp_path: Path
) -> None:
    folder = tmp_path / "bundles/x"
    variables = host.environment(folder, told, None, {"PYTHONPATH": "/users"})
    path = variables["PYTHONPATH"].split(os.pathsep)
    assert path[:3] == [str(folder / name) for name in ("suite", "flashinfer", "shadow")]
    assert path[-1] == "/users"


def test_the_host_s_wheels_of_modules_are_out_of_sight(there: Host, tmp_path: Path) -> None:
    there.lay_out()
    strangers = tmp_path / "strangers"
    for name in ("flashinfer_jit_cache", "flashinfer_cubin"):
        (strangers / name).mkdir(parents=True)
        (strangers / name / "__init__.py").write_text("raise SystemExit(9)")
    told = start.read_manifest(there.bundle)
    variables = host.environment(there.unpacked, told, None, {"PYTHONPATH": str(strangers)})
    code = (
        "import flashinfer_cubin as c, flashinfer_jit_cache as j\n"
        "print(j.__version__, c.__version__, j.get_jit_cache_dir(), j.get_jit_cache_providers())"
    )
    said = subprocess.check_output(
        [sys.executable, "-c", code], cwd=there.cwd, env={**there.env, **variables}, text=True
    )
    modules = there.unpacked / manifest.PREBUILT
    assert said.split() == [VERSION, VERSION, str(modules), "()"], said


def test_what_differs_from_a_manifest_is_named(tmp_path: Path, told: manifest.Manifest) -> None:
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite/a.py").write_text("1")
    small = replace(told, files={"suite/b.py": "0" * 64})
    with pytest.raises(ManifestError, match=r"a\.py \(not in the manifest\), suite/b\.py \(miss"):
        manifest.verify(tmp_path, small)


def test_what_is_no_bundle_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.pyz").write_text("nothing of the kind")
    with pytest.raises(StartError, match="to fix: copy it again"):
        start.read_manifest(tmp_path / "x.pyz")


def test_the_code_in_it_is_all_that_starting_imports() -> None:
    """Every module of ours that `start` reaches is among those that lie in the zip."""
    code = "import sys, conformance.bundle.start; print(*sys.modules)"
    said = subprocess.check_output([sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}"], text=True)  # noqa: E501  # fmt: skip
    ours = {name for name in said.split() if name.partition(".")[0] == "conformance"}
    files = {
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in pyz.CODE
    }
    assert ours == files, ours ^ files
    assert json.loads(json.dumps(sorted(files)))
