"""docs/error-model.md holds: the simulated kernel stays within golden's bounds and near them.

The cases are canonical ones of few rows and heads, hard numbers among them; engines are the kernel
as FlashInfer's wrapper calls it, and as smla does where it differs, for one scale per tensor.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest
import torch

pytest.importorskip("safetensors", reason="golden's files need safetensors")

from conformance.twin.planner import INFO_FIELDS
from conformance.twin.surface import NativeModule
from golden import Verdict
from golden.canonical import Case, cases
from golden.inputs import Inputs

FEW = {case.name: case for case in cases() if case.recipe.num_heads <= 16 and case.recipe.rows <= 4}
FORMATS = {"bf16", "e4m3", "e4m3_group"}


def kernel(inputs: Inputs, *, scale: float, sm_scale: float, out: torch.Tensor) -> None:
    """Plan and run a step on the twin; writes `out` [rows, heads, ckv], BF16 or FP16."""
    recipe, native = inputs.recipe, NativeModule()
    float_ws = torch.full((24 << 20,), 0xFF, dtype=torch.uint8)
    int_ws, pinned = (torch.full((1 << 20,), 0xA5, dtype=torch.uint8) for _ in range(2))
    slots = inputs.slots()
    lengths = torch.tensor([len(row) for row in slots], dtype=torch.int32)
    starts = torch.cat([torch.zeros(1, dtype=torch.int32), lengths.cumsum(0).int()])
    rows = torch.arange(recipe.rows + 1, dtype=torch.int32)
    planned = native.plan(
        *(float_ws, int_ws, pinned, rows, starts, lengths),
        *(recipe.num_heads, recipe.head_dim_ckv, False),
    )
    assert isinstance(planned, tuple)
    info, staged = planned
    assert len(info) == len(INFO_FIELDS)
    int_ws[:staged] = pinned[:staged]
    kind = torch.bfloat16 if recipe.fmt == "bf16" else torch.float8_e4m3fn
    stored = inputs.cache.data.view(kind).view(-1, 1, inputs.cache.head_dim)
    native.run(
        float_ws,
        int_ws,
        info,
        inputs.q_nope,
        inputs.q_pe,
        ckv=stored[..., : recipe.head_dim_ckv],
        kpe=stored[..., recipe.head_dim_ckv :],
        kv_indices=torch.cat(slots).int(),
        out=out,
        lse=None,
        mask_mode=0,
        num_heads=recipe.num_heads,
        page_size=1,
        sm_scale=sm_scale,
        return_lse_base_on_e=True,
        ckv_scale=scale,
        kpe_scale=scale,
        ckv_scale_arr=inputs.cache.group_scales,
    )


def by_flashinfer(case: Case) -> torch.Tensor:
    """The kernel is given the scale, and writes BF16."""
    out = torch.empty_like(case.inputs.q_nope)
    kernel(case.inputs, scale=case.recipe.scale, sm_scale=case.recipe.sm_scale, out=out)
    return out


def by_power_of_two(case: Case) -> torch.Tensor:
    """The kernel is given a power of two, within 2**-12 to 2**7, and writes FP16; what is left of
    the scale goes to sm_scale and, in float32, to the output."""
    power = 2.0 ** min(max(math.floor(math.log2(case.recipe.scale)), -12), 7)
    rest = case.recipe.scale / power
    out = torch.empty_like(case.inputs.q_nope, dtype=torch.float16)
    kernel(case.inputs, scale=power, sm_scale=case.recipe.sm_scale * rest, out=out)
    return (out.float() * torch.tensor(rest).float()).bfloat16()


@cache
def verdict(name: str, engine: str) -> Verdict:
    case = Case(FEW[name].folder, FEW[name].entry)  # its inputs are not kept
    return case.judge({"kernel": by_flashinfer, "smla": by_power_of_two}[engine](case))


ENGINES = [("kernel", name) for name in FEW]
ENGINES += [("smla", name) for name, case in FEW.items() if case.recipe.fmt == "e4m3"]


@pytest.mark.parametrize("engine, name", ENGINES, ids=lambda text: text)
def test_every_case_is_within_its_bound(engine: str, name: str) -> None:
    found = verdict(name, engine)
    assert found.ok, found.message


@pytest.mark.parametrize(
    "engine, fmt, near",
    [
        ("kernel", "bf16", 0.25),
        ("kernel", "e4m3", 0.25),
        ("kernel", "e4m3_group", 0.25),
        ("smla", "e4m3", 0.2),  # decodes exactly, within bounds that allow for what does not
    ],
)
def test_the_bounds_are_not_wide(engine: str, fmt: str, near: float) -> None:
    """Some element of some case has an error of this part of its bound."""
    ratios = {
        name: verdict(name, engine).max_ratio
        for name, case in FEW.items()
        if case.recipe.fmt == fmt
    }
    assert max(ratios.values()) >= near, ratios


@pytest.mark.parametrize("fmt", ["bf16", "e4m3", "group"])
@pytest.mark.parametrize("lie", ["values", "token"])
def test_what_is_wrong_is_outside(fmt: str, lie: str) -> None:
    """Values three percent too large, and a neighbouring cache row in place of each row's first."""
    few = FEW[f"deepseek-heads8-{fmt}"]
    case = Case(few.folder, few.entry)
    inputs, cache = case.inputs, case.inputs.cache
    out = torch.empty_like(inputs.q_nope)
    if lie == "token":
        tokens = [row.clone() for row in inputs.tokens]
        for row in tokens:
            row[0] ^= 1
        inputs = replace(inputs, tokens=tokens)
    elif cache.group_scales is not None:
        inputs = replace(inputs, cache=replace(cache, group_scales=cache.group_scales * 1.03))
    kernel(inputs, scale=case.recipe.scale, sm_scale=case.recipe.sm_scale, out=out)
    if lie == "values" and cache.group_scales is None:
        out *= 1.03
    assert not case.judge(out).ok


def test_every_kind_of_numbers_is_among_the_cases() -> None:
    assert {case.recipe.fmt for case in FEW.values()} == FORMATS
    kinds = {(case.recipe.fmt, case.recipe.numerics) for case in FEW.values()}
    assert len(kinds) == 3 * 7
