"""The kill matrix: which requirements notice which mutant, and what each requirement proves.

A requirement is proven by a mutant that it kills and that no requirement before it notices, in the
catalogue's order. A row is what one run of the suite over one mutant showed; rows come from many
runs and machines and lie in one JSON file, each with the environment of its run.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from conformance.core.case import parse
from conformance.core.catalogue import ALIVE
from conformance.core.record import Outcome
from conformance.core.run import Exit
from conformance.listing import case_ids
from conformance.mutants.copies import run_copy
from conformance.mutants.hunt import provable
from conformance.mutants.model import Mutant, MutantError

SCHEMA = "smla-kill-matrix/1"
_MINUTES = 180
_MESSAGE = 300


@dataclass(frozen=True)
class Row:
    """A mutant's row. lane: how kernels ran; cases_per_id: of ids not named, 0 for all.

    tried: the ids that had cases. killed: id -> the case whose check failed first. broken: id ->
    the case that crashed or hung, where no check failed; it notices but does not kill. environment:
    of the run, the suite's commit among it.
    """

    mutant: str
    digest: str
    requirement: str
    lane: str
    cases_per_id: int
    tried: Sequence[str]
    killed: Mapping[str, str]
    broken: Mapping[str, str]
    environment: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def first_killer(self, order: Sequence[str]) -> str | None:
        """The first id of `order` that notices it; None if that one only breaks, or was not tried.

        An id before it that was not tried might have noticed, so nothing follows then.
        """
        for id in order:
            if id not in self.tried or id in self.broken:
                return None
            if id in self.killed:
                return id
        return None


def matrix(
    mutants: Sequence[Mutant],
    workers: int,
    cases_per_id: int,
    prior: bool,
    environment: Mapping[str, Any],
    told: Callable[[Mutant, Row | str], None],
) -> list[Row]:
    """Return a row for each mutant that could be tried; `told` gets each, or what went wrong.

    prior: leave out the ids behind the named one, which cannot be the first to notice.
    Raises MutantError for a mutant that does not fit the sources.
    """
    rows: dict[str, Row] = {}
    with ThreadPoolExecutor(workers) as pool:
        try:
            futures = {
                pool.submit(_row, mutant, cases_per_id, prior, environment): mutant
                for mutant in mutants
            }
            for done in as_completed(futures):
                mutant, row = futures[done], done.result()
                told(mutant, row)
                if isinstance(row, Row):
                    rows[mutant.name] = row
        finally:
            pool.shutdown(cancel_futures=True)
    return [rows[mutant.name] for mutant in mutants if mutant.name in rows]


def _row(
    mutant: Mutant, cases_per_id: int, prior: bool, environment: Mapping[str, Any]
) -> Row | str:
    order = provable()
    if prior and mutant.requirement in order:
        order = order[: order.index(mutant.requirement) + 1]
    cases = [f"--case={id}" for id in sample(cases_per_id, [ALIVE, mutant.requirement], order)]
    ran = run_copy(mutant, mutant.lane, ["--first-failure-each", *cases], minutes=_MINUTES)
    if ran.code == Exit.SUITE_FAILED or not ran.records:
        return f"the suite failed: {ran.output[-2000:]}"
    if not ran.alive(ALIVE):
        said = "; ".join(r.message for r in ran.of(ALIVE) if r.outcome is not Outcome.PASS)
        return f"does not pass {ALIVE}: {said}"
    killed: dict[str, str] = {}
    broken: dict[str, str] = {}
    for record in ran.records:
        if record.outcome is Outcome.FAIL:
            killed.setdefault(record.requirement, record.case)
        elif record.failed:
            broken.setdefault(record.requirement, record.case)
    judged = {r.requirement for r in ran.records if r.failed or r.outcome is Outcome.PASS}
    return Row(
        mutant=mutant.name,
        digest=mutant.digest,
        requirement=mutant.requirement,
        lane=mutant.lane,
        cases_per_id=cases_per_id,
        tried=[id for id in provable() if id in judged],
        killed={id: killed[id] for id in provable() if id in killed},
        broken={id: broken[id] for id in provable() if id in broken and id not in killed},
        environment=dict(environment),
        seconds=round(sum(r.seconds or 0.0 for r in ran.records), 1),
    )


def sample(cases_per_id: int, whole: Sequence[str], ids: Sequence[str]) -> list[str]:
    """The twin's first cases of each of these ids, all of them where 0, and all of `whole`."""
    taken: dict[str, int] = {}
    chosen = []
    for case in case_ids(["twin"], [*whole, *ids]):
        id = parse(case).requirement
        taken[id] = taken.get(id, 0) + 1
        if not cases_per_id or taken[id] <= cases_per_id or id in whole:
            chosen.append(case)
    return chosen


def proven(rows: Iterable[Row], order: Sequence[str]) -> dict[str, list[str]]:
    """The mutants whose first killer each id is, for every id of `order`."""
    found: dict[str, list[str]] = {id: [] for id in order}
    for row in rows:
        killer = row.first_killer(order)
        if killer:
            found[killer].append(row.mutant)
    return found


def read_matrix(path: Path) -> list[Row]:
    """Return a file's rows; raise MutantError unless it is a kill matrix of this schema."""
    try:
        value = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError) as problem:
        raise MutantError(f"{path}: {problem}") from problem
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise MutantError(f"{path}: found no kill matrix of schema {SCHEMA}; to fix: run it anew")
    try:
        environments = value["environments"]
        return [
            Row(**{**row, "environment": environments[row["environment"]]}) for row in value["rows"]
        ]
    except (KeyError, IndexError, TypeError) as problem:
        raise MutantError(f"{path}: a row lacks or has too much: {problem}") from problem


def write_matrix(path: Path, rows: Iterable[Row]) -> None:
    """Write rows, each environment once; the file is whole at any time."""
    environments: list[Mapping[str, Any]] = []
    lines = []
    for row in rows:
        if row.environment not in environments:
            environments.append(row.environment)
        lines.append(
            json.dumps({**asdict(row), "environment": environments.index(row.environment)})
        )
    text = (
        f'{{"schema": {json.dumps(SCHEMA)},\n"environments": {json.dumps(environments)},\n'
        '"rows": [\n' + ",\n".join(lines) + "\n]}\n"
    )
    whole = path.with_suffix(".whole")
    whole.write_text(text)
    os.replace(whole, path)


def merged(old: Iterable[Row], new: Iterable[Row], mutants: Iterable[Mutant]) -> list[Row]:
    """Rows of the mutants that are, in their order: of two with the right digest the newer one."""
    best = {(row.mutant, row.digest): row for row in (*old, *new)}
    keys = [(mutant.name, mutant.digest) for mutant in mutants]
    return [best[key] for key in keys if key in best]
