"""The command line: `python -m golden check`, `regenerate` and `add`.

Needs click and safetensors, which golden's library part does not.
"""

import sys
import tomllib
import traceback
from pathlib import Path
from typing import NoReturn

import click

from golden.refusal import Refused, missing_package

HOLDS, DIFFERS, BROKEN = 0, 1, 3
CODES = """

Exit codes: 0 the set holds, 1 something drawn or computed differs, 3 asked wrongly, or the set is
broken: a file is missing, cut off, edited or unlisted."""

_DATA = Path(__file__).parent / "data"
_FOLDER = click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default=_DATA,
    help="Folder of the golden set. Default: golden/data.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Canonical cases: inputs drawn from recipes, outputs stored in float64."""


@main.command("check", epilog=CODES)
@_FOLDER
@click.option("--case", "names", multiple=True, help="Look at this case alone; repeatable.")
def check_command(data: Path, names: tuple[str, ...]) -> None:
    """Read every file, draw every input again, recompute every stored output."""
    import torch

    from golden.check import check

    torch.set_num_threads(1)  # the cases are small: more threads wait for each other
    code, seen, worst = HOLDS, 0, 0.0
    for outcome in check(data, [*names] or None):
        seen += 1
        worst = max(worst, outcome.worst)
        if outcome.problem is None:
            click.echo(f"holds    {outcome.name}  {outcome.worst:.2f} of the tolerance")
            continue
        code = max(code, BROKEN if outcome.broken else DIFFERS)
        word = "BROKEN " if outcome.broken else "DIFFERS"
        click.echo(f"{word}  {outcome.name}  {outcome.problem}")
    verdict = {HOLDS: "the set holds", DIFFERS: "the set differs", BROKEN: "the set is broken"}
    click.echo(f"{seen} cases, worst difference {worst:.2f} of the tolerance: {verdict[code]}")
    sys.exit(code)


@main.command("regenerate", epilog=CODES)
@_FOLDER
@click.option("--standard", is_flag=True, help="The cases of golden/standard.py alone.")
@click.argument("into", type=click.Path(path_type=Path, file_okay=False))
def regenerate_command(data: Path, standard: bool, into: Path) -> None:
    """Write all cases of the set anew to the folder INTO: all of them, or nothing."""
    from golden import manifest
    from golden import standard as built_in
    from golden.store import write_set

    recipes = built_in.recipes() if standard else [entry.recipe for entry in manifest.load(data)]
    entries = write_set(into, recipes)
    total = sum(entry.file_bytes for entry in entries)
    click.echo(f"{len(entries)} cases, {total / 1e6:.1f} MB, in {into}")


@main.command("add", epilog=CODES)
@_FOLDER
@click.option("--like", help="A case of the set to take the fields from that RECIPE lacks.")
@click.argument("recipe", type=click.Path(path_type=Path, dir_okay=False))
def add_command(data: Path, like: str | None, recipe: Path) -> None:
    """Add the case that the TOML file RECIPE describes: the fields of golden/recipe.py."""
    from golden import manifest
    from golden.manifest import BrokenSet
    from golden.recipe import Recipe
    from golden.store import append

    try:
        found = tomllib.loads(recipe.read_text())
    except (OSError, ValueError) as problem:
        raise BrokenSet(
            str(recipe), str(problem), "a TOML file of a recipe's fields", "correct the file"
        ) from None
    if like is not None:
        known = {entry.recipe.name: entry.recipe for entry in manifest.load(data)}
        if like not in known:
            raise BrokenSet("--like", f"no case {like!r}", ", ".join(known), "name one of these")
        base = known[like].as_dict()
        del base["name"], base["key"]
        found = base | found
    entry = append(data, Recipe.from_dict(found))
    click.echo(f"added {entry.recipe.name}: {entry.file_bytes} bytes in {data / entry.file}")


def entry() -> NoReturn:
    """Run the command line; whatever was asked wrongly, or is broken, ends with 3."""
    try:
        main(standalone_mode=False)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.ClickException as problem:
        problem.show()
    except click.Abort:
        click.echo("stopped", err=True)
    except ModuleNotFoundError as problem:
        click.echo(missing_package(problem), err=True)
    except Exception as problem:  # Python's own exit code for these would read as a difference
        if isinstance(problem, Refused):
            click.echo(str(problem), err=True)
        else:
            traceback.print_exc()
    else:
        sys.exit(HOLDS)
    sys.exit(BROKEN)
