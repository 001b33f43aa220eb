"""One scene, run through a subject on a tier, and all that is kept of it."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from conformance.core.bench import Bench
from conformance.core.schedule import MERGE_FIELDS, WORK_FIELDS, ScheduleReader
from conformance.core.subject import Subject, Tier
from conformance.hardware.errors import refusal
from conformance.hardware.inputs import digests
from conformance.hardware.pieces import kept_places
from conformance.hardware.scenes import Scene
from conformance.hardware.tap import Planned, Ran, Tap

ARRAYS = (*WORK_FIELDS, *MERGE_FIELDS, "work_indptr")
"""Arrays of the int workspace, by name."""
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Call:
    """What a native plan and run were given besides tensors.

    scale_array: whether run was given scales for rows and groups. out: the dtype that it wrote.
    """

    num_sms: int
    float_bytes: int
    num_heads: int
    head_dim: int
    sm_scale: float
    ckv_scale: float
    kpe_scale: float
    scale_array: bool
    out: str


@dataclass(frozen=True)
class SceneRecord:
    """What a scene left behind.

    inputs: SHA-256 of what was drawn, by name. plan_info: FlashInfer's 18 integers. flags: names
    of what the device noticed. tensors, on the host:

    - plan.qo_indptr, plan.kv_indptr, plan.kv_len: what was planned, int32;
    - staged.NAME, clamped.NAME: the used part of each array of the int workspace, as the planner
      left it and as the clamp left it on the device, int32;
    - kv_indptr [rows + 1], kv_indices [planned entries], counts [rows], contexts [rows]: int32,
      of live rows. What convert found is the first `counts` of each row's entries;
    - engine_out, out [pairs, ckv]: what the native run wrote, and where that was no BF16 what the
      step left of it, of `Scene.pairs`;
    - partial_o [n, ckv], partial_lse [m]: of `kept_places`; LSEs are float32, base 2.
    """

    call: Call
    inputs: Mapping[str, str]
    plan_info: tuple[int, ...]
    flags: tuple[str, ...]
    tensors: Mapping[str, Tensor]


def record(scene: Scene, subject: Subject, tier: Tier) -> SceneRecord:
    """Run a scene and return what it left; raise HardwareError where it cannot be recorded."""
    if "native" not in subject.capabilities:
        raise refusal(
            f"subject {subject.name}",
            found="one that takes no wrapped native module",
            allowed="one with the capability `native`",
            remedy="record with --subject smla",
        )
    tap, step = Tap(), scene.step
    bench = Bench(scene.case, subject, tier, scene.steps, wrap=tap.wrap)
    inputs = bench.world.draw_step(step)
    for earlier in scene.steps[:-1]:
        bench.build(earlier)
    metadata = bench.build(step)
    bench.clear_output()
    bench.load(inputs)
    tap.runtime = bench.runtime
    with bench.quietly():
        bench.forward(metadata, step.padded_rows)
    out, seen = bench.output(step.padded_rows), bench.observe()
    planned, ran = _passed(scene, tap)
    info = seen.need("plan_info")
    num_sms = bench.runtime.num_sms
    staged = ScheduleReader(planned.plan_info, planned.staged, num_sms)
    clamped = bench.schedule(seen)
    offsets = seen.need("kv_indptr")[: step.rows + 1]
    pairs = scene.pairs()
    tensors = {
        "plan.qo_indptr": planned.qo_indptr,
        "plan.kv_indptr": planned.kv_indptr,
        "plan.kv_len": planned.kv_len,
        **{f"staged.{name}": _array(staged, name) for name in ARRAYS},
        **{f"clamped.{name}": _array(clamped, name) for name in ARRAYS},
        "kv_indptr": offsets,
        "kv_indices": seen.need("kv_indices")[: int(offsets[-1])],
        "counts": seen.need("counts")[: step.rows],
        "contexts": seen.need("contexts")[: step.rows],
        "engine_out": _of(ran.out, pairs),
        **_partials(bench, staged, ran),
    }
    if ran.out.dtype != out.dtype:
        tensors["out"] = _of(out, pairs)
    call = Call(
        num_sms=num_sms,
        float_bytes=planned.float_bytes,
        num_heads=planned.num_heads,
        head_dim=planned.head_dim_o,
        sm_scale=ran.sm_scale,
        ckv_scale=ran.ckv_scale,
        kpe_scale=ran.kpe_scale,
        scale_array=ran.scale_array,
        out=str(ran.out.dtype).removeprefix("torch."),
    )
    return SceneRecord(
        call,
        digests(bench.world, inputs),
        tuple(info),
        tuple(sorted(seen.need("flags"))),
        {name: tensor.clone().contiguous() for name, tensor in tensors.items()},
    )


def _passed(scene: Scene, tap: Tap) -> tuple[Planned, Ran]:
    """Return what went through the tap, if it was what a replay can do again."""
    planned, ran = tap.planned, tap.ran
    if planned is None or ran is None or tap.runs != 1:
        raise refusal(
            f"scene {scene.name}",
            found=f"{tap.runs} native runs of the recorded step",
            allowed="one plan and one run",
            remedy="record with --subject smla",
        )
    call = (ran.mask_mode, ran.page_size, planned.causal)
    if call != (0, 1, False):
        raise refusal(
            f"scene {scene.name}",
            found="mask mode {}, page size {}, causal {}".format(*call),
            allowed="mask mode 0, page size 1, causal False",
            remedy="record with --subject smla",
        )
    return planned, ran


def _array(schedule: ScheduleReader, name: str) -> Tensor:
    return schedule.work_indptr if name == "work_indptr" else schedule.array(name)


def _of(out: Tensor, pairs: list[tuple[int, int]]) -> Tensor:
    rows, heads = zip(*pairs, strict=True)
    return out[list(rows), list(heads)]


def _partials(bench: Bench, schedule: ScheduleReader, ran: Ran) -> dict[str, Tensor]:
    """Read the kept partial results from the device: of their span, nothing else."""
    outs, lses = kept_places(schedule, bench.config.num_heads)
    dim, dtype = bench.config.head_dim_ckv, ran.out.dtype
    if not outs:
        return {"partial_o": torch.empty(0, dim, dtype=dtype), "partial_lse": torch.empty(0)}
    memory, end = ran.float_workspace.view(-1).view(torch.uint8), max(*outs, *lses) + 1
    o_at, lse_at = schedule.info["partial_o"], schedule.info["partial_lse"]
    partial_o = bench.read(memory[o_at : o_at + 2 * dim * end]).view(dtype).view(end, dim)
    partial_lse = bench.read(memory[lse_at : lse_at + 4 * end]).view(torch.float32)
    return {"partial_o": partial_o[outs], "partial_lse": partial_lse[lses]}
