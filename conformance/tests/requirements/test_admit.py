"""ADMIT: what the gates let through, and that a refusal names the limit and what was found."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from conformance.core.case import Config, Geometry
from conformance.core.lab import Lab
from conformance.core.requirement import requirement
from conformance.core.subject import Unobservable

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


class _Broken:
    """A native module with one fault, as a version might bring that nobody has tried yet."""

    def __init__(self, module: Any, kind: str) -> None:
        self._module, self._kind = module, kind
        if kind != "no-plan":
            self.plan = self._plan
        if kind != "no-run":
            self.run = self._run

    def _plan(self, *args: Any) -> Any:
        if self._kind == "plan-raises":
            raise TypeError("plan() takes 11 arguments")
        result = self._module.plan(*args)
        info = list(result[0] if len(result) == 2 else result)
        if self._kind == "two-extra-fields":
            return ([*info, 0, 0], *result[1:]) if len(result) == 2 else [*info, 0, 0]
        return result

    def _run(self, *args: Any) -> None:
        kind, out, sm_scale = self._kind, args[8], args[13]
        changed = list(args)
        if kind == "base-2-logits":
            changed[13] = sm_scale * 1.442695
        if kind == "scale-ignored":
            changed[15] = 1.0
        if kind == "rope-scale-ignored":
            changed[16] = 1.0
        if kind == "another-slot":
            changed[7] = args[7].roll(1)
        if kind == "run-raises":
            raise RuntimeError("invalid argument")
        if kind != "writes-nothing":
            self._module.run(*changed)
        if kind == "one-head-missing":
            out[:, -1] = 0
        if kind == "not-a-number":
            out[-1, -1, -1] = float("nan")


@requirement(
    "ADMIT-4", how=("no-plan", "no-run", "plan-raises", "two-extra-fields"), heads=(16, 128)
)
def test_a_flashinfer_without_what_is_used_is_refused(lab: Lab) -> None:
    how, step = lab.case["how"], lab.step()
    refused = construction_error(lab, how)
    lab.check(bool(refused), f"a module of the kind {how}", got="admitted", expected="a refusal")
    word = {"no-plan": "plan", "no-run": "run", "plan-raises": "plan", "two-extra-fields": "20"}[
        how
    ]
    named = word in refused and "FlashInfer" in refused
    lab.check(named, "the refusal", got=refused, expected=f"one of FlashInfer's {word!r}")
    bench = lab.bench(step, wrap=lambda module: module)  # a sound one is admitted, and works
    lab.judged_run(bench, step, bench.world.draw_step(step))


WRONG = (
    "writes-nothing",
    "one-head-missing",
    "not-a-number",
    "another-slot",
    "base-2-logits",
    "run-raises",
    "scale-ignored",
    "rope-scale-ignored",
    "sound",
)
HARMLESS_IN_BF16 = ("scale-ignored", "rope-scale-ignored")


@requirement("ADMIT-5", how=WRONG, dtype=("fp8", "bf16"), kpe=(64,))
def test_what_is_admitted_works(lab: Lab) -> None:
    how, fp8 = lab.case["how"], lab.case["dtype"] == "fp8"
    if how == "sound" and "native" not in lab.subject.capabilities:
        a_first_step_works_where_it_is_admitted(lab)
        return
    refused = construction_error(lab, how)
    if how == "sound" or (how in HARMLESS_IN_BF16 and not fp8):
        lab.expect(refused, "", "the refusal of a sound module")
        step = lab.step()
        bench = lab.bench(step, wrap=lambda module: _Broken(module, how))
        lab.judged_run(bench, step, bench.world.draw_step(step))
        return
    lab.check(bool(refused), f"a module of the kind {how}", got="admitted", expected="a refusal")


def a_first_step_works_where_it_is_admitted(lab: Lab) -> None:
    """Construct on this FlashInfer as it is: refused by that name, or the first step is right."""
    step = lab.step()
    step = replace(step, padded_rows=step.rows)  # padding is for captured graphs
    wide = 512 if lab.tier.full_width else 64
    changes = {"k_scale": 1.0, "sm_scale": (wide + int(lab.case["kpe"])) ** -0.5}
    try:
        bench = lab.bench(step, changes=changes)
    except Unobservable:
        raise
    except Exception as problem:  # any class: the subject's own
        refused = str(problem)
        named = "flashinfer" in refused.lower()
        lab.check(named, "the refusal", got=refused, expected="one that names FlashInfer")
        return
    try:
        out = bench.run(step, inputs := bench.world.draw_step(step))
    except Exception as problem:  # any class: the subject's own or FlashInfer's
        said = f"{type(problem).__name__}: {problem}"
        lab.expect(said, "", "what the first step says of a FlashInfer that was admitted")
        raise
    lab.golden(bench, out, bench.golden(step, inputs))


def construction_error(lab: Lab, kind: str) -> str:
    """Construct over a module with this fault; return the error's text, empty for none."""
    # A softmax scale as of models: with it an FP8 cache's scale of 1 would give logits of one.
    changes = {"sm_scale": 0.04}
    try:
        lab.bench(lab.step(), wrap=lambda module: _Broken(module, kind), changes=changes)
    except Unobservable:
        raise
    except Exception as problem:  # any class: the subject's own
        return str(problem)
    return ""
