"""The commands `run` and `merge`: many histories over many processes, and what they saw."""

import itertools
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shlex import quote

import click

from conformance.clean import claim_report
from conformance.core.request import Request, SuiteError
from fuzz.cli import (
    CODES,
    factory_of,
    known_version,
    load,
    nothing_without_hopper,
    options,
    shrunk,
    tier_of,
    where,
)
from fuzz.lane.asked import Asked
from fuzz.lane.shards import Shard
from fuzz.profiles import PROFILES
from fuzz.serving import Profile, drawn
from fuzz.tally import Tally, gather, seed_of

_JUDGE = Path(__file__).with_name("judge.py")
_LIST = 5000
"""Seeds that a worker is told of at once: where time ends a run, lists follow each other."""
_LONGEST = 50000
_EACH = 3
"""Findings of a kind that are told in full; the folder has them all."""


@click.command("run", epilog=CODES)
@options
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="The first one.")
@click.option("--histories", type=click.IntRange(1), help="How many seeds, of all shards.")
@click.option("--minutes", type=click.FloatRange(0, min_open=True), help="How long.")
@click.option("--profile", "named", type=click.Choice(list(PROFILES)), default="plain",
              show_default=True, help="What is drawn.")  # fmt: skip
@click.option("--turns", type=click.IntRange(1), help="At most. Default: the profile's.")
@click.option("--faults/--no-faults", default=True, help="Whether faults are planted.")
@click.option(
    "-n",
    "--workers",
    default="auto",
    show_default=True,
    help="Processes; auto: one for each core, or GPU; 0: none beside pytest's.",
)
@click.option(
    "--shard",
    type=Shard.Type(),
    default="1/1",
    show_default=True,
    help="I/N: every N-th seed from the I-th on.",
)
@click.option(
    "--tx",
    multiple=True,
    help="A gateway of pytest-xdist in place of -n, as ssh=HOST//python=PATH.",
)
@click.option(
    "--rsyncdir",
    "rsyncdirs",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A package that goes to other hosts beside the suite's own.",
)
@click.option(
    "--watchdog", type=click.FloatRange(0), help="Seconds a history may take; 0: no limit."
)
@click.option(
    "--report",
    type=click.Path(path_type=Path),
    default=Path("fuzz-report"),
    show_default=True,
    help="Folder for records.",
)
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False),
              default=Path("fuzz-findings"),
              show_default=True, help="Folder for histories that were findings.")  # fmt: skip
@click.option("--shrink/--no-shrink", default=False, help="Shrink the first finding of each kind.")
def run_command(
    subject: str, tier: str, flashinfer: str, seed: int, histories: int | None,
    minutes: float | None, named: str, turns: int | None, faults: bool, workers: str, shard: Shard,
    tx: tuple[str, ...], rsyncdirs: tuple[Path, ...], watchdog: float | None, report: Path,
    keep: Path, shrink: bool,
) -> None:  # fmt: skip
    """Draw histories from seeds and play them; 100 of them, unless told how many or how long.

    With both, whichever ends first. An interrupt ends it too, and what was seen is told.
    """
    from conformance.core.run import clear, hopper_gpus, writable

    known_version(flashinfer)
    gpus = hopper_gpus() if tier == "hopper" and not tx else []
    if tier == "hopper" and not tx and not gpus:
        nothing_without_hopper()
    factory, identity = factory_of(subject)
    profile = replace(PROFILES[named].profile, faults=faults)
    profile = profile if turns is None else replace(profile, turns=turns)
    if histories is None and minutes is None:
        histories = 100
    count = None if histories is None else shard.share(histories)
    if count == 0:
        click.echo(f"no seed of {histories} is of shard {shard.index}/{shard.count}")
        sys.exit(2)
    lists = shard.lists(seed, count, _size(workers, len(gpus) or len(tx)))
    request = Request(
        subject=factory, given=subject, identity=identity, tier=tier, report=report,
        workers=_workers(workers, count, tx), kernels="torch", flashinfer=flashinfer,
        limit_s=watchdog, judges=[_JUDGE], again=_again(tier, named, profile), tx=tx,
        rsyncdirs=rsyncdirs,
    )  # fmt: skip
    writable(request)
    claim_report(report)
    clear(report)
    began = time.monotonic()
    if minutes is not None:
        request = replace(request, until=began + 60 * minutes)
    broken = _played(request, tier, gpus, lists, profile)
    wall = time.monotonic() - began
    tally = gather([report])
    _tell(tally, wall, keep, profile, flashinfer)
    if shrink:
        _shrink(tally, keep, profile, subject, tier, flashinfer)
    if broken:
        click.echo(broken)
    sys.exit(3 if broken and tally.code != 1 else tally.code)


def _played(
    request: Request, tier: str, gpus: list[str], lists: Iterator[range], profile: Profile
) -> str:
    """Play lists of seeds until they or the time end; return what ended them early, or nothing."""
    from conformance.core.tier_run import FAULTS, run_tier

    numbers = itertools.count(1)
    try:
        for seeds in lists:
            timed = request.until is not None
            asked = Asked(seeds.start, seeds.step, len(seeds), profile, timed)
            told = replace(request, asked=asked.dumps())
            _, left = run_tier(told, tier, gpus, numbers)
            if left:
                return f"stopped after {FAULTS} faults: {len(left)} histories were not played"
            if request.over:
                break
    except KeyboardInterrupt:
        return "interrupted: what follows is not said of the rest"
    except SuiteError as problem:
        if not any(request.report.glob("records-*.jsonl")):
            raise
        return f"not played to its end: {problem}"
    return ""


def _workers(workers: str, count: int | None, tx: tuple[str, ...]) -> str:
    """Return pytest-xdist's -n: one history alone needs no process beside pytest's."""
    if workers not in ("auto", "logical") and not workers.isdigit():
        raise click.UsageError(f"-n {workers!r}: allowed are a number, auto and logical")
    if tx and workers != "auto":
        raise click.UsageError("--tx says which workers there are, so it takes no -n beside it")
    return "0" if count == 1 and workers == "auto" else workers


def _size(workers: str, gateways: int) -> int:
    """Return how many seeds a list has."""
    count = int(workers) if workers.isdigit() else gateways or os.cpu_count() or 1
    return min(_LIST * max(count, 1), _LONGEST)


def _again(tier: str, named: str, profile: Profile) -> str:
    """Return the template of the command that plays a seed again."""
    version = " --flashinfer {below}" if tier == "twin" else ""
    drawn = f"--turns {profile.turns}" + ("" if profile.faults else " --no-faults")
    drawn = drawn if named == "plain" else f"--profile {named} {drawn}"
    return (
        f"python -m fuzz run --subject {{subject}} --tier {{tier}}{version} --seed {{number}} "
        f"--histories 1 {drawn}"
    )


def _tell(tally: Tally, wall: float, keep: Path, profile: Profile, flashinfer: str) -> None:
    """Keep every finding in a folder, and say what was seen."""
    from fuzz.findings import keep as kept

    shown: dict[str, int] = {}
    for record in tally.found:
        history = drawn(seed_of(record), profile)
        seen = record.history or {}
        text = seen.get("text") or record.message
        text += "" if record.repro in text else f"\n  repro    {record.repro}"
        path = kept(keep, history, text)
        kind = seen.get("kind") or record.outcome
        shown[kind] = shown.get(kind, 0) + 1
        if shown[kind] <= _EACH:
            click.echo(f"seed {history.seed}: {text}")
            replay = where(record.subject, record.tier, flashinfer, history.seed)
            click.echo(f"  or       python -m fuzz replay {replay} {quote(str(path))}")
    for line in (tally.line(wall), *tally.table(), *tally.notes()):
        click.echo(line)


def _shrink(
    tally: Tally, keep: Path, profile: Profile, subject: str, tier: str, flashinfer: str
) -> None:
    """Shrink the first finding of each kind that a check made, and tell of the smallest."""
    from fuzz.shrink import small

    for record in {(r.history or {}).get("kind"): r for r in reversed(tally.found)}.values():
        if not (record.history or {}).get("kind"):
            continue  # what ended its process would end this one
        history = drawn(seed_of(record), profile)
        path = keep / f"history-{history.seed}.json"
        replay = where(subject, tier, flashinfer, history.seed)
        shrunk(
            path, history, load(subject), tier_of(tier, flashinfer), small(path, history), replay
        )


@click.command("merge", epilog=CODES)
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
def merge_command(folders: tuple[Path, ...]) -> None:
    """Add up what several runs saw, as of several hosts: their report folders."""
    tally = gather(folders)
    for record in tally.found:
        click.echo(f"{record.case}: {record.outcome}")
        click.echo(f"  repro    {record.repro}")
    for line in (tally.line(), *tally.table(), *tally.notes()):
        click.echo(line)
    sys.exit(tally.code)
