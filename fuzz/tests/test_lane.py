"""Histories over many processes: which seeds are played, what a death costs, what is added up."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from conformance.core.record import Outcome, Record, load, read_records
from conformance.core.request import SuiteError
from fuzz.lane import cli
from fuzz.serving import Profile
from fuzz.tally import gather, seed_of
from fuzz.tests import deadly
from fuzz.tests.test_cli import fuzz

RUN, MERGE = cli.run_command, cli.merge_command

TURNS = ("--turns", "2")
PROFILE = Profile(turns=2)
BOUND_S = 120.0
"""Far above what is waited for."""


def records(folder: Path) -> dict[int, Record]:
    """The records of a folder by seed; each file is whole, and no seed is there twice."""
    found = read_records(folder)
    seeds = [seed_of(record) for record in found]
    assert len(seeds) == len(set(seeds)), sorted(seeds)
    return {seed_of(record): record for record in found}


def here(command: click.Command, *arguments: str | Path) -> Result:
    """Give a command in this process: what torch costs is paid once."""
    words = [str(argument) for argument in arguments]
    return CliRunner().invoke(command, words, catch_exceptions=False)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The report folders of three hosts, of the 8 seeds from 3 on."""
    folder = tmp_path_factory.mktemp("hosts")
    asked = ("--seed", "3", "--histories", "8", *TURNS, "-n", "0", "--keep", folder / "kept")
    for index in (1, 2, 3):
        asked_for = (*asked, "--shard", f"{index}/3", "--report", folder / f"{index}")
        done = here(RUN, *asked_for)
        assert done.exit_code == 0, done.output
    return [folder / f"{index}" for index in (1, 2, 3)]


def test_shards_have_no_seed_in_common_and_together_all(shards: list[Path]) -> None:
    seeds = [sorted(records(folder)) for folder in shards]
    assert seeds == [[3, 6, 9], [4, 7, 10], [5, 8]]


def test_merge_adds_up_what_hosts_saw(shards: list[Path]) -> None:
    seen = [record.history for folder in shards for record in records(folder).values()]
    assert all(seen), "a record without what was seen"
    steps = sum(one["steps"] for one in seen if one)
    reached = sum(count for one in seen if one for count in one["reached"].values())
    assert reached == steps > 8
    done = here(MERGE, *shards)
    assert done.exit_code == 0, done.output
    assert f"8 histories, {steps} steps" in done.stdout
    values = next(line for line in done.stdout.splitlines() if line.startswith("  dtype"))
    assert sum(int(word.strip(",")) for word in values.split()[2::2]) == steps
    assert "pairs of values reached" in done.stdout and "more than one" not in done.stdout


def test_a_seed_in_two_folders_counts_once_and_is_told(shards: list[Path], tmp_path: Path) -> None:
    copy = Path(shutil.copytree(shards[1], tmp_path / "copy"))
    done = here(MERGE, *shards, copy)
    assert "8 histories" in done.stdout
    assert "in more than one folder, counted once: seeds 4, 7, 10" in done.stdout


def test_of_a_host_that_died_all_counts_but_its_last_history(
    shards: list[Path], tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(shards[0], tmp_path / "copy"))
    (path,) = copy.glob("records-*.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    assert [json.loads(line)["kind"] for line in lines[-3:]] == ["started", "record", "footer"]
    path.write_text("".join(lines[:-2]) + lines[-2][:30])
    done = here(MERGE, copy)
    assert done.exit_code == 2, done.output
    assert "2 histories" in done.stdout
    assert "begun and lost with their process: seeds 9" in done.stdout
    path.write_text("".join(lines[:-3]))
    done = here(MERGE, copy)
    assert done.exit_code == 2, done.output
    assert "asked for, and not played: seeds 9" in done.stdout


def test_a_shard_without_a_seed_says_so(tmp_path: Path) -> None:
    done = here(RUN, "--histories", "1", "--shard", "2/2", "--report", tmp_path / "r")
    assert done.exit_code == 2, done.output
    assert "no seed of 1 is of shard 2/2" in done.stdout


def test_seeds_that_mean_other_histories_are_not_added_up(
    shards: list[Path], tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(shards[1], tmp_path / "copy"))
    (path,) = copy.glob("records-*.jsonl")
    path.write_text(path.read_text().replace(r"\"turns\": 2", r"\"turns\": 3"))
    with pytest.raises(SuiteError, match=r"turns=2.*turns=3"):
        gather([shards[0], copy])
    done = fuzz("merge", tmp_path / "nowhere")
    assert done.returncode == 3 and "nowhere" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("workers", "ways"),
    [("2", {0: "kill", 5: "leave", 8: "hang", 10: "leave"}), ("0", {0: "leave", 10: "kill"})],
    ids=["two workers", "none beside pytest"],
)
def test_a_death_costs_its_history_alone(
    workers: str, ways: dict[int, str], tmp_path: Path
) -> None:
    seeds = range(11)
    done = here(
        RUN, "--subject", deadly.subject(ways, seeds, PROFILE), "-n", workers, *TURNS,
        "--histories", str(len(seeds)), "--watchdog", "15", "--report", tmp_path / "report",
        "--keep", tmp_path / "kept",
    )  # fmt: skip
    assert done.exit_code == 1, done.output
    found = records(tmp_path / "report")
    expected = {seed: Outcome.PASS for seed in seeds}
    expected |= {s: Outcome.HANG if how == "hang" else Outcome.CRASH for s, how in ways.items()}
    assert {seed: record.outcome for seed, record in found.items()} == expected
    assert all(found[seed].history for seed in seeds if seed not in ways)
    kept = {path.name for path in (tmp_path / "kept").glob("*.json")}
    assert kept == {f"history-{seed}.json" for seed in ways}
    for seed in ways:
        assert f"--seed {seed} --histories 1 --turns 2" in found[seed].repro
        assert found[seed].repro in done.stdout
    assert f"{len(seeds)} histories" in done.stdout


def test_time_ends_a_run_without_a_history_half_played(tmp_path: Path) -> None:
    done = fuzz("run", *TURNS, "-n", "1", "--minutes", "0.5", "--report", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = records(tmp_path)
    assert len(found) > 1 and sorted(found) == [*range(len(found))], "the first seeds, all of them"
    for path in tmp_path.glob("records-*.jsonl"):
        file = load(path)
        assert file.whole and not file.open
    assert f"{len(found)} histories" in done.stdout and "time is over" in done.stdout


def test_lists_follow_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "_LIST", 2)
    done = here(RUN, "--histories", "3", *TURNS, "-n", "0", "--report", tmp_path)
    assert done.exit_code == 0, done.output
    assert [path.name for path in sorted(tmp_path.glob("*.jsonl"))] == [
        f"records-twin-{number}-main.jsonl" for number in (1, 2)
    ]
    assert sorted(records(tmp_path)) == [0, 1, 2]


def test_an_interrupt_ends_a_run_and_says_what_was_seen(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fuzz", "run", "--histories", "5000", *TURNS, "-n", "1"]
    process = subprocess.Popen(
        [*command, "--report", str(tmp_path)], stdout=subprocess.PIPE, text=True,
        # A shell's background job ignores interrupts, and so would all that it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    until = time.monotonic() + BOUND_S
    while time.monotonic() < until and process.poll() is None:
        files = [path.read_text() for path in tmp_path.glob("records-*.jsonl")]
        if any('"kind": "record"' in text for text in files):
            break
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=BOUND_S)
    assert process.returncode == 3, said
    assert "interrupted" in said and " histories, " in said and "0 distinct findings" in said


def test_a_run_that_can_play_nothing_says_so(tmp_path: Path) -> None:
    done = here(
        RUN, "--subject", "fuzz.tests.deadly:ShowsNothing", "-n", "0", *TURNS,
        "--histories", "5", "--report", tmp_path,
    )  # fmt: skip
    assert done.exit_code == 2, done.output
    assert "0 histories" in done.stdout and "not played: " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--shard", "0/2"], "'0/2'; allowed: I/N"),
        (["--shard", "3/2"], "'3/2'; allowed: I/N"),
        (["--shard", "2"], "'2'; allowed: I/N"),
        (["--shard", "-1/2"], "allowed: I/N"),
        (["-n", "many"], "allowed are a number, auto and logical"),
        (["-n", "2", "--tx", "popen"], "takes no -n beside it"),
        (["--tx", "popen", "--rsyncdir", "nowhere"], "nowhere"),
    ],
)
def test_what_is_asked_wrongly(arguments: list[str], says: str, tmp_path: Path) -> None:
    done = fuzz("run", "--histories", "1", "--report", tmp_path / "report", *arguments)
    assert done.returncode == 3, done.stdout + done.stderr
    assert says in done.stderr and "Traceback" not in done.stderr
