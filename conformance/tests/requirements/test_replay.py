"""TWIN-3: records of a GPU are replayed as they are, and what is changed in one is named."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from conformance.bundle import manifest
from conformance.core import environment
from conformance.core.lab import Lab
from conformance.core.requirement import requirement
from conformance.core.subject import Unobservable
from conformance.hardware import numbers, schedule
from conformance.hardware.errors import HardwareError
from conformance.hardware.files import HardwareRecord, write
from conformance.hardware.inputs import draw
from conformance.hardware.recording import SceneRecord
from conformance.hardware.replay import admit, found_here, replay_scene, told
from conformance.hardware.scenes import SCENES, Scene
from conformance.twin.semantics import BY_FINGERPRINT, Semantics

LEAST = 2
"""FlashInfer versions on record: one alone does not show that the versions' semantics are right."""
FREE = "plan.kv_len"
"""Planned lengths are the subject's to choose: other ones are another plan, not another entry."""
LSE_STEP = 2.0**-7
"""What an LSE is moved by: twice what float32 may do to one where logits are largest."""

Edit = Callable[[Tensor], None]


@requirement("TWIN-3", how=("recorded",))
def test_the_twin_replays_what_a_gpu_computed(lab: Lab) -> None:
    if not found_here() and manifest.around(environment.ROOT) is not None:
        raise Unobservable("hardware records, which bundles leave out")
    records = [admitted(lab, folder) for folder in found_here()]
    versions = sorted({record.origin.flashinfer for record in records})
    enough = len(versions) >= LEAST
    lab.check(enough, "recorded FlashInfer versions", got=versions, expected=f">= {LEAST}")
    number = lab.case.number
    lab.check(number < len(SCENES), "scene", got=number, expected=f"below {len(SCENES)}")
    scene = SCENES[number]
    for record in records:
        origin = record.origin
        seen = replay_scene(scene, record.scenes[scene.name], BY_FINGERPRINT[origin.kernel])
        lab.expect([*map(str, seen.differences)], [], f"differences from {told(origin)}")
        lab.check(seen.ratio is not None, "outputs", got="none judged", expected="all judged")
        lab.ratio = max(lab.ratio or 0.0, seen.ratio or 0.0)
    record = records[number % len(records)]
    of_gpu, semantics = record.scenes[scene.name], BY_FINGERPRINT[record.origin.kernel]
    changed_integers_are_named(lab, scene, of_gpu, semantics)
    changed_numbers_are_named(lab, scene, of_gpu, semantics)
    changed_reads_are_named(lab, scene, of_gpu, semantics)
    changed_inputs_are_refused(lab, scene, of_gpu, semantics)
    a_rehearsal_is_refused(lab, record)


def admitted(lab: Lab, folder: Path) -> HardwareRecord:
    try:
        return admit(folder)
    except HardwareError as problem:
        lab.check(False, f"record {folder.name}", got=str(problem), expected="a GPU's, whole")
        raise


def edited(found: SceneRecord, edits: dict[str, Edit]) -> SceneRecord:
    """The record with some tensors edited in place, each in a copy."""
    tensors = dict(found.tensors)
    for name, edit in edits.items():
        tensors[name] = tensors[name].clone()
        edit(tensors[name])
    return replace(found, tensors=tensors)


def changed_integers_are_named(
    lab: Lab, scene: Scene, found: SceneRecord, semantics: Semantics
) -> None:
    """One entry of each tensor of integers, at a drawn place; then one with a scalar and a flag."""
    drawn, random = draw(scene), lab.case.draw.fork("integers")
    names = sorted(
        name
        for name, tensor in found.tensors.items()
        if not tensor.is_floating_point() and tensor.numel() and name != FREE
    )

    def moved(values: Tensor) -> None:
        values[random.randint(0, len(values))] += random.choice((-1, 1))

    for name in names:
        differing = schedule.judge(scene, drawn, edited(found, {name: moved}))
        lab.expect(sorted({d.tensor for d in differing}), [name], f"named, {name} changed")
    name = random.choice(names)
    call = replace(found.call, sm_scale=found.call.sm_scale * (1 + 2.0**-10))
    other = replace(edited(found, {name: moved}), call=call, flags=("valid_above_plan",))
    named = {d.tensor for d in replay_scene(scene, other, semantics).differences}
    lab.expect(sorted(named), sorted({name, "call", "flags"}), "named, of three changed")


def changed_numbers_are_named(
    lab: Lab, scene: Scene, found: SceneRecord, semantics: Semantics
) -> None:
    """One element of each tensor of numbers, all in one replay; then one of a padding row."""
    rows = torch.tensor([row for row, _ in scene.pairs()])
    live = int((rows < scene.step.rows).sum())

    def turned_live(values: Tensor) -> None:
        turned(values[:live])

    edits: dict[str, Edit] = {"engine_out": turned_live, "out": turned_live}
    edits |= {"partial_o": turned, "partial_lse": raised}
    edits = {n: e for n, e in edits.items() if n in found.tensors and found.tensors[n].numel()}
    seen = replay_scene(scene, edited(found, edits), semantics)
    lab.expect(sorted({d.tensor for d in seen.differences}), sorted(edits), "named, numbers")
    if live < len(rows):
        seen = replay_scene(scene, edited(found, {"engine_out": cleared}), semantics)
        lab.expect([d.tensor for d in seen.differences], ["engine_out"], "named, a padding row")


def turned(values: Tensor) -> None:
    """The largest element gets the other sign."""
    at = divmod(int(values.float().abs().argmax()), values.shape[1])
    values[at] *= -1


def cleared(values: Tensor) -> None:
    """The very last element becomes zero."""
    values[-1, -1] = 0


def raised(values: Tensor) -> None:
    """The last LSE of a piece that has tokens grows."""
    values[int(values.isfinite().nonzero()[-1])] += LSE_STEP


def changed_reads_are_named(
    lab: Lab, scene: Scene, found: SceneRecord, semantics: Semantics
) -> None:
    """Load bounds as they were before the clamp; and bounds that end one entry early."""
    drawn, staged = draw(scene), found.tensors["staged.kv_len"]
    starts, ends = found.tensors["clamped.kv_start"], found.tensors["clamped.kv_end"]
    # An item without valid entries loads no tile, and one that ends with a tile loads no other.
    loads = (ends > starts) & ((ends - starts) % semantics.tile_kv != 0)

    def unclamped(values: Tensor) -> None:
        values[loads] = staged[loads]

    def short(values: Tensor) -> None:
        values.sub_((values > starts).int())

    for edit, what in ((unclamped, "no clamp of loads"), (short, "loads that end early")):
        other = edited(found, {"clamped.kv_len": edit})
        if torch.equal(other.tensors["clamped.kv_len"], found.tensors["clamped.kv_len"]):
            continue
        judged = numbers.judge(scene, drawn, other, semantics)
        named = {d.tensor for d in judged.differences}
        lab.check("touched" in named, what, got=sorted(named), expected="touched, among them")


def changed_inputs_are_refused(
    lab: Lab, scene: Scene, found: SceneRecord, semantics: Semantics
) -> None:
    name = lab.case.draw.fork("inputs").choice(sorted(found.inputs))
    other = replace(found, inputs={**found.inputs, name: "0" * 64})
    try:
        replay_scene(scene, other, semantics)
    except HardwareError as refused:
        lab.check(f"found {name} " in str(refused), "refusal", got=str(refused), expected=name)
    else:
        lab.check(False, f"a record of another {name}", got="replayed", expected="refused")


def a_rehearsal_is_refused(lab: Lab, record: HardwareRecord) -> None:
    """The same record, had the twin made it, is no evidence of a GPU."""
    rehearsal = replace(record, origin=replace(record.origin, made_on="twin"))
    with tempfile.TemporaryDirectory(prefix="smla-rehearsal-") as folder:
        write(rehearsal, SCENES, Path(folder))
        try:
            admit(Path(folder))
        except HardwareError as refused:
            said = str(refused)
            lab.check("made on: twin" in said, "refusal", got=said, expected="made on: twin")
        else:
            lab.check(False, "a rehearsal", got="admitted", expected="refused")
