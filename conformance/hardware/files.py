"""A hardware record's folder: one .safetensors per scene and a manifest; whole, or refused.

The manifest names every file with its SHA-256 and ends with a seal, the SHA-256 of all the rest of
it: what was cut or edited by accident is found, though nothing here is signed.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from conformance.hardware.errors import refusal
from conformance.hardware.fields import misfit
from conformance.hardware.recording import ARRAYS, Call, SceneRecord
from conformance.hardware.scenes import Scene, digest

SCHEMA = "smla-hardware-record/1"
MANIFEST = "manifest.json"
MOST_BYTES = 1_000_000
"""Bytes that a record may take: one is kept for each FlashInfer version."""

_TENSORS = frozenset(
    {
        *("plan.qo_indptr", "plan.kv_indptr", "plan.kv_len"),
        *(f"{when}.{name}" for when in ("staged", "clamped") for name in ARRAYS),
        *("kv_indptr", "kv_indices", "counts", "contexts"),
        *("engine_out", "partial_o", "partial_lse"),
    }
)
_AGAIN = "copy the whole folder again, or record again"


@dataclass(frozen=True)
class Origin:
    """Where a record is from.

    made_on: the tier, "hopper" or "twin". flashinfer: its version. kernel: the fingerprint of its
    kernel's sources (`conformance.twin.semantics.fingerprint`). environment: of the process.
    """

    made_on: str
    flashinfer: str
    kernel: str
    subject: str
    subject_version: str
    environment: Mapping[str, Any]


@dataclass(frozen=True)
class HardwareRecord:
    """A whole record: its origin, and its scenes by name."""

    origin: Origin
    scenes: Mapping[str, SceneRecord]


def check_free(folder: Path) -> None:
    """Raise HardwareError where `write` would meet something."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise refusal(
            f"--out {folder}",
            found="something there",
            allowed="a folder that does not exist yet, or an empty one",
            remedy="name another one, or delete it first",
        )


def write(record: HardwareRecord, scenes: Sequence[Scene], folder: Path) -> int:
    """Write a record of these scenes, all of it or nothing; return its size in bytes."""
    check_free(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        draft.chmod(0o755)
        entries = {}
        for name, scene in record.scenes.items():
            content = save(dict(scene.tensors))
            (draft / _file(name)).write_bytes(content)
            entries[name] = {
                "file": _file(name),
                "sha256": hashlib.sha256(content).hexdigest(),
                "inputs": dict(scene.inputs),
                "call": asdict(scene.call),
                "plan_info": list(scene.plan_info),
                "flags": list(scene.flags),
            }
        told = {
            "schema": SCHEMA,
            **asdict(record.origin),
            "scenes": digest(scenes),
            "records": entries,
        }
        text = json.dumps({**told, "seal": _seal(told)}, indent=1) + "\n"
        (draft / MANIFEST).write_text(text)
        size = sum(path.stat().st_size for path in draft.iterdir())
        if size > MOST_BYTES:
            raise refusal(
                f"--out {folder}",
                found=f"a record of {size} bytes",
                allowed=f"{MOST_BYTES}",
                remedy="keep fewer rows of each scene (conformance/hardware/scenes.py)",
            )
        os.rename(draft, folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return size


def read(folder: Path, scenes: Sequence[Scene]) -> HardwareRecord:
    """Return the record in a folder, if it is whole and of these scenes; raise HardwareError."""
    told = _manifest(folder)
    if told["scenes"] != digest(scenes):
        raise refusal(
            f"{folder / MANIFEST}",
            found=f"scenes of digest {str(told['scenes'])[:16]}",
            allowed=f"{digest(scenes)[:16]}, this suite's",
            remedy=f"replay it with the suite it is from (commit "
            f"{told['environment']['commit']}), or record again",
        )
    names, wanted = [*told["records"]], [scene.name for scene in scenes]
    if names != wanted:
        raise refusal(
            f"{folder / MANIFEST}", found=ascii(names), allowed=f"{wanted}", remedy=_AGAIN
        )
    strangers = {path.name for path in folder.iterdir()} - {MANIFEST, *map(_file, wanted)}
    if strangers:
        raise refusal(
            f"{folder}",
            found=f"files that the manifest does not name: {', '.join(sorted(strangers))}",
            allowed="a manifest and its scenes' files",
            remedy="move them elsewhere",
        )
    found = {name: _scene(folder, name, entry) for name, entry in told["records"].items()}
    origin = Origin(**{name: told[name] for name in Origin.__dataclass_fields__})
    return HardwareRecord(origin, found)


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        told = json.loads(path.read_text())
        seal = told.pop("seal", None) if isinstance(told, dict) else None
        content = _seal(told)
    except OSError as problem:
        raise refusal(
            f"{path}",
            found=f"no file to read ({problem.strerror})",
            allowed="a folder that `conformance record` wrote",
            remedy="name the folder that holds the manifest, or copy it whole",
        ) from problem
    except (ValueError, RecursionError) as problem:
        raise refusal(
            f"{path}", found=f"no JSON ({problem})", allowed="a whole manifest", remedy=_AGAIN
        ) from problem
    schema = told.get("schema") if isinstance(told, dict) else None
    if schema != SCHEMA:
        raise refusal(
            f"{path}",
            found=f"schema {schema!a}",
            allowed=repr(SCHEMA),
            remedy="record again with this suite, or replay with the suite it is from",
        )
    if seal != content:
        raise refusal(
            f"{path}",
            found=f"content of SHA-256 {content[:16]}",
            allowed=f"{ascii(seal)[:16]}, as its seal says",
            remedy=_AGAIN,
        )
    if wrong := misfit(told):
        found, allowed = wrong
        raise refusal(f"{path}", found=found, allowed=allowed, remedy=_AGAIN)
    return dict(told)


def _scene(folder: Path, name: str, entry: Mapping[str, Any]) -> SceneRecord:
    path = folder / _file(name)
    if entry["file"] != path.name:
        raise refusal(
            f"{folder / MANIFEST}",
            found=f"records.{name}.file: {entry['file']}",
            allowed=path.name,
            remedy=_AGAIN,
        )
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise refusal(
            f"{path}",
            found=f"no file to read ({problem.strerror})",
            allowed="every file that the manifest names",
            remedy=_AGAIN,
        ) from problem
    found = hashlib.sha256(content).hexdigest()
    if found != entry["sha256"]:
        raise refusal(
            f"{path}",
            found=f"{len(content)} bytes of SHA-256 {found[:16]}",
            allowed=f"{str(entry['sha256'])[:16]}, as the manifest says",
            remedy=_AGAIN,
        )
    try:
        tensors: dict[str, Tensor] = load(content)
        call = Call(**entry["call"])
        wanted = _TENSORS | ({"out"} if call.out != "bfloat16" else set())
        if set(tensors) != wanted:
            raise ValueError(f"tensors {sorted(set(tensors) ^ wanted)} too many or missing")
        return SceneRecord(
            call, entry["inputs"], tuple(entry["plan_info"]), tuple(entry["flags"]), tensors
        )
    except (SafetensorError, TypeError, KeyError, ValueError) as problem:
        raise refusal(
            f"{path}",
            found=f"{type(problem).__name__}: {problem}",
            allowed=f"the tensors of {SCHEMA}",
            remedy="record again with this suite",
        ) from problem


def _file(name: str) -> str:
    return f"{name}.safetensors"


def _seal(told: object) -> str:
    text = json.dumps(told, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
