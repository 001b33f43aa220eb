"""The command line: `python -m fuzz COMMAND`, with the suite's exit codes."""

import signal
import sys
from pathlib import Path
from shlex import quote
from typing import Any, ClassVar

import click
from rich.console import Console

from conformance.core.record import RecordError
from conformance.core.request import Identity, SuiteError
from conformance.lazy import LazyGroup
from fuzz.history import History, HistoryError

CODES = """

Exit codes: 0 nothing was found, 1 something was, 2 nothing was played, or less than was asked for,
3 asked wrongly."""
_TIERS = click.Choice(["twin", "hopper"])


def factory_of(name: str) -> tuple[str, Identity]:
    """Return a subject's factory and who it is; raise SuiteError for one that cannot be judged."""
    from conformance.core.run import identify
    from conformance.subjects import factory_of as named
    from conformance.subjects import own_identity

    factory = named(name)
    # In a process of its own: one that is broken is refused here.
    return factory, own_identity(name) or identify(factory, name)


def load(name: str) -> Any:
    """Return a subject by its name on the command line."""
    import torch

    from conformance.core.allocator import keep_freed_memory
    from conformance.core.worker import load_subject

    torch.set_num_threads(1)  # steps are small: more threads would only wait for each other
    keep_freed_memory()
    factory, _ = factory_of(name)
    return load_subject(factory)


def options(command: Any) -> Any:
    """Add the options that every command has."""
    for option in (
        click.option("--subject", default="smla", show_default=True, help="As of conformance run."),
        click.option("--tier", type=_TIERS, default="twin", show_default=True),
        click.option("--flashinfer", default="auto", help="Version that the twin simulates."),
    ):
        command = option(command)
    return command


class Commands(LazyGroup):
    """The commands that are elsewhere."""

    elsewhere: ClassVar[dict[str, str]] = {
        "merge": "fuzz.lane.cli:merge_command",
        "mutants": "fuzz.mutants.cli:mutants_command",
        "run": "fuzz.lane.cli:run_command",
    }


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Play serving histories with faults in them, and hold every row against golden."""


@main.command("hunt", epilog=CODES)
@options
@click.option("--profile", type=click.Choice(["ci", "fuzz", "deep"]), default="ci",
              show_default=True, help="How long to look.")  # fmt: skip
@click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("fuzz-findings"),
    show_default=True,
    help="Folder for the history that was found.",
)
@click.option("--database",
              help="Where findings are kept, to come first: a folder, or redis://HOST:PORT/N. "
              "Default: .hypothesis; none for ci.")  # fmt: skip
def hunt_command(
    subject: str, tier: str, flashinfer: str, profile: str, keep: Path, database: str | None
) -> None:
    """Let Hypothesis look for a finding, and shrink it to a short history.

    On the twin one version of FlashInfer is simulated: 0.7.2.post1, unless told otherwise.
    """
    from conformance.core.subject import Unobservable
    from fuzz.database import database_of
    from fuzz.findings import keep as kept
    from fuzz.machine import hunt
    from fuzz.telling import told

    if database is not None and profile == "ci":
        raise click.UsageError("profile ci is the same each time, so it takes no --database")
    kept_in = None if database is None else database_of(database)
    loaded, chosen = load(subject), tier_of(tier, flashinfer)(2)
    seen: list[bool] = []
    try:
        found = hunt(profile, loaded, chosen, kept_in, seen.append)
    except Unobservable as problem:
        click.echo(f"nothing played: the subject does not show {problem}")
        sys.exit(2)
    if found is None:
        click.echo(f"nothing found with profile {profile} in {len(seen)} histories")
        sys.exit(0)
    history, finding = found
    path = kept(keep, history, told(history, finding))
    click.echo(f"found by history {seen.index(True) + 1} of {len(seen)}")
    click.echo(f"found in {path}: {told(history, finding)}")
    version = f" --flashinfer {chosen.simulates}" if tier == "twin" else ""
    at = f"--subject {quote(subject)} --tier {tier}{version}"
    click.echo(f"  replay   python -m fuzz replay {at} {quote(str(path))}")
    sys.exit(1)


@main.command("replay", epilog=CODES)
@options
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
def replay_command(subject: str, tier: str, flashinfer: str, files: tuple[Path, ...]) -> None:
    """Play histories from their files."""
    from conformance.core.subject import Unobservable
    from fuzz.player import play
    from fuzz.telling import told

    loaded, found, seen = load(subject), 0, 0
    histories = [(path, _read(path)) for path in files]
    for path, history in histories:
        try:
            at = where(subject, tier, flashinfer, history.seed)
            again = f"python -m fuzz replay {at} {quote(str(path))}"
            played = play(history, loaded, tier_of(tier, flashinfer)(history.seed), again)
        except Unobservable as problem:
            click.echo(f"{path}: not played ({problem})")
            continue
        except HistoryError as problem:
            raise HistoryError.of(path, problem) from problem
        seen += played.frames
        if played.finding:
            found += 1
            click.echo(f"{path}: {told(history, played.finding)}")
        else:
            click.echo(f"{path}: {played.frames} steps, {played.rows} rows, all right")
    sys.exit(1 if found else 0 if seen else 2)


@main.command("shrink", epilog=CODES)
@options
@click.option("--tries", type=click.IntRange(1), default=400, show_default=True,
              help="Histories to play, at most.")  # fmt: skip
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
def shrink_command(
    subject: str, tier: str, flashinfer: str, tries: int, files: tuple[Path, ...]
) -> None:
    """Make histories that are findings as small as they can be and still be the same finding.

    The smallest of FILE goes into history-SEED-small.json beside it.
    """
    from fuzz.shrink import small

    loaded, ends = load(subject), [0, 0]
    for path, history in [(path, _read(path)) for path in files]:
        at = where(subject, tier, flashinfer, history.seed)
        chosen, kept = tier_of(tier, flashinfer), small(path, history)
        found, seen = shrunk(path, history, loaded, chosen, kept, at, tries=tries)
        ends = [ends[0] + found, ends[1] + seen]
    sys.exit(1 if ends[0] else 0 if ends[1] else 2)


def shrunk(
    path: Path, history: History, subject: Any, tier: Any, kept: Path, at: str, tries: int = 400
) -> tuple[int, int]:
    """Shrink a history that is a finding, keep and tell of the smallest.

    path: where it came from. tier: as `tier_of` gives it. kept: where the smallest goes. at:
    options of the command that plays it. Returns how many findings there were, 0 or 1, and steps.
    """
    from conformance.core.subject import Unobservable
    from fuzz import shrink
    from fuzz.player import play
    from fuzz.telling import told

    again, chosen = f"python -m fuzz replay {at} {quote(str(kept))}", tier(history.seed)
    try:
        played = play(history, subject, chosen, again)
    except Unobservable as problem:
        click.echo(f"{path}: not played ({problem})")
        return 0, 0
    except HistoryError as problem:
        raise HistoryError.of(path, problem) from problem
    if played.finding is None:
        click.echo(f"{path}: {played.frames} steps, all right: nothing to shrink")
        return 0, played.frames
    small = shrink.smallest(history, played.finding, subject, chosen, tries=tries, again=again)
    shrink.keep(kept, small)
    click.echo(f"{path}: {small.tries} tries, the smallest is {kept}")
    click.echo(told(small.history, small.finding))
    return 1, played.frames


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


def nothing_without_hopper() -> None:
    """Say that there is no GPU to play on, and leave with 2."""
    click.echo("not played: no GPU of compute capability 9.0 is visible; --tier twin needs none")
    sys.exit(2)


def known_version(flashinfer: str) -> None:
    """Raise click.UsageError for a version that the twin does not simulate."""
    from conformance import tiers

    if flashinfer != "auto" and flashinfer not in tiers.VERSIONS:
        raise click.UsageError(
            f"flashinfer {flashinfer!r}: allowed: auto, {', '.join(tiers.VERSIONS)}"
        )


def tier_of(name: str, flashinfer: str) -> Any:
    """Return which tier a seed is played on: the twin in turn simulates each version."""
    from conformance import tiers
    from conformance.core.gpus import HOPPER, visible_capabilities

    if name == "hopper" and HOPPER not in visible_capabilities():
        nothing_without_hopper()
    known_version(flashinfer)
    return lambda seed: tiers.tier(name, tiers.simulated(seed, flashinfer))


def where(subject: str, tier: str, flashinfer: str, seed: int) -> str:
    """Return the options that say where a seed was played."""
    from conformance import tiers

    version = f" --flashinfer {tiers.simulated(seed, flashinfer)}" if tier == "twin" else ""
    return f"--subject {quote(subject)} --tier {tier}{version}"


def entry() -> None:
    """Run, and leave with an exit code of ours: 3 where the command was asked wrongly."""
    # As an interrupt: the processes that a run has started end with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main(standalone_mode=False)
    except click.ClickException as problem:
        problem.show()
        sys.exit(3)
    except click.Abort:
        sys.exit(3)
    except (HistoryError, RecordError, SuiteError) as problem:
        click.echo(f"fuzz: {problem}", err=True)
        sys.exit(3)
    except Exception:  # Python's own exit code for these would read as a finding
        Console(stderr=True).print_exception()
        sys.exit(3)
