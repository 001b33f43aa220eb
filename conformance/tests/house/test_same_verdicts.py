"""A case says the same wherever it runs: in one process or in several, in any order."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.core.record import read_records

ROOT = Path(__file__).parents[3]
IDS = ("GRAPH-4", "ROB-6", "DRAFT-4")
"""Requirements that leave most behind: held devices, graphs, refused calls, changed tables."""

WAYS = {
    "several processes": (("-n", "2"), "1"),
    "another order": (("-n", "0", "--shuffle", "5"), "0"),
    "another order and hash seed, several processes": (("-n", "2", "--shuffle", "9"), "77"),
}


def verdicts(
    folder: Path, options: tuple[str, ...], hash_seed: str
) -> dict[str, tuple[object, ...]]:
    """Run the requirements in a way of their own; return what each case's record says."""
    command = [sys.executable, "-m", "conformance", "run", "--tier", "twin", *options]
    command += ["--report", str(folder), *(f"--requirement={id}" for id in IDS)]
    search = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": search, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {r.case: (r.outcome, r.error, r.ratio, r.flashinfer) for r in read_records(folder)}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[object, ...]]:
    """What the cases say one after the other in one process."""
    return verdicts(tmp_path_factory.mktemp("plain"), ("-n", "0"), "0")


@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_same_records(
    way: str, plain: dict[str, tuple[object, ...]], tmp_path: Path
) -> None:
    found = verdicts(tmp_path / "report", *WAYS[way])
    assert found == plain
    assert [*found] != [*plain] or "order" not in way
