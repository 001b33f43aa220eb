"""ADMIT: what the gates let through, and that a refusal names the limit and what was found."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from conformance.core.case import Config, Geometry
from conformance.core.lab import Lab
from conformance.core.requirement import requirement

HOPPER = (9, 0)
GLM = Config(
    num_heads=64,
    head_dim_ckv=512,
    head_dim_kpe=0,
    fp8=True,
    geometry=Geometry(2048, 4, 2176),
    max_tokens=256,
    sm_scale=0.04,
    k_scale=1.0,
)
CAPABILITIES = ("8.0", "8.9", "9.0", "10.0", "10.3", "12.0")


def check_refusals(
    lab: Lab, config: Config, capability: tuple[int, int], found: str | None
) -> None:
    """Assert that a configuration is admitted (found None), or refused naming `found`."""
    reasons = lab.subject.refusals(config, capability)
    if found is None:
        lab.expect(reasons, [], f"refusals of {config}")
        return
    named = len(reasons) == 1 and found in reasons[0]
    lab.check(named, "refusals", got=reasons, expected=f"one that names {found}")


@requirement("ADMIT-1", how=CAPABILITIES)
def test_only_capability_9_0_is_admitted(lab: Lab) -> None:
    how = lab.case["how"]
    major, _, minor = how.partition(".")
    check_refusals(lab, GLM, (int(major), int(minor)), None if how == "9.0" else how)


@requirement("ADMIT-2", how=("bf16", "fp8", "e5m2", "fp16"))
def test_only_bf16_and_e4m3_caches_are_admitted(lab: Lab) -> None:
    how = lab.case["how"]
    if how in ("bf16", "fp8"):
        check_refusals(lab, replace(GLM, fp8=how == "fp8"), HOPPER, None)
        return
    name = {"e5m2": "float8_e5m2", "fp16": "float16"}[how]
    check_refusals(lab, replace(GLM, kv_dtype_name=name), HOPPER, name)


DIMS: Mapping[str, tuple[dict[str, Any], str | None]] = {
    "heads-1": ({"num_heads": 1}, None),
    "heads-128": ({"num_heads": 128}, None),
    "heads-0": ({"num_heads": 0}, "0"),
    "heads-129": ({"num_heads": 129}, "129"),
    "kpe-64": ({"head_dim_kpe": 64}, None),
    "kpe-32": ({"head_dim_kpe": 32}, "32"),
    "kpe-128": ({"head_dim_kpe": 128}, "128"),
    "ckv-128": ({"head_dim_ckv": 128}, "128"),
    "ckv-256": ({"head_dim_ckv": 256}, "256"),
    "block-128": ({"geometry": Geometry(2048, 4, 2176, block_size=128)}, None),
    "block-32": ({"geometry": Geometry(2048, 4, 2176, block_size=32)}, "32"),
    "width-2050": ({"geometry": Geometry(2048, 4, 2050)}, "2050"),
}


@requirement("ADMIT-3", how=tuple(DIMS))
def test_dimensions_without_a_kernel_are_refused(lab: Lab) -> None:
    changes, found = DIMS[lab.case["how"]]
    check_refusals(lab, replace(GLM, **changes), HOPPER, found)
