"""The cache: entries built once, whole or not there, whatever dies; `clean` takes ours alone."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import filelock
import pytest

from conformance import cache as cache_module
from conformance import ownership
from conformance.cache import Cache, CacheError
from conformance.entries import ENTRY

ROOT = Path(__file__).parents[3]
INPUTS = {"version": 1}


def write(folder: Path, text: str = "content") -> None:
    (folder / "file").write_text(text)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "root")


def fail(_: Path) -> None:
    raise AssertionError("built again")


def test_equal_inputs_are_built_once_and_others_apart(cache: Cache) -> None:
    first = cache.entry("kind", INPUTS, write)
    assert (first / "file").read_text() == "content"
    assert cache.entry("kind", {"version": 1}, fail) == first
    assert cache.entry("kind", {"version": 2}, write) != first
    assert cache.entry("other", INPUTS, write) != first


def test_a_filled_cache_needs_no_lock_and_no_write(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cache.entry("kind", INPUTS, write)
    monkeypatch.setattr(filelock, "FileLock", lambda path: pytest.fail("locked"))
    monkeypatch.setattr(ownership.Marker, "claim", lambda *_: pytest.fail("written"))
    assert cache.entry("kind", INPUTS, fail) == folder


def test_a_build_that_fails_leaves_nothing(cache: Cache) -> None:
    def half(folder: Path) -> None:
        write(folder)
        raise RuntimeError("no compiler")

    with pytest.raises(RuntimeError, match="no compiler"):
        cache.entry("kind", INPUTS, half)
    assert list((cache.root / "kind").iterdir()) == []


@pytest.mark.parametrize("damage", ["truncated", "missing", "added", "no record"])
def test_a_damaged_entry_is_built_again(cache: Cache, damage: str) -> None:
    folder = cache.entry("kind", INPUTS, write)
    if damage == "truncated":
        (folder / "file").write_text("conte")
    elif damage == "missing":
        (folder / "file").unlink()
    elif damage == "added":
        (folder / "more").touch()
    else:
        (folder / ENTRY).unlink()
    assert cache.entry("kind", INPUTS, write) == folder
    assert (folder / "file").read_text() == "content" and not (folder / "more").exists()


def test_an_entry_is_seen_whole_or_not_at_all(cache: Cache) -> None:
    started, go_on = threading.Event(), threading.Event()

    def slow(folder: Path) -> None:
        write(folder, "half")
        started.set()
        assert go_on.wait(30)
        write(folder)

    builder = threading.Thread(target=lambda: cache.entry("kind", INPUTS, slow))
    builder.start()
    assert started.wait(30)
    entries = [p for p in (cache.root / "kind").iterdir() if not p.name.startswith(".building-")]
    assert entries == [], "nothing stands under the entry's name while it is built"
    go_on.set()
    folder = cache.entry("kind", INPUTS, fail)  # waits for the other builder
    builder.join(30)
    assert (folder / "file").read_text() == "content"


HOLDER = """\
import sys, time
from pathlib import Path
from conformance.cache import Cache

def build(folder):
    (folder / "file").write_text("half")
    Path(sys.argv[2]).touch()
    time.sleep(600)

Cache(Path(sys.argv[1])).entry("kind", {"version": 1}, build)
"""


def test_the_lock_of_a_killed_builder_is_free_and_its_half_is_gone(
    cache: Cache, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    command = [sys.executable, "-c", HOLDER, str(cache.root), str(ready)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=env) as holder:
        try:
            while not ready.exists():
                assert holder.poll() is None, "the holder ended by itself"
                time.sleep(0.05)
            with pytest.raises(CacheError, match="locked"), cache._lock("kind", _digest(cache), 0):
                pass
        finally:
            holder.send_signal(signal.SIGKILL)
    left = list((cache.root / "kind").iterdir())
    assert len(left) == 1 and left[0].name.startswith(".building-"), f"a half entry: {left}"
    started = time.monotonic()
    folder = cache.entry("kind", INPUTS, write)
    assert time.monotonic() - started < 10, "a lock file left behind locks nothing"
    assert (folder / "file").read_text() == "content"
    assert [path.name for path in (cache.root / "kind").iterdir()] == [folder.name]


def _digest(cache: Cache) -> str:
    (lock,) = (cache.root / "locks").iterdir()
    return lock.stem.removeprefix("kind-")


def test_many_processes_build_an_entry_once(cache: Cache, tmp_path: Path) -> None:
    code = (
        "import sys, os\nfrom pathlib import Path\nfrom conformance.cache import Cache\n"
        "def build(folder):\n"
        "    (folder / 'file').write_text('x')\n"
        "    Path(sys.argv[2], str(os.getpid())).touch()\n"
        "Cache(Path(sys.argv[1])).entry('kind', {}, build)\n"
    )
    (tmp_path / "builders").mkdir()
    command = [sys.executable, "-c", code, str(cache.root), str(tmp_path / "builders")]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    processes = [subprocess.Popen(command, env=env) for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0] * 4
    assert len(list((tmp_path / "builders").iterdir())) == 1


def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(CacheError, match=r"other files; allowed: .*to fix: "):
        Cache(tmp_path).entry("kind", INPUTS, fail)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_root_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CacheError, match="SMLA_CACHE_ROOT"):
        Cache(tmp_path / "file/root").entry("kind", INPUTS, fail)


def test_the_setting_names_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMLA_CACHE_ROOT", str(tmp_path / "mine"))
    assert Cache.default().root == tmp_path / "mine"
    monkeypatch.delenv("SMLA_CACHE_ROOT")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert Cache.default().root == tmp_path / "xdg/smla"


def test_clear_takes_everything_and_the_root(cache: Cache) -> None:
    cache.entry("kind", INPUTS, write)
    (cache.root / "kind/.building-0123-x").mkdir()
    done = cache.clear()
    assert (done.entries, done.kept) == (1, []) and done.bytes >= len("content")
    assert not cache.root.exists()
    assert cache.clear().kept == [], "an absent cache is clean"


def test_clear_leaves_what_it_did_not_make(cache: Cache) -> None:
    cache.entry("kind", INPUTS, write)
    (cache.root / "notes.txt").touch()
    (cache.root / "kind/mine").mkdir()
    (cache.root / "kind/mine/file").touch()
    kept = {path.name for path, _ in cache.clear().kept}
    assert kept == {"notes.txt", "mine"}
    assert (cache.root / "kind/mine/file").exists() and (cache.root / "notes.txt").exists()
    assert ownership.CACHE.owns(cache.root), "it stays ours, to be used and cleaned again"


def test_clear_touches_nothing_without_our_tag(tmp_path: Path) -> None:
    (tmp_path / "kind/entry").mkdir(parents=True)
    (tmp_path / "kind/entry" / ENTRY).write_text("{}")
    (tmp_path / "CACHEDIR.TAG").write_text("Signature: 8a477f597d28d172789f06886806bc55\n")
    done = Cache(tmp_path).clear()
    assert done.entries == 0 and [path for path, _ in done.kept] == [tmp_path]
    assert (tmp_path / "kind/entry" / ENTRY).exists()


def test_clear_does_not_take_an_entry_from_its_builder(cache: Cache) -> None:
    started, go_on = threading.Event(), threading.Event()

    def slow(folder: Path) -> None:
        write(folder)
        started.set()
        assert go_on.wait(30)

    builder = threading.Thread(target=lambda: cache.entry("kind", INPUTS, slow))
    builder.start()
    assert started.wait(30)
    done = cache.clear()
    go_on.set()
    builder.join(30)
    assert [reason for _, reason in done.kept] == ["another process is building it"], done
    assert cache.entry("kind", INPUTS, fail).exists()


def test_a_marker_is_claimed_by_many_at_once(tmp_path: Path) -> None:
    folder, claims = tmp_path / "folder", list[bool]()

    def claim() -> None:
        claims.append(ownership.CACHE.claim(folder))

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert claims == [True] * 8
    assert [path.name for path in folder.iterdir()] == ["CACHEDIR.TAG"]


def test_waiting_is_logged(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", cache_module.__name__)
    cache._claim()
    late = pytest.raises(CacheError, match="by another process")
    with cache._lock("kind", "d"), late, cache._lock("kind", "d", 1.2):
        pass
    assert "waiting for another process" in caplog.text
