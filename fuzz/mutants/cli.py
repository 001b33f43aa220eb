"""The command `python -m fuzz mutants`."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

import click

from conformance.mutants.model import Mutant, MutantError, read_mutants

OWN = Path(__file__).parent
"""The folder of the mutants, the table and the list of single-step cases."""

_CODES = """

Exit codes: 0 every mutant was killed, 1 one survived, 3 a mutant is invalid, or the sources without
one are not green."""
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("mutants", epilog=_CODES)
@click.option("--mutants", "paths", multiple=True, type=click.Path(path_type=Path),
              help="A TOML file of them, or a folder of such. Default: our own.")  # fmt: skip
@click.option("--name", "names", multiple=True, help="Only this mutant; several times for more.")
@click.option("-n", "--workers", type=click.IntRange(1), default=os.cpu_count() or 1,
              show_default=True, help="Copies of the sources at work at a time.")  # fmt: skip
@click.option("--all-seeds", is_flag=True,
              help="Measure what the table lacks: all starting seeds.")  # fmt: skip
@click.option("--single-step", is_flag=True,
              help="See every single-step conformance case pass, where not seen yet.")  # fmt: skip
@click.option("--alone", is_flag=True, help="With --single-step: each in a copy of its own.")
@click.option("--count", is_flag=True, help="Find the single-step cases anew, which takes minutes.")
@click.option("--table", type=_FILE, default=OWN / "table.json", help="The table.")
@click.option("--cases", type=_FILE, default=OWN / "single-step.json", help="Single-step cases.")
def mutants_command(
    paths: tuple[Path, ...], names: tuple[str, ...], workers: int, all_seeds: bool,
    single_step: bool, alone: bool, count: bool, table: Path, cases: Path,
) -> None:  # fmt: skip
    """Plant history mutants: no single step shows them, and drawn histories must.

    Each is hunted with the plain profile from one starting seed, for three times the histories that
    the table says, 30 at least. A finding of a check kills; an exception that no check raised does
    not. What --all-seeds and --single-step find is kept as it comes, so that they may be stopped.
    """
    try:
        known = read_mutants(paths or [OWN])
        if unknown := set(names) - {mutant.name for mutant in known}:
            raise MutantError(f"no mutant named {', '.join(sorted(unknown))}")
        chosen = [mutant for mutant in known if not names or mutant.name in names]
        if count:
            code = _count(cases)
        elif single_step:
            code = _single(known, chosen, workers, cases, alone=alone)
        elif all_seeds:
            code = _measure(known, chosen, workers, table, whole=not names)
        else:
            code = _hunt(chosen, workers, table)
    except MutantError as problem:
        click.echo(f"error: {problem}")
        code = 3
    sys.exit(code)


def _each(
    work: Callable[[Any], Any], items: Sequence[Any], workers: int
) -> Iterator[tuple[Any, Any]]:
    """Yield (item, what its work returned) as they come."""
    with ThreadPoolExecutor(workers) as pool:
        try:
            futures = {pool.submit(work, item): item for item in items}
            for done in as_completed(futures):
                yield futures[done], done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _hunt(chosen: Sequence[Mutant], workers: int, table: Path) -> int:
    from fuzz.mutants.hunt import Fate, hunted, lanes
    from fuzz.mutants.table import LEAST, STARTS, read_table

    rows = read_table(table) if table.exists() else {}

    def work(mutant: Mutant | None) -> Any:
        if mutant is None:
            return lanes(None, {STARTS[0]: LEAST})[0]
        return hunted(mutant, rows.get(mutant.name))

    killed = 0
    for mutant, came in _each(work, [None, *chosen], workers):
        if mutant is None:
            if came.found or came.crashes:
                raise MutantError(f"the unchanged sources are not green: {came.found or 'a crash'}")
            continue
        killed += came.fate is Fate.KILLED
        click.echo(_line(f"{came.fate} {mutant.name}", came.lane))
    click.echo(f"{killed} of {len(chosen)} mutants killed")
    return 0 if killed == len(chosen) else 1


def _line(what: str, lane: Any) -> str:
    crashes = f", {lane.crashes} of them ended with an exception" if lane.crashes else ""
    said = f": {lane.found}" if lane.found else ""
    return f"{what} in {lane.histories} histories{crashes}{said}"


def _measure(
    known: Sequence[Mutant], chosen: Sequence[Mutant], workers: int, table: Path, *, whole: bool
) -> int:
    from fuzz.mutants.hunt import measured, needed, unchanged
    from fuzz.mutants.table import MOST, read_table, write_table

    rows = read_table(table) if table.exists() else {}
    by = {mutant.name: mutant for mutant in known}
    rows = {name: row for name, row in rows.items() if row.current(by.get(name))}
    missing = [mutant for mutant in chosen if mutant.name not in rows]
    for mutant, row in _each(measured, missing, workers):
        rows[mutant.name] = row
        write_table(table, rows.values(), known)
        click.echo(f"{mutant.name}: median {row.median:g}, most {row.largest}")
    late = [mutant.name for mutant in chosen if rows[mutant.name].median > MOST]
    if late:
        click.echo(f"not found within {MOST} histories: {', '.join(late)}")
    if not whole:
        return 1 if late else 0
    most, before = needed(rows), rows.get("")
    enough = before and all(lane.histories >= most[lane.start] for lane in before.lanes)
    rows[""] = before if before and enough else unchanged(most)
    write_table(table, rows.values(), known)
    lanes = rows[""].lanes
    if any(lane.found or lane.crashes for lane in lanes):
        raise MutantError(f"the unchanged sources are not green: {[x for x in lanes if x.found]}")
    click.echo(f"without a mutant {sum(x.histories for x in lanes)} histories, nothing found")
    return 1 if late else 0


def _count(cases: Path) -> int:
    from fuzz.mutants.single import counted, read_single, uses

    passed = read_single(cases).passed if cases.exists() else {}
    single = counted(uses([]), passed)
    single.write(cases)
    click.echo(_told(single))
    return 0


def _single(
    known: Iterable[Mutant], chosen: Sequence[Mutant], workers: int, cases: Path, *, alone: bool
) -> int:
    from fuzz.mutants.single import read_single, survives
    from fuzz.mutants.together import groups

    single, noticed = read_single(cases), 0
    click.echo(_told(single))
    missing = [mutant for mutant in chosen if not single.has(mutant, alone=alone)]
    rounds = [] if alone else [[*groups(missing)]]
    rounds.append([group for mutant in missing for group in groups([mutant])])
    for number, copies in enumerate(rounds):
        # What was noticed of a group is looked for in each of its members.
        copies = [c for c in copies if not all(single.has(m, alone=alone) for m in c.members)]
        work = partial(survives, single=single)
        for group, said in _each(work, copies, workers):
            if said:
                last = number == len(rounds) - 1
                noticed += last
                which = "is no history mutant" if last else "were noticed together"
                click.echo(f"{group.name} {which}: {said}")
                continue
            single = single.with_passed(group.members, known)
            single.write(cases)
            click.echo(f"passed by {group.name}")
    click.echo(f"{len(chosen) - noticed} of {len(chosen)} mutants pass every single-step case")
    return 3 if noticed else 0


def _told(single: Any) -> str:
    parts = (single.one, single.none, single.many)
    one, none, many = (sum(map(len, part.values())) for part in parts)
    return (
        f"{one} cases of {len(single.one)} requirements use an instance for one step at most, "
        f"{none} use none, {many} use one for more"
    )
