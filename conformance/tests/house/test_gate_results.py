"""A result archive says what it is of, is read whole or not at all, and only by its own suite."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.bundle.archive import pack_tar, unpack_tar
from conformance.core import environment
from conformance.core.record import Outcome, Record, RecordWriter
from conformance.gate.errors import ResultsError
from conformance.gate.model import Side
from conformance.gate.results import NAME, Results, Run, read, side_of, write

SUITE = {"commit": "c" * 40, "sources": "5" * 16}
WHEEL = "a1" * 32


def case(number: int, **changes: object) -> Record:
    plain = Record(
        case=f"LEN-1/lens=edge/{number}",
        requirement="LEN-1",
        tier="hopper",
        subject="smla",
        outcome=Outcome.PASS,
        error=1e-3,
        ratio=0.5,
        interpreted=False,
        message="",
        repro="python -m conformance run",
        flashinfer="0.7.4",
        subject_version="0.1.0",
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def record_file(folder: Path, *records: Record, name: str = "hopper-1-gw0", **suite: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"records-{name}.jsonl"
    writer = RecordWriter(path, {**SUITE, **suite})
    for record in records:
        writer.start(record)
        writer.add(record)
    writer.close()
    return path


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """Two subjects' report folders and a file of figures, as a GPU host leaves them."""
    root = tmp_path / "made"
    record_file(root / "smla", case(1), case(2))
    record_file(root / "other", case(1, subject="vllm", subject_version="0.33.0"))
    (root / "smla/processes").mkdir()
    (root / "smla/processes/notes.json").write_text("[]")
    (root / "figures.json").write_text('{"plan": [1.5]}')
    return Results(
        flashinfer="0.7.4",
        wheel=WHEEL,
        tier="hopper",
        commit=SUITE["commit"],
        sources=SUITE["sources"],
        environment={"gpu": {"name": "NVIDIA H200"}},
        command=("gate", "--subject", "smla"),
        runs=(Run("smla", "0.1.0", "smla", 0), Run("vllm", "0.33.0", "other", 1)),
        figures=("figures.json",),
        root=root,
    )


@pytest.fixture
def archive(results: Results, tmp_path: Path) -> Path:
    return write(results, tmp_path / "carried.tar.xz")


def changed(archive: Path, change: Callable[[Path], object]) -> Path:
    """The archive with its content changed and packed again."""
    folder = archive.parent / "changed"
    unpack_tar(archive, folder)
    change(folder)
    pack_tar(folder, archive)
    return archive


def retold(folder: Path, **changes: object) -> None:
    record = json.loads((folder / NAME).read_text())
    (folder / NAME).write_text(json.dumps({**record, **changes}))


def refused(archive: Path, *words: str, suite: dict[str, str] = SUITE) -> str:
    """The message of the refusal; it holds the words, and nothing is left in the scratch."""
    scratch = archive.parent / "scratch"
    with pytest.raises(ResultsError) as caught:
        read(archive, scratch, suite)
    text = str(caught.value)
    for word in (*words, "allowed: ", "to fix: "):
        assert word in text, f"{word!r} is not in {text!r}"
    assert not scratch.exists(), f"left in scratch: {list(scratch.iterdir())}"
    return text


def test_what_was_written_is_read_back(archive: Path, results: Results, tmp_path: Path) -> None:
    found = read(archive, tmp_path / "there", SUITE)
    assert replace(found, files={}, root=results.root) == results
    assert not found.rehearsal
    (source,) = found.records(found.runs[0])
    assert [record.case for record in source.records] == [case(1).case, case(2).case]
    assert found.figure("figures.json") == {"plan": [1.5]}
    names = {str(path.relative_to(tmp_path / "there")) for path in (tmp_path / "there").rglob("*")}
    assert not any("processes" in name for name in names), names


def test_equal_results_give_equal_bytes(archive: Path, results: Results, tmp_path: Path) -> None:
    again = write(results, tmp_path / "again.tar.xz")
    assert again.read_bytes() == archive.read_bytes()


def test_a_folder_gets_an_archive_that_names_version_tier_and_wheel(
    results: Results, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    name = write(results, tmp_path / "out").name
    assert name == f"smla-results-0.7.4-hopper-{WHEEL[:12]}.tar.xz"


def test_by_default_it_must_be_of_this_suite(results: Results, tmp_path: Path) -> None:
    here = environment.describe()
    for folder, subject in (("smla", "smla"), ("other", "vllm")):
        shutil.rmtree(results.root / folder)
        version = "0.1.0" if subject == "smla" else "0.33.0"
        record = case(1, subject=subject, subject_version=version)
        record_file(results.root / folder, record, commit=here["commit"], sources=here["sources"])
    own = replace(results, commit=here["commit"], sources=here["sources"])
    archive = write(own, tmp_path / "own.tar.xz")
    assert read(archive, tmp_path / "there").sources == here["sources"]


@pytest.mark.parametrize("cut", [1, 64, 0.5, 0.02])
def test_a_truncated_archive_is_refused(archive: Path, cut: float) -> None:
    whole = archive.read_bytes()
    kept = int(len(whole) * cut) if cut < 1 else len(whole) - int(cut)
    archive.write_bytes(whole[:kept])
    refused(archive, "again")


def test_a_changed_byte_is_refused(archive: Path) -> None:
    def change(folder: Path) -> None:
        path = folder / "figures.json"
        path.write_text(path.read_text().replace("1.5", "1.4"))

    refused(changed(archive, change), "figures.json (changed)")


def test_a_stranger_s_and_a_missing_file_are_refused(archive: Path) -> None:
    def change(folder: Path) -> None:
        (folder / "figures.json").rename(folder / "other.json")

    refused(changed(archive, change), "figures.json (missing)", "other.json (not told)")


@pytest.mark.parametrize("what", ["commit", "sources"])
def test_results_of_another_suite_are_refused(archive: Path, what: str) -> None:
    refused(archive, SUITE[what], "f" * 7, suite={**SUITE, what: "f" * 7})


def test_without_a_commit_the_digest_decides(archive: Path, tmp_path: Path) -> None:
    no_git = {"commit": None, "sources": SUITE["sources"]}
    assert read(archive, tmp_path / "there", no_git).commit == SUITE["commit"]


def test_another_schema_is_refused(archive: Path) -> None:
    refused(changed(archive, lambda folder: retold(folder, schema="smla-results/2")), "results/2")


@pytest.mark.parametrize("name", ["../../etc", "/etc"])
def test_names_that_lead_outside_are_refused(archive: Path, name: str) -> None:
    run = {"subject": "smla", "version": "0.1.0", "folder": name, "exit": 0}
    refused(changed(archive, lambda folder: retold(folder, runs=[run])), name)


@pytest.mark.parametrize(
    ("told", "word"),
    [
        ({"tier": "twin"}, "tier"),
        ({"flashinfer": "0.7.2"}, "FlashInfer"),
        ({"sources": "6" * 16}, "sources"),
        ({"commit": "d" * 40}, "commit"),
    ],
)
def test_records_of_something_else_than_is_told_are_refused(
    archive: Path, told: dict[str, str], word: str
) -> None:
    suite = {what: told.get(what, value) for what, value in SUITE.items()}
    refused(changed(archive, lambda folder: retold(folder, **told)), word, suite=suite)


def test_an_unfinished_run_is_not_packed(results: Results, tmp_path: Path) -> None:
    path = next((results.root / "smla").glob("records-*.jsonl"))
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(ResultsError, match="footer"):
        write(results, tmp_path / "carried.tar.xz")
    assert not (tmp_path / "carried.tar.xz").exists()


def test_the_wheel_s_digest_decides_which_side_they_are_of(results: Results) -> None:
    baseline = Side("0.7.4", "0.7.4", "b2" * 32)  # the same version, another build
    candidate = Side("./mine.whl", "0.7.4", WHEEL)
    assert side_of(results, [baseline, candidate]) is candidate
    with pytest.raises(ResultsError, match=r"a1a1a1a1a1a1.*b2b2b2b2b2b2"):
        side_of(results, [baseline])
