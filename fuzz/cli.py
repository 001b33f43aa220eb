"""The command line: `python -m fuzz run`, `hunt` and `replay`, with the suite's exit codes."""

import sys
from pathlib import Path
from shlex import quote
from typing import Any

import click

from conformance.core.request import SuiteError
from fuzz.history import History, HistoryError
from fuzz.mutants.cli import mutants_command

CODES = """

Exit codes: 0 nothing was found, 1 something was, 2 nothing was played, 3 asked wrongly."""
_TIERS = click.Choice(["twin", "hopper"])


def _subject(name: str) -> Any:
    import torch

    from conformance.core.run import identify
    from conformance.core.worker import load_subject
    from conformance.subjects import SUBJECTS, own_identity, resolver

    torch.set_num_threads(1)  # steps are small: more threads would only wait for each other
    resolve = resolver(name)
    factory = resolve(name) if resolve else SUBJECTS.get(name, name)
    if own_identity(name) is None:
        identify(factory, name)  # in a process of its own: one that is broken is refused here
    return load_subject(factory)


def _options(command: Any) -> Any:
    for option in (
        click.option("--subject", default="smla", show_default=True, help="As of conformance run."),
        click.option("--tier", type=_TIERS, default="twin", show_default=True),
        click.option("--flashinfer", default="auto", help="Version that the twin simulates."),
    ):
        command = option(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Play serving histories with faults in them, and hold every row against golden."""


@main.command("run", epilog=CODES)
@_options
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="The first one.")
@click.option("--histories", type=click.IntRange(1), help="How many seeds.")
@click.option("--minutes", type=click.FloatRange(0, min_open=True), help="How long.")
@click.option("--turns", type=click.IntRange(1), default=16, show_default=True, help="At most.")
@click.option("--faults/--no-faults", default=True, help="Whether faults are planted.")
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False),
              default=Path("fuzz-findings"),
              show_default=True, help="Folder for histories that were findings.")  # fmt: skip
def run_command(
    subject: str, tier: str, flashinfer: str, seed: int, histories: int | None,
    minutes: float | None, turns: int, faults: bool, keep: Path,
) -> None:  # fmt: skip
    """Draw histories from seeds and play them; 100 of them, unless told how many or how long."""
    import itertools

    from fuzz import runner
    from fuzz.serving import Profile

    if histories is None and minutes is None:
        histories = 100
    seeds = range(seed, seed + histories) if histories else itertools.count(seed)
    chosen = _tier(tier, flashinfer)

    def again(seed: int) -> str:
        drawn = f"--seed {seed} --histories 1 --turns {turns}" + ("" if faults else " --no-faults")
        return f"python -m fuzz run {_where(subject, tier, flashinfer, seed)} {drawn}"

    def told(tally: runner.Tally, history: History, played: Any) -> None:
        if played.finding:
            click.echo(f"seed {history.seed}: {played.finding.frame}: {played.finding.message}")
            path = runner.keep(keep, history, played.finding)
            where = _where(subject, tier, flashinfer, history.seed)
            if again(history.seed) not in played.finding.message:
                click.echo(f"  repro    {again(history.seed)}")
            click.echo(f"  or       python -m fuzz replay {where} {quote(str(path))}")
        elif tally.histories % 50 == 0:
            click.echo(tally.line())

    profile = Profile(turns=turns, faults=faults)
    seconds = None if minutes is None else 60 * minutes
    tally = runner.run(
        seeds, profile, _subject(subject), chosen, seconds=seconds, again=again, told=told
    )
    click.echo(tally.line())
    click.echo(_reached(tally))
    for why, count in tally.unobservable.items():
        click.echo(f"not played: {count} histories ({why})")
    for text, found in tally.distinct.items():
        click.echo(f"{len(found)} x {text}: seeds {', '.join(map(str, found[:8]))}")
    sys.exit(1 if tally.distinct else 0 if tally.frames else 2)


@main.command("hunt", epilog=CODES)
@_options
@click.option("--profile", type=click.Choice(["ci", "fuzz", "deep"]), default="ci",
              show_default=True, help="How long to look.")  # fmt: skip
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False),
              default=Path("fuzz-findings"),
              show_default=True, help="Folder for the history that was found.")  # fmt: skip
def hunt_command(subject: str, tier: str, flashinfer: str, profile: str, keep: Path) -> None:
    """Let Hypothesis look for a finding, and shrink it to a short history.

    On the twin one version of FlashInfer is simulated: 0.7.2.post1, unless told otherwise.
    """
    from conformance.core.subject import Unobservable
    from fuzz import runner
    from fuzz.machine import hunt

    loaded, chosen = _subject(subject), _tier(tier, flashinfer)(2)
    try:
        found = hunt(profile, loaded, chosen)
    except Unobservable as problem:
        click.echo(f"nothing played: the subject does not show {problem}")
        sys.exit(2)
    if found is None:
        click.echo(f"nothing found with profile {profile}")
        sys.exit(0)
    history, finding = found
    path = runner.keep(keep, history, finding)
    click.echo(f"found in {path}: {finding.frame}: {finding.message}")
    version = f" --flashinfer {chosen.simulates}" if tier == "twin" else ""
    where = f"--subject {quote(subject)} --tier {tier}{version}"
    click.echo(f"  replay   python -m fuzz replay {where} {quote(str(path))}")
    sys.exit(1)


@main.command("replay", epilog=CODES)
@_options
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
def replay_command(subject: str, tier: str, flashinfer: str, files: tuple[Path, ...]) -> None:
    """Play histories from their files."""
    from conformance.core.subject import Unobservable
    from fuzz.player import play

    loaded, found, seen = _subject(subject), 0, 0
    histories = [(path, _read(path)) for path in files]
    for path, history in histories:
        try:
            where = _where(subject, tier, flashinfer, history.seed)
            again = f"python -m fuzz replay {where} {quote(str(path))}"
            played = play(history, loaded, _tier(tier, flashinfer)(history.seed), again)
        except Unobservable as problem:
            click.echo(f"{path}: not played ({problem})")
            continue
        except HistoryError as problem:
            raise HistoryError.of(path, problem) from problem
        seen += played.frames
        if played.finding:
            found += 1
            click.echo(f"{path}: {played.finding.frame}: {played.finding.message}")
        else:
            click.echo(f"{path}: {played.frames} steps, {played.rows} rows, all right")
    sys.exit(1 if found else 0 if seen else 2)


def _read(path: Path) -> History:
    try:
        return History.loads(path.read_text())
    except HistoryError as problem:
        raise HistoryError.of(path, problem) from problem
    except (OSError, UnicodeDecodeError) as problem:
        raise HistoryError(
            str(path), found=f"no readable file ({problem})", allowed="a history's JSON file",
            remedy="correct the path",
        ) from problem  # fmt: skip


def _tier(name: str, flashinfer: str) -> Any:
    """Return which tier a seed is played on: the twin in turn simulates each version."""
    from conformance import tiers
    from conformance.core.gpus import HOPPER, visible_capabilities

    if name == "hopper" and HOPPER not in visible_capabilities():
        click.echo(
            "not played: no GPU of compute capability 9.0 is visible; --tier twin needs none"
        )
        sys.exit(2)
    if flashinfer != "auto" and flashinfer not in tiers.VERSIONS:
        raise click.UsageError(
            f"flashinfer {flashinfer!r}: allowed: auto, {', '.join(tiers.VERSIONS)}"
        )
    return lambda seed: tiers.tier(name, tiers.simulated(seed, flashinfer))


def _where(subject: str, tier: str, flashinfer: str, seed: int) -> str:
    from conformance import tiers

    version = f" --flashinfer {tiers.simulated(seed, flashinfer)}" if tier == "twin" else ""
    return f"--subject {quote(subject)} --tier {tier}{version}"


def _reached(tally: Any) -> str:
    from fuzz.reach import possible

    reached, feasible = set(tally.reached), possible()
    return f"{len(reached & feasible)} of {len(feasible)} pairs of values reached"


main.add_command(mutants_command)


def entry() -> None:
    """Run, and leave with an exit code of ours: 3 where the command was asked wrongly."""
    try:
        main(standalone_mode=False)
    except click.ClickException as problem:
        problem.show()
        sys.exit(3)
    except click.Abort:
        sys.exit(3)
    except (HistoryError, SuiteError) as problem:
        click.echo(f"fuzz: {problem}", err=True)
        sys.exit(3)
