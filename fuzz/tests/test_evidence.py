"""What the fuzzer saw on a GPU is kept as records; they add up to what the README says."""

import tarfile
from pathlib import Path

import pytest

from conformance.core.record import load
from fuzz.reach import possible
from fuzz.tally import gather

ARCHIVE = Path(__file__).parents[2] / "docs" / "evidence" / "h200-fuzz.tar.xz"


@pytest.mark.parametrize("version", ["0.7.2.post1", "0.7.4"])
def test_histories_on_a_gpu_were_many_and_none_was_a_finding(version: str, tmp_path: Path) -> None:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path / f"fuzz-{version}"
    files = [load(path) for path in folder.glob("records-*.jsonl")]
    assert files and all(file.whole and not file.open for file in files)
    environments = [file.header["environment"] for file in files]
    assert {tuple(e["gpu"]["capability"]) for e in environments} == {(9, 0)}
    assert {e["flashinfer"] for e in environments} == {version}
    tally = gather([folder])
    assert tally.code == 0 and not (tally.found or tally.begun or tally.twice or tally.unplanted)
    assert tally.histories == sum(len(file.records) for file in files) > 1900
    assert tally.frames > 28_000
    wanted = possible()
    assert len(set(tally.reached) & wanted) > 0.95 * len(wanted)
