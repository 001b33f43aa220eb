"""The manifest of a golden set: what was drawn, what is stored, by whom; JSON with a schema number.

Inputs are not stored. They are drawn again from a case's recipe, and their SHA-256 stands here;
so does that of each file of outputs.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from golden.recipe import Recipe, RecipeError
from golden.refusal import Refused

T = TypeVar("T")

NAME = "manifest.json"
SUFFIX = ".safetensors"
SCHEMA = 1
GENERATOR = "golden.inputs 1 (SplitMix64)"
TOLERANCE = 1e-12
"""How far a recomputed float64 may lie from a stored one: of sqrt(sum p v^2) for outputs (sums in
another order differ by parts of that, whatever cancels), of max(1, |lse|) for LSEs."""


class BrokenSet(Refused):
    """A golden set that cannot be read as one: found, allowed, to fix."""


@dataclass(frozen=True)
class TensorNote:
    """A tensor's dtype and shape and, where it is drawn again, the SHA-256 of its bytes."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str | None = None


@dataclass(frozen=True)
class Provenance:
    """Who computed the stored outputs: torch's version, machine kind, day (ISO 8601)."""

    torch: str
    machine: str
    date: str


@dataclass(frozen=True)
class Entry:
    """One case of the set.

    kept: (row, head) pairs whose outputs are stored, in the order of the file's "out".
    file, file_bytes, file_sha256: the safetensors file with "out" float64 [pairs, ckv] and
        "lse" float64 [rows, heads], natural log.
    """

    recipe: Recipe
    inputs: Mapping[str, TensorNote]
    kept: tuple[tuple[int, int], ...]
    outputs: Mapping[str, TensorNote]
    file: str
    file_bytes: int
    file_sha256: str
    provenance: Provenance


def dump(entries: list[Entry]) -> str:
    """The manifest's text; a case is a line."""
    head = {"schema": SCHEMA, "generator": GENERATOR, "tolerance": TOLERANCE}
    lines = ",\n".join(json.dumps(_entry_dict(entry)) for entry in entries)
    return json.dumps(head)[:-1] + ', "cases": [\n' + lines + "\n]}\n"


def load(folder: Path) -> list[Entry]:
    """The cases of the set in `folder`, in its order, at least one. Raises BrokenSet."""
    path, found = folder / NAME, _read(folder)
    if found["tolerance"] != TOLERANCE:
        raise BrokenSet(str(path), f"tolerance {found['tolerance']!r}", f"{TOLERANCE}", _RESTORE)
    entries = [_entry(f"{path}, case {i}", case) for i, case in enumerate(found["cases"])]
    if not entries:
        raise BrokenSet(str(path), "no cases", "one or more", _RESTORE)
    for what in ("name", "file"):
        names = [entry.recipe.name if what == "name" else entry.file for entry in entries]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise BrokenSet(str(path), f"{what} {twice[0]!r} twice", "each once", _RESTORE)
    return entries


def listed(folder: Path) -> set[str]:
    """The files that belong to the set in `folder`, its manifest among them, whether or not they,
    or the cases that they belong to, are whole. Raises BrokenSet where the manifest is none of
    golden's."""
    files = [case.get("file") for case in _read(folder)["cases"] if isinstance(case, dict)]
    names = [file.get("name") for file in files if isinstance(file, dict)]
    return {NAME, *(name for name in names if isinstance(name, str) and name.endswith(SUFFIX))}


def _read(folder: Path) -> dict[str, Any]:
    """The manifest's JSON, golden's by its fields, schema and generator. Raises BrokenSet."""
    path = folder / NAME
    try:
        found = json.loads(path.read_text())
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise BrokenSet(str(path), reason, "a manifest", "name the set's folder") from None
    except ValueError as problem:
        raise BrokenSet(str(path), f"no JSON ({problem})", "a whole manifest", _RESTORE) from None
    head = _fields(str(path), found, {"schema": int}, others=True)
    if head["schema"] != SCHEMA:
        raise BrokenSet(
            str(path),
            f"schema {head['schema']}",
            str(SCHEMA),
            "check out the suite of that schema, or regenerate the set into an empty folder",
        )
    kinds = {"schema": int, "generator": str, "tolerance": float, "cases": list}
    head = _fields(str(path), found, kinds)
    if head["generator"] != GENERATOR:
        raise BrokenSet(str(path), f"generator {head['generator']!r}", repr(GENERATOR), _RESTORE)
    return head


_RESTORE = "restore the file from version control, or regenerate the set into an empty folder"


def _entry_dict(entry: Entry) -> dict[str, Any]:
    def notes(of: Mapping[str, TensorNote]) -> dict[str, Any]:
        return {
            name: {"dtype": note.dtype, "shape": [*note.shape]}
            | ({} if note.sha256 is None else {"sha256": note.sha256})
            for name, note in of.items()
        }

    return {
        "recipe": entry.recipe.as_dict(),
        "inputs": notes(entry.inputs),
        "kept": [[*pair] for pair in entry.kept],
        "outputs": notes(entry.outputs),
        "file": {"name": entry.file, "bytes": entry.file_bytes, "sha256": entry.file_sha256},
        "provenance": vars(entry.provenance),
    }


def _entry(what: str, found: Any) -> Entry:
    kinds = dict.fromkeys(("recipe", "inputs", "outputs", "file", "provenance"), dict)
    case = _fields(what, found, {**kinds, "kept": list})
    try:
        recipe = Recipe.from_dict(case["recipe"])
    except RecipeError as problem:
        what = f"{what}, {problem.what}"
        raise BrokenSet(what, problem.found, problem.allowed, _RESTORE) from None
    what = f"{what} ({recipe.name})"
    file = _fields(what, case["file"], {"name": str, "bytes": int, "sha256": str})
    if file["name"] != recipe.name + SUFFIX:
        raise BrokenSet(what, f"file {file['name']!r}", recipe.name + SUFFIX, _RESTORE)
    by = _fields(what, case["provenance"], {"torch": str, "machine": str, "date": str})
    return Entry(
        recipe=recipe,
        inputs={
            name: _note(f"{what}, input {name}", note, digest=True)
            for name, note in case["inputs"].items()
        },
        kept=tuple(_pair(what, pair, recipe) for pair in case["kept"]),
        outputs={
            name: _note(f"{what}, output {name}", note, digest=False)
            for name, note in case["outputs"].items()
        },
        file=file["name"],
        file_bytes=file["bytes"],
        file_sha256=file["sha256"],
        provenance=Provenance(**by),
    )


def _note(what: str, found: Any, *, digest: bool) -> TensorNote:
    kinds: dict[str, type] = {"dtype": str, "shape": list}
    note = _fields(what, found, kinds | ({"sha256": str} if digest else {}))
    if not all(type(size) is int and size >= 0 for size in note["shape"]):
        raise BrokenSet(what, f"shape {note['shape']}", "sizes of 0 or more", _RESTORE)
    return TensorNote(note["dtype"], tuple(note["shape"]), note.get("sha256"))


def _pair(what: str, found: Any, recipe: Recipe) -> tuple[int, int]:
    limits = (recipe.rows, recipe.num_heads)
    fits = isinstance(found, list) and len(found) == 2
    if not fits or not all(
        type(at) is int and 0 <= at < limit for at, limit in zip(found, limits, strict=True)
    ):
        raise BrokenSet(what, f"kept {found!r}", f"[row, head] below {[*limits]}", _RESTORE)
    return found[0], found[1]


def _fields(
    what: str, found: Any, kinds: Mapping[str, type], *, others: bool = False
) -> dict[str, Any]:
    """The fields of a JSON object, each of its type. Raises BrokenSet for others."""
    if not isinstance(found, dict):
        raise BrokenSet(what, f"a {type(found).__name__}", "an object", _RESTORE)
    missing = sorted({*kinds} - {*found})
    unknown = [] if others else sorted({*found} - {*kinds})
    if missing or unknown:
        raise BrokenSet(
            what,
            f"fields missing {missing}, unknown {unknown}",
            ", ".join(kinds),
            _RESTORE,
        )
    for name, kind in kinds.items():
        if type(found[name]) is not kind:
            raise BrokenSet(what, f"{name} {found[name]!r}", f"a {kind.__name__}", _RESTORE)
    return found
