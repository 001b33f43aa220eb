"""Replaying a hardware record on the twin: what must be equal, and what must be near."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.hardware import numbers, schedule
from conformance.hardware.errors import refusal
from conformance.hardware.files import MANIFEST, HardwareRecord, Origin, read
from conformance.hardware.inputs import Drawn, draw
from conformance.hardware.recording import SceneRecord
from conformance.hardware.scenes import SCENES, Scene
from conformance.hardware.schedule import Difference
from conformance.twin.semantics import BY_FINGERPRINT, BY_VERSION, Semantics

FOLDER = Path(__file__).parents[1] / "traces" / "hardware"
"""Where the records of this repository stand, a folder for each FlashInfer version."""

_HOPPER = [9, 0]


@dataclass(frozen=True)
class Replayed:
    """A scene's replay. ratio: the record's worst error over bound; None where none was judged."""

    scene: str
    differences: Sequence[Difference]
    ratio: float | None


def admit(
    folder: Path, scenes: Sequence[Scene] = SCENES, *, rehearsal: bool = False
) -> HardwareRecord:
    """Return a folder's record as evidence of a GPU, or as a rehearsal; raise HardwareError."""
    record = read(folder, scenes)
    origin, path = record.origin, folder / MANIFEST
    if origin.kernel not in BY_FINGERPRINT:
        raise refusal(
            f"{path}",
            found=f"kernel sources of fingerprint {origin.kernel} (FlashInfer {origin.flashinfer})",
            allowed=f"those of {', '.join(BY_VERSION)}, which the twin knows",
            remedy="read these sources and add a row to conformance.twin.semantics",
        )
    known = BY_VERSION.get(origin.flashinfer)
    if known is not None and known.fingerprint != origin.kernel:
        raise refusal(
            f"{path}",
            found=f"FlashInfer {origin.flashinfer} with kernel sources of fingerprint "
            f"{origin.kernel}, those of {BY_FINGERPRINT[origin.kernel].version}",
            allowed=f"{known.fingerprint}, as that version has them",
            remedy="record again with the released package of that version",
        )
    if rehearsal:
        return record
    if origin.made_on != "hopper":
        raise refusal(
            f"{path}",
            found=f"a record made on: {origin.made_on}",
            allowed="one that a Hopper GPU made",
            remedy="record on an H100 or H200, or replay it with --rehearsal, as no evidence",
        )
    if lacking := _lacking(record):
        raise refusal(
            f"{path}",
            found=f"a Hopper record without {lacking}",
            allowed="the GPU of capability 9.0 that it was planned for, driver and versions",
            remedy="record again where `nvidia-smi` works",
        )
    return record


def replay(record: HardwareRecord, scenes: Sequence[Scene] = SCENES) -> Iterator[Replayed]:
    """Replay each of a record's scenes; raise HardwareError where its inputs are not drawn here."""
    semantics = BY_FINGERPRINT[record.origin.kernel]
    for scene in scenes:
        yield replay_scene(scene, record.scenes[scene.name], semantics)


def replay_scene(scene: Scene, found: SceneRecord, semantics: Semantics) -> Replayed:
    """Judge the integers, and where they are as expected, the numbers."""
    drawn = draw(scene)
    for name, digest in drawn.digests().items():
        if found.inputs.get(name) != digest:
            raise refusal(
                f"scene {scene.name}",
                found=f"{name} of SHA-256 {str(found.inputs.get(name))[:16]}",
                allowed=f"{digest[:16]}, as this suite draws it",
                remedy="replay it with the suite it is from, or record again",
            )
    differences = [*_called(scene, drawn, found), *schedule.judge(scene, drawn, found)]
    if differences:
        return Replayed(scene.name, differences, None)
    judged = numbers.judge(scene, drawn, found, semantics)
    return Replayed(scene.name, judged.differences, judged.ratio)


def _called(scene: Scene, drawn: Drawn, found: SceneRecord) -> list[Difference]:
    """The scalars of the native run must be those of the scene, however its scale was divided."""
    config, call = drawn.world.config, found.call
    whole = config.sm_scale * config.k_scale
    wanted: list[tuple[str, Any, bool]] = [
        ("num_heads", config.num_heads, call.num_heads == config.num_heads),
        ("head_dim", config.head_dim_ckv, call.head_dim == config.head_dim_ckv),
        ("kpe_scale", call.ckv_scale, call.kpe_scale == call.ckv_scale),
        ("ckv_scale", "1.0", call.ckv_scale == 1.0 if not config.fp8 else call.ckv_scale > 0),
        ("scale_array", config.group_scales, call.scale_array == config.group_scales),
        (
            "sm_scale",
            f"{whole} over its kpe_scale",
            abs(call.sm_scale * call.kpe_scale / whole - 1) <= 2.0**-22,
        ),
    ]
    return [
        Difference(
            scene.name, "call", f"{name}: the record holds {getattr(call, name)}, expected {value}"
        )
        for name, value, right in wanted
        if not right
    ]


def _lacking(record: HardwareRecord) -> str:
    """Return what a GPU's record must tell and this one does not, in words."""
    environment = record.origin.environment
    gpu = environment.get("gpu") or {}
    sms = {scene.call.num_sms for scene in record.scenes.values()}
    lacks = [] if sms == {gpu.get("sms")} else ["the SMs that were planned for"]
    lacks += [] if gpu.get("capability") == _HOPPER else ["a GPU of capability 9.0"]
    lacks += [] if gpu.get("driver") else ["its driver"]
    lacks += [name for name in ("cuda", "torch", "triton") if not environment.get(name)]
    return ", ".join(lacks)


def found_here(folder: Path = FOLDER) -> list[Path]:
    """Return the folders of this repository's records, by name."""
    return sorted(path.parent for path in folder.glob(f"*/{MANIFEST}"))


def told(origin: Origin) -> str:
    """Return where a record is from, in words."""
    gpu = origin.environment.get("gpu") or {}
    where = gpu.get("name") if origin.made_on == "hopper" else "the twin: no evidence of a GPU"
    return f"FlashInfer {origin.flashinfer} on {where}"
