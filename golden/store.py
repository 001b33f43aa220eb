"""Files of a golden set: outputs as safetensors, written whole or not at all, read with care."""

import datetime
import hashlib
import os
import platform
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from golden import manifest
from golden.inputs import Inputs, digest, draw_inputs
from golden.manifest import SUFFIX, BrokenSet, Entry, Provenance, TensorNote
from golden.recipe import Recipe

DATA = Path(__file__).parent / "data"
"""The canonical set's folder."""
_RESTORE = "restore the file from version control, or regenerate the set"


def compute(inputs: Inputs, kept: Iterable[tuple[int, int]]) -> dict[str, torch.Tensor]:
    """What the set stores of a case: "out" of the kept pairs and "lse" of all rows and heads."""
    golden = inputs.attend()
    rows, heads = zip(*kept, strict=True)
    return {"out": golden.out[list(rows), list(heads)].contiguous(), "lse": golden.lse}


def make(recipe: Recipe) -> tuple[Entry, bytes]:
    """A case's entry and the content of its file."""
    inputs = draw_inputs(recipe)
    outputs = compute(inputs, inputs.kept())
    content = save(outputs)
    entry = Entry(
        recipe=recipe,
        inputs={name: note(tensor, True) for name, tensor in inputs.tensors().items()},
        kept=tuple(inputs.kept()),
        outputs={name: note(tensor, False) for name, tensor in outputs.items()},
        file=recipe.name + SUFFIX,
        file_bytes=len(content),
        file_sha256=hashlib.sha256(content).hexdigest(),
        provenance=Provenance(
            torch=torch.__version__,
            machine=f"{platform.system()} {platform.machine()}, "
            f"{torch.backends.cpu.get_cpu_capability()}",
            date=datetime.date.today().isoformat(),
        ),
    )
    return entry, content


def note(tensor: torch.Tensor, digested: bool) -> TensorNote:
    """What the manifest says of a tensor."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorNote(dtype, tuple(tensor.shape), digest(tensor) if digested else None)


def read(folder: Path, entry: Entry) -> dict[str, torch.Tensor]:
    """The stored outputs of a case.

    Raises BrokenSet where the file is missing, of another length or digest, or no such file as
    the manifest tells of.
    """
    path = folder / entry.file
    try:
        content = path.read_bytes()
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise BrokenSet(str(path), reason, "a file of outputs", _RESTORE) from None
    if len(content) != entry.file_bytes:
        raise BrokenSet(str(path), f"{len(content)} bytes", f"{entry.file_bytes}", _RESTORE)
    found = hashlib.sha256(content).hexdigest()
    if found != entry.file_sha256:
        raise BrokenSet(str(path), f"SHA-256 {found}", entry.file_sha256, _RESTORE)
    try:
        outputs = load(content)
    except SafetensorError as problem:
        raise BrokenSet(str(path), f"no safetensors ({problem})", "outputs", _RESTORE) from None
    recipe, pairs = entry.recipe, len(entry.kept)
    wanted = {
        "out": TensorNote("float64", (pairs, recipe.head_dim_ckv)),
        "lse": TensorNote("float64", (recipe.rows, recipe.num_heads)),
    }
    notes = {name: note(tensor, False) for name, tensor in outputs.items()}
    for said, by in ((notes, "the file"), (dict(entry.outputs), "the manifest")):
        if said != wanted:
            raise BrokenSet(str(path), f"{said} in {by}", f"{wanted}", _RESTORE)
    return outputs


def strangers(folder: Path, entries: Iterable[Entry]) -> list[str]:
    """Names in the folder that the manifest does not list."""
    listed = {manifest.NAME, *(entry.file for entry in entries)}
    return sorted({path.name for path in folder.iterdir()} - listed)


def write_set(folder: Path, recipes: Iterable[Recipe]) -> list[Entry]:
    """Write a whole set: beside the folder first, then in its place.

    Raises BrokenSet where there are no recipes, or the folder holds anything else than a golden
    set's files; these may be broken.
    """
    folder = folder.resolve()  # a link stays one, and "." has a name
    _replaceable(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as beside:
        new = Path(beside, "new")
        new.mkdir()
        entries = []
        for recipe in recipes:
            entry, content = make(recipe)
            (new / entry.file).write_bytes(content)
            entries.append(entry)
        if not entries:
            raise BrokenSet(str(folder), "no recipes", "one or more", "name what is to be written")
        (new / manifest.NAME).write_text(manifest.dump(entries))
        _replaceable(folder)  # making took minutes
        _swap(new, folder, Path(f"{beside}-old"))
    return entries


def _replaceable(folder: Path) -> None:
    """Raises BrokenSet where replacing the folder would delete what is not of a golden set."""
    allowed, fix = "an absent or empty folder, or a golden set", "name another folder"
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not (folder / manifest.NAME).is_file():
        raise BrokenSet(str(folder), "files but no manifest", allowed, fix)
    listed = manifest.listed(folder)
    others = [path.name for path in folder.iterdir() if path.name not in listed or path.is_dir()]
    if others:
        raise BrokenSet(
            str(folder), f"{', '.join(sorted(others))}, not of the set", allowed,
            f"move them elsewhere, or {fix}",
        )  # fmt: skip


def _swap(new: Path, folder: Path, old: Path) -> None:
    """Put `new` in the folder's place; what was there waits in `old`, which nothing else deletes,
    and comes back where that fails."""
    try:
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
    except BaseException:
        if old.exists() and not folder.exists():
            old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def append(folder: Path, recipe: Recipe) -> Entry:
    """Add a case to a set: its file first, then the manifest, each in one step.

    Raises BrokenSet where the set is broken or has a case of that name.
    """
    entries = manifest.load(folder)
    if recipe.name in [entry.recipe.name for entry in entries]:
        raise BrokenSet(
            str(folder), f"a case {recipe.name!r} already", "a new name", "choose another name"
        )
    entry, content = make(recipe)
    _replace(folder / entry.file, content)
    _replace(folder / manifest.NAME, manifest.dump([*entries, entry]).encode())
    return entry


def _replace(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink()
        raise
