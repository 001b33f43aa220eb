"""Workers behind ssh, through a real sshd on loopback: their records come back, a death costs one.

The workers' files stand in a folder that is not the checkout, as on a host that shares no disk.
"""

import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.core.gateways import answering
from conformance.core.record import Outcome
from conformance.core.request import Request, SuiteError
from fuzz.tests import deadly
from fuzz.tests.test_lane import PROFILE, RUN, TURNS, here, records

START_S = 30.0
CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile {folder}/pid
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
"""
CLIENT = """\
Host far
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile {folder}/user
  IdentitiesOnly yes
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
"""


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The gateway of a host behind a real sshd, as --tx takes it."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])
    sshd, keygen = shutil.which("sshd", path=path), shutil.which("ssh-keygen")
    if sshd is None or keygen is None or shutil.which("ssh") is None:
        pytest.skip("sshd, ssh-keygen or ssh is not installed")
    if os.getuid() == 0:
        os.makedirs("/run/sshd", exist_ok=True)  # Debian's service makes it, and it may not run
    folder = tmp_path_factory.mktemp("ssh")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for key in ("host", "user"):
        command = [keygen, "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
        subprocess.run(command, check=True)
    told = {"port": port, "folder": folder, "user": getpass.getuser()}
    (folder / "sshd").write_text(CONFIG.format(**told))
    (folder / "client").write_text(CLIENT.format(**told))
    log = folder / "log"
    process = subprocess.Popen([sshd, "-D", "-f", str(folder / "sshd"), "-E", str(log)])
    try:
        until = time.monotonic() + START_S
        while True:
            assert process.poll() is None and time.monotonic() < until, log.read_text()
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        place = folder / "elsewhere"
        yield f"ssh=far//ssh_config={folder / 'client'}//python={sys.executable}//chdir={place}"
    finally:
        process.terminate()
        process.wait()


def test_workers_on_other_hosts_send_their_records(far: str, tmp_path: Path) -> None:
    seeds, ways = range(11), {5: "kill", 8: "hang"}
    done = here(
        RUN, "--subject", deadly.subject(ways, seeds, PROFILE), "--tx", f"2*{far}", *TURNS,
        "--histories", str(len(seeds)), "--watchdog", "15", "--report", tmp_path / "report",
        "--keep", tmp_path / "kept",
    )  # fmt: skip
    assert done.exit_code == 1, done.output
    found = records(tmp_path / "report")
    expected = {seed: Outcome.PASS for seed in seeds} | {5: Outcome.CRASH, 8: Outcome.HANG}
    assert {seed: record.outcome for seed, record in found.items()} == expected
    assert all(found[seed].history for seed in seeds if seed not in ways)
    assert "it stands at" in found[8].message and "deadly.py" in found[8].message
    assert {path.stem for path in (tmp_path / "kept").glob("*.json")} == {"history-5", "history-8"}
    place = Path(far.rpartition("chdir=")[2])
    assert (place / "fuzz" / "lane" / "judge.py").exists(), "its own copy of the sources"
    assert f"{place}" in found[8].message, "it ran that copy"
    assert not [*(tmp_path / "report" / "processes").rglob("faults-*")], "it wrote nothing here"


def test_time_ends_workers_on_other_hosts(far: str, tmp_path: Path) -> None:
    done = here(RUN, "--tx", far, *TURNS, "--minutes", "0.6", "--report", tmp_path)
    assert done.exit_code == 0, done.output
    found = records(tmp_path)
    assert len(found) > 1 and sorted(found) == [*range(len(found))]


def test_gateways_that_do_not_answer_are_left_out(
    far: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As where a host died late: no other worker was left, and the rest is started again."""
    gone = far.replace("ssh=far", "ssh=nobody").replace("//python", "//id=gone//python")
    asked = Request(tier="twin", subject=deadly.FACTORY, tx=("popen", gone, f"2*{far}"))
    assert answering(asked) == replace(asked, tx=("popen", f"2*{far}"))
    assert gone in caplog.text
    with pytest.raises(SuiteError, match="found no gateway that answers, of 1"):
        answering(replace(asked, tx=(gone,)))
    assert answering(replace(asked, tx=())).tx == ()


def test_a_host_that_is_gone_costs_its_history_alone(far: str, tmp_path: Path) -> None:
    """The last test of this file: it takes the sshd with it."""
    seeds, ways = range(11), {0: "host", 2: "host"}  # each worker begins with one of them
    config = Path(far.partition("ssh_config=")[2].partition("//")[0])
    number = (config.parent / "pid").read_text().strip()
    done = here(
        RUN, "--subject", deadly.subject(ways, seeds, PROFILE), *TURNS,
        "--tx", f"{far}//env:{deadly.SSHD}={number}", "--tx", "popen",
        "--histories", str(len(seeds)), "--report", tmp_path / "report",
        "--keep", tmp_path / "kept",
    )  # fmt: skip
    assert done.exit_code == 1, done.output
    found = records(tmp_path / "report")
    assert sorted(found) == [*seeds]
    lost = [seed for seed, record in found.items() if record.outcome is not Outcome.PASS]
    assert lost in ([0], [2]) and found[lost[0]].outcome is Outcome.CRASH
    assert "was not played" not in done.output and "not played to its end" not in done.output
