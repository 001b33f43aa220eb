"""The command `list`: the cases that a full run makes, or how many each requirement needs."""

from collections.abc import Iterable, Sequence
from functools import cache
from importlib import import_module

import click
from rich.console import Console
from rich.table import Table

from conformance.core.catalogue import REQUIREMENTS
from conformance.core.request import JUDGES, ROOT, known
from conformance.core.requirement import Judge

TIERS = ("twin", "hopper")


@cache
def judges() -> tuple[Judge, ...]:
    """Every requirement's judges, in the catalogue's order."""
    files = [path for folder in JUDGES for path in sorted(folder.glob("test_*.py"))]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files]
    modules = [import_module(name) for name in names]
    found = [
        value.judge
        for module in modules
        for name, value in vars(module).items()
        if name.startswith("test_") and isinstance(getattr(value, "judge", None), Judge)
    ]
    order = {id: place for place, id in enumerate(REQUIREMENTS)}
    return tuple(sorted(found, key=lambda judge: order[judge.requirement]))


def case_ids(tiers: Iterable[str] = TIERS, requirements: Sequence[str] = ()) -> list[str]:
    """The ids of the cases that a full run of these tiers makes, each once."""
    tiers = tuple(tiers)
    chosen = [j for j in judges() if not requirements or j.requirement in requirements]
    return list(dict.fromkeys(id for j in chosen for tier in tiers for id in j.cases(tier)))


@click.command("list")
@click.option("--tier", type=click.Choice(TIERS), help="Only the cases of this tier.")
@click.option("--requirement", "requirements", multiple=True, help="Only this requirement's.")
@click.option("--count", is_flag=True, help="The requirements with their minima, not the cases.")
def list_command(tier: str | None, requirements: tuple[str, ...], count: bool) -> None:
    """Tell which cases a full run makes, one id per line; each is a selector for run --case."""
    chosen = [known(id) for id in requirements]
    tiers = (tier,) if tier else TIERS
    if count:
        Console(soft_wrap=True, highlight=False).print(_table(tiers, chosen or [*REQUIREMENTS]))
        return
    for id in case_ids(tiers, chosen):
        click.echo(id)


def _table(tiers: Sequence[str], ids: Sequence[str]) -> Table:
    table = Table("id", "requirement")
    for tier in tiers:
        table.add_column(f"{tier}\nleast", justify="right")
    for id in ids:
        requirement = REQUIREMENTS[id]
        table.add_row(id, requirement.sentence, *(str(requirement.minimum(t)) for t in tiers))
    table.add_section()
    totals = (sum(REQUIREMENTS[id].minimum(tier) for id in ids) for tier in tiers)
    table.add_row("", f"{len(ids)} requirements", *map(str, totals))
    return table
