"""What one hunt found, another one elsewhere plays first: by a folder, and by a real Redis."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.core.request import SuiteError
from fuzz.database import database_of

ROOT = Path(__file__).parents[2]
SUBJECT = "fuzz.tests.deadly:Refuses"
START_S = 30.0


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an empty redis-server of this test's own."""
    client = pytest.importorskip("redis", reason="the package redis is not installed")
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("redis-server is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = tmp_path_factory.mktemp("redis")
    options = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", str(folder)]
    process = subprocess.Popen([binary, *options], stdout=subprocess.DEVNULL)
    try:
        server, until = client.Redis(port=port), time.monotonic() + START_S
        while True:
            try:
                assert server.ping() and process.poll() is None
                break
            except client.exceptions.ConnectionError:
                assert process.poll() is None and time.monotonic() < until, "no redis-server"
                time.sleep(0.05)
        yield f"redis://127.0.0.1:{port}/3"
    finally:
        process.terminate()
        process.wait()


def hunt(folder: Path, database: str) -> tuple[int, str]:
    """Hunt in a process of its own, in a folder of its own; return which history was a finding."""
    folder.mkdir()
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "fuzz", "hunt", "--subject", SUBJECT, "--profile", "fuzz"]
    done = subprocess.run(
        [*command, "--database", database],
        cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert not (folder / ".hypothesis" / "examples").exists(), "the database is elsewhere"
    found = re.search(r"found by history (\d+) of \d+", done.stdout)
    assert found, done.stdout
    (kept,) = (folder / "fuzz-findings").glob("*.json")
    return int(found[1]), kept.read_text()


@pytest.mark.parametrize("kind", ["folder", "redis"])
def test_what_was_found_is_played_first_elsewhere(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    database = f"{tmp_path / 'db'}" if kind == "folder" else request.getfixturevalue("redis")
    before, first = hunt(tmp_path / "one host", database)
    assert before > 1, "Hypothesis starts with what is plainest, which is right"
    at, again = hunt(tmp_path / "another", database)
    assert at == 1, "what is in the database is played first"
    assert len(again) <= len(first), "and shrinks on from there"


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("redis://user:secret@127.0.0.1:1/0", "redis://127.0.0.1:1/0: found"),
        ("http://127.0.0.1", "found http://"),
        ("{FILE}", "a folder that can be written"),
    ],
)
def test_a_database_that_cannot_be_is_refused(place: str, says: str, tmp_path: Path) -> None:
    if place.startswith("redis"):
        pytest.importorskip("redis", reason="the package redis is not installed")
    (tmp_path / "file").touch()
    with pytest.raises(SuiteError, match=re.escape(says)) as refused:
        database_of(place.replace("{FILE}", f"{tmp_path / 'file'}"))
    assert "secret" not in str(refused.value)
