"""Does a golden set still hold: files whole, inputs drawn again byte-equal, outputs recomputed?"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from golden import manifest, standard, store
from golden.inputs import Inputs, draw_inputs
from golden.manifest import TOLERANCE, BrokenSet, Entry
from golden.oracle import attend
from golden.recipe import Recipe
from golden.refusal import Refused, refusal


@dataclass(frozen=True)
class Outcome:
    """What was seen of one case.

    problem: None where it holds. broken: whether its file, and not what is computed, is at fault.
    worst: the largest difference in units of what is allowed; 0 where nothing was recomputed.
    """

    name: str
    problem: str | None
    broken: bool
    worst: float


def check(folder: Path, names: list[str] | None = None) -> Iterator[Outcome]:
    """The outcome of each case, as it is seen; then one for the folder where files are there
    that the manifest does not list. In the canonical set's folder a standard case that is missing,
    or has another recipe, is broken.

    names: of the cases to look at; all where None. Raises BrokenSet for a manifest that cannot
    be read, or a name that it lacks.
    """
    wanted = {}
    if folder.resolve() == store.DATA.resolve():
        wanted = {recipe.name: recipe for recipe in standard.recipes()}
    entries = manifest.load(folder)
    known = [entry.recipe.name for entry in entries]
    for name in names or []:
        if name not in known:
            raise BrokenSet(str(folder), f"no case {name!r}", ", ".join(known), "name one of these")
    strangers = store.strangers(folder, entries)
    for entry in entries:
        if names is None or entry.recipe.name in names:
            recipe = wanted.get(entry.recipe.name, entry.recipe)
            yield check_case(folder, entry) if recipe == entry.recipe else _changed(entry, recipe)
    for name in wanted if names is None else ():
        if name not in known:
            yield _broken(name, "no such case", "every case of golden/standard.py", _STANDARD)
    if strangers:
        yield _broken(
            folder.name,
            f"{', '.join(strangers)}, unlisted",
            "the files that the manifest lists",
            "remove it, or add it as a case with `python -m golden add`",
        )


_STANDARD = (
    "restore the folder from version control, or `python -m golden regenerate --standard "
    "golden/data`"
)


def _changed(entry: Entry, recipe: Recipe) -> Outcome:
    """The outcome of a standard case that the manifest tells of as another one."""
    found, wanted = entry.recipe.as_dict(), recipe.as_dict()
    fields = [field for field in wanted if found[field] != wanted[field]]
    said, allowed = (", ".join(f"{f} {of[f]!r}" for f in fields) for of in (found, wanted))
    return _broken(recipe.name, said, f"{allowed}, as in golden/standard.py", _STANDARD)


def _broken(name: str, found: str, allowed: str, fix: str) -> Outcome:
    return Outcome(name, str(BrokenSet(name, found, allowed, fix)), True, 0.0)


def check_case(folder: Path, entry: Entry) -> Outcome:
    """The outcome of one case."""
    name = entry.recipe.name
    try:
        stored = store.read(folder, entry)
    except BrokenSet as problem:
        return Outcome(name, str(problem), True, 0.0)
    inputs = draw_inputs(entry.recipe)
    if different := different_inputs(inputs, entry):
        return Outcome(name, str(different), False, 0.0)
    worst, text = _compare(recomputed(inputs), stored, entry)
    return Outcome(name, text if not worst <= 1 else None, False, worst)


def different_inputs(inputs: Inputs, entry: Entry) -> Refused | None:
    """Which drawn input, or choice of kept outputs, is not the one that the manifest tells of."""
    drawn = {name: store.note(tensor, True) for name, tensor in inputs.tensors().items()}
    for name in sorted({*drawn, *entry.inputs}):
        found, wanted = drawn.get(name), entry.inputs.get(name)
        if found != wanted:
            return Refused(
                f"input {name}", f"{found}", f"{wanted}",
                "undo what changed golden's drawing, or the manifest",
            )  # fmt: skip
    if tuple(inputs.kept()) != entry.kept:
        return Refused(
            "kept outputs", f"{inputs.kept()}", f"{[*entry.kept]}", "restore the manifest"
        )
    return None


@dataclass(frozen=True, eq=False)
class Recomputed:
    """out, value_sq [pairs, ckv] of the kept pairs, lse [rows, heads]; float64, as in `Golden`."""

    out: torch.Tensor
    value_sq: torch.Tensor
    lse: torch.Tensor


def recomputed(inputs: Inputs) -> Recomputed:
    """The stored numbers anew. The oracle sees the kept heads alone; LSEs are formed here."""
    rows, heads = (list(part) for part in zip(*inputs.kept(), strict=True))
    shape, cache = (inputs.recipe.rows, -1), inputs.cache.decoded()
    golden = attend(
        inputs.q_nope[rows, heads].unflatten(0, shape),
        inputs.q_pe[rows, heads].unflatten(0, shape),
        *(cache, inputs.block_table, inputs.request, inputs.tokens),
        inputs.recipe.sm_scale,
        split=None,
    )
    queries = torch.cat([inputs.q_nope, inputs.q_pe], -1).double()
    lse = [
        (q @ cache.gather(slots).T * inputs.recipe.sm_scale).logsumexp(-1)
        for q, slots in zip(queries, inputs.slots(), strict=True)
    ]
    return Recomputed(golden.out.flatten(0, 1), golden.value_sq.flatten(0, 1), torch.stack(lse))


def _compare(now: Recomputed, stored: dict[str, torch.Tensor], entry: Entry) -> tuple[float, str]:
    """The largest difference in units of what is allowed, and what it is."""
    worst, text = 0.0, ""
    for name, found, unit in (
        ("out", now.out, now.value_sq.double().sqrt()),
        ("lse", now.lse, now.lse.abs().clamp(min=1.0)),
    ):
        ratio = (found - stored[name]).abs() / (TOLERANCE * unit)
        ratio[found == stored[name]] = 0.0
        ratio = ratio.nan_to_num(nan=torch.inf, posinf=torch.inf)
        at = divmod(int(ratio.argmax()), ratio.shape[1])
        if float(ratio[at]) >= worst:
            worst = float(ratio[at])
            place = f"row {at[0]} head {at[1]}"
            if name == "out":
                row, head = entry.kept[at[0]]
                place = f"row {row} head {head} dim {at[1]}"
            text = refusal(
                f"{name} of {place}",
                f"{float(found[at])!r}, recomputed",
                f"{float(stored[name][at])!r} +- {TOLERANCE * float(unit[at]):.3g}",
                "undo what changed golden's arithmetic, or the file",
            )
    return worst, text
