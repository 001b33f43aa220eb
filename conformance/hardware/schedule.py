"""The judge of a record's integers: plan, clamp, what convert and pack wrote. All must be equal.

What is expected follows from the scene and the planned lengths alone: the twin's planner plans them
again, the clamp ends each item at its row's valid count, and selections are looked up in the block
table. Behind a row's valid entries pack writes its first slot, or 0 where it has none.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from conformance.core.case import valid_count
from conformance.core.schedule import ScheduleReader
from conformance.hardware.inputs import Drawn
from conformance.hardware.recording import ARRAYS, SceneRecord
from conformance.hardware.scenes import Scene
from conformance.twin import planner
from conformance.twin.errors import NativeError, TwinDomainError


@dataclass(frozen=True)
class Difference:
    """What a record holds otherwise than the twin has it: scene, tensor and the first place."""

    scene: str
    tensor: str
    text: str

    def __str__(self) -> str:
        return f"{self.scene}: {self.tensor}: {self.text}"


def valid_counts(scene: Scene) -> list[int]:
    """Return each live row's valid count."""
    return [valid_count(context, scene.case.geometry) for context in scene.step.contexts()]


def equal(scene: str, tensor: str, got: Tensor, expected: Tensor) -> list[Difference]:
    """Return the first place where two integer tensors differ, if they do."""
    kinds = [f"{t.dtype} {[*t.shape]}".removeprefix("torch.") for t in (got, expected)]
    if kinds[0] != kinds[1]:
        return [Difference(scene, tensor, f"the record holds {kinds[0]}, expected {kinds[1]}")]
    places = (got != expected).nonzero().flatten().tolist()
    if not places:
        return []
    at = places[0]
    return [
        Difference(
            scene,
            tensor,
            f"entry {at}: the record holds {int(got[at])}, expected {int(expected[at])} "
            f"({len(places)} of {got.numel()} differ)",
        )
    ]


def judge(scene: Scene, drawn: Drawn, found: SceneRecord) -> list[Difference]:
    """Return what differs, in the order in which it was made."""
    name, tensors, valid = scene.name, found.tensors, valid_counts(scene)
    planned = _planned(scene, valid, tensors["plan.kv_len"])
    if isinstance(planned, Difference):
        return [planned]
    rows = len(valid)
    starts = _int32(range(rows + 1))
    offsets = _int32([0, *torch.tensor(planned).cumsum(0).tolist()])
    differing = equal(name, "plan.qo_indptr", tensors["plan.qo_indptr"], starts)
    differing += equal(name, "plan.kv_indptr", tensors["plan.kv_indptr"], offsets)
    try:
        staged, info = replan(found, planned)
    except (NativeError, TwinDomainError) as problem:
        return [*differing, Difference(name, "plan.kv_len", f"the twin plans none: {problem}")]
    differing += equal(name, "plan_info", _int32(found.plan_info), _int32(info))
    arrays = _arrays(ScheduleReader(info, staged, found.call.num_sms))
    for array in ARRAYS:
        differing += equal(name, f"staged.{array}", tensors[f"staged.{array}"], arrays[array])
    for array, values in clamped(arrays, valid).items():
        differing += equal(name, f"clamped.{array}", tensors[f"clamped.{array}"], values)
    differing += equal(name, "kv_indptr", tensors["kv_indptr"], offsets)
    differing += equal(name, "contexts", tensors["contexts"], _int32(scene.step.contexts()))
    differing += equal(name, "counts", tensors["counts"], _int32(valid))
    packed = _packed(scene, drawn, planned)
    differing += equal(name, "kv_indices", tensors["kv_indices"], packed)
    if found.flags:
        text = f"the record holds {', '.join(found.flags)}, expected none"
        differing.append(Difference(name, "flags", text))
    return differing


def replan(found: SceneRecord, planned: list[int]) -> tuple[Tensor, list[int]]:
    """Plan lengths on the twin: the staged bytes and plan-info, for the record's GPU."""
    call = found.call
    staged = torch.zeros(planner.layout(call.num_sms).staged_bytes, dtype=torch.uint8)
    offsets = torch.tensor([0, *planned]).cumsum(0).tolist()
    info, _ = planner.plan(
        range(len(planned) + 1), offsets, planned, call.num_heads, call.head_dim, call.num_sms,
        staged, call.float_bytes,
    )  # fmt: skip
    return staged, info


def clamped(arrays: dict[str, Tensor], valid: list[int]) -> dict[str, Tensor]:
    """Return a planned schedule's arrays as a clamp to these valid counts leaves them."""
    counts = torch.tensor(valid, dtype=torch.int32)[arrays["q_indptr"].long()]
    ends = torch.maximum(arrays["kv_start"], torch.minimum(arrays["kv_end"], counts))
    return {**arrays, "kv_end": ends, "kv_len": torch.minimum(arrays["kv_len"], counts)}


def _planned(scene: Scene, valid: list[int], lengths: Tensor) -> list[int] | Difference:
    """Return the planned lengths, which are the subject's to choose, if they can serve the rows."""
    name, width = "plan.kv_len", scene.case.geometry.topk_width
    if lengths.dtype != torch.int32 or lengths.shape != (len(valid),):
        return equal(scene.name, name, lengths, _int32(valid))[0]
    for row, (length, count) in enumerate(zip(lengths.tolist(), valid, strict=True)):
        if not count <= length <= width:
            text = f"entry {row}: the record holds {length}, expected {count} to {width}"
            return Difference(scene.name, name, text)
    return [int(length) for length in lengths]


def _arrays(schedule: ScheduleReader) -> dict[str, Tensor]:
    return {
        name: schedule.work_indptr if name == "work_indptr" else schedule.array(name)
        for name in ARRAYS
    }


def _packed(scene: Scene, drawn: Drawn, planned: list[int]) -> Tensor:
    world, size = drawn.world, scene.case.geometry.block_size
    entries: list[int] = []
    owners = scene.step.row_requests
    for request, tokens, length in zip(owners, drawn.inputs.tokens, planned, strict=True):
        blocks = world.block_table[request].long()[tokens // size]
        slots = (blocks * world.stride_rows + tokens % size).tolist()
        entries += slots + [slots[0] if slots else 0] * (length - len(slots))
    return _int32(entries)


def _int32(values: object) -> Tensor:
    return torch.tensor([*values], dtype=torch.int32)  # type: ignore[misc]
