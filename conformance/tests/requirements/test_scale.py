"""NUM-3: an FP8 cache's scale, whatever its mantissa and exponent, applied to logits and output."""

import math
from dataclasses import replace
from importlib import metadata

from packaging.version import Version

from conformance.core.bench import Bench
from conformance.core.case import Step
from conformance.core.inputs import StepInputs
from conformance.core.lab import Lab
from conformance.core.requirement import requirement
from conformance.core.subject import Unobservable

MOST = 40
"""Scales from 2**-40 to 2**40 are served."""

RATIO = 1.15
"""The error may exceed that of the neighbouring power of two, which needs no rounding, so far."""

GAIN = 2.0**-10
"""By how much gains may differ: a quarter of what rounding a scale to 8 bits can make of it."""

OUTSIDE = (2.0**41, 2.0 ** -(MOST + 0.5), 0.0, -1.0, math.nan, math.inf)


def scaled_bench(lab: Lab, step: Step, scale: float) -> Bench:
    """Construct for a scale, with a softmax scale that gives the same logits for any."""
    width = 64 if lab.tier.native is not None else 512
    sm_scale = (width + int(lab.case["kpe"])) ** -0.5 / scale
    return lab.bench(step, changes={"k_scale": scale, "sm_scale": sm_scale})


def gain(bench: Bench, step: Step, inputs: StepInputs) -> float:
    """Run; return by which factor the outputs are larger than golden's, over all elements."""
    out = bench.run(step, inputs).double()
    exact = bench.golden(step, inputs).out.cpu()
    return float((out.cpu() * exact).sum() / exact.square().sum())


def relative_error(lab: Lab, bench: Bench, step: Step, inputs: StepInputs) -> float:
    """Run; hold every element against golden, and return the error over all of them."""
    out = lab.judged_run(bench, step, inputs)
    exact = bench.golden(step, inputs).out.cpu()
    return float((out.cpu().double() - exact).norm() / exact.norm())


@requirement(
    "NUM-3",
    dtype=("fp8",),
    kpe=(0, 64),
    how=("any", "any", "near-two", "low", "high", "mask", "changed", "outside"),
    geo=("wide", "pool"),
    heads=(16, 64),
)
def test_a_scale_is_applied_exactly(lab: Lab) -> None:
    how, draw = lab.case["how"], lab.case.draw.fork("scale")
    rows, topk = 8, lab.case.geometry.index_topk
    lengths = tuple(draw.randint(topk // 2, 2 * topk) for _ in range(rows))
    step = Step((1,) * rows, lengths, lengths, rows)
    if how == "outside":
        scales_outside_are_refused(lab, step)
        return
    exponent = {"low": -MOST, "high": MOST - 1}.get(how, draw.randint(-MOST, MOST))
    if masks_finitely(lab) and how != "low":
        exponent = draw.randint(-12, 8)  # beyond, logits can come near to the mask
    # Mantissas that BF16 does not hold, all over [1, 2).
    mantissa = 2 - 2.0**-9 if how == "near-two" else 1 + (2 * draw.randint(0, 2**12) + 1) / 2**13
    scale = math.ldexp(mantissa, exponent)
    if masks_finitely(lab) and how == "low":
        a_scale_near_a_finite_mask_is_refused(
            lab, step, scale, sm_scale=0.0625, larger=2.0**-4 / scale
        )
        return
    if how == "mask":
        # Queries so large and sm_scale so small that -50000, unscaled, is near the logits.
        mantissa = math.frexp(scale)[0] * 2
        a_scale_near_a_finite_mask_is_refused(
            lab, step, mantissa, sm_scale=2.0**-17, larger=2.0**13
        )
        return
    bench = scaled_bench(lab, step, scale)
    inputs = bench.world.draw_step(step)
    if how == "changed":
        a_scale_that_changes_after_the_capture_is_flagged(lab, bench, step, inputs)
        return
    error = relative_error(lab, bench, step, inputs)
    neighbour = 2.0 ** round(math.log2(scale))
    if lab.interpret:
        # Triton's interpreter (3.9) cuts BF16 off, which makes every output a little smaller, at
        # either scale alike: the errors mean nothing there, the gains do.
        gains = [gain(b, step, inputs) for b in (bench, scaled_bench(lab, step, neighbour))]
        right = max(gains) <= 1 + GAIN and abs(gains[0] - gains[1]) <= GAIN
        lab.check(right, f"gains at {scale!r} and {neighbour!r}", got=gains, expected="the same")
        return
    plain = relative_error(lab, scaled_bench(lab, step, neighbour), step, inputs)
    lab.check(
        error <= RATIO * plain,
        f"error at k_scale {scale!r}",
        got=f"{error:.3e}",
        expected=f"at most {RATIO} times {plain:.3e}, the error at {neighbour!r}",
    )


def masks_finitely(lab: Lab) -> bool:
    """Whether this FlashInfer masks with a finite logit: -50000, up to 0.6.18 (math.cuh)."""
    version = lab.tier.simulates or metadata.version("flashinfer-python")
    return Version(version) < Version("0.7.0")


def a_scale_near_a_finite_mask_is_refused(
    lab: Lab, step: Step, scale: float, *, sm_scale: float, larger: float
) -> None:
    """Either the rows are right, or the scale is refused. larger: a factor of the queries."""
    bench = lab.bench(step, changes={"k_scale": scale, "sm_scale": sm_scale})
    inputs = bench.world.draw_step(step)
    inputs = replace(inputs, q_nope=(inputs.q_nope * larger).bfloat16())
    try:
        lab.judged_run(bench, step, inputs)
    except ValueError as problem:
        named = "scale" in str(problem) and "mask" in str(problem)
        lab.check(named, "the refusal", got=str(problem), expected="one that names scale and mask")


def scales_outside_are_refused(lab: Lab, step: Step) -> None:
    """Each scale outside of the range is an error, and the bench goes on working."""
    bench = scaled_bench(lab, step, 1.0)
    inputs = bench.world.draw_step(step)
    built = bench.build(step)
    bench.load(inputs)
    for scale in OUTSIDE:
        bench.clear_output()
        try:
            bench.forward(built, step.padded_rows, k_scale=scale)
            problem = ""
        except Exception as found:  # any class: the subject's own
            problem = str(found)
        lab.check("scale" in problem, f"k_scale {scale}", got=problem, expected="a refusal")
        lab.expect(int(bench.written(bench.output()).sum()), 0, f"elements written at {scale}")
    lab.judged_run(bench, step, inputs)


def a_scale_that_changes_after_the_capture_is_flagged(
    lab: Lab, bench: Bench, step: Step, inputs: StepInputs
) -> None:
    """A graph keeps the scale that it was captured with; another one on the device shows."""
    if "scale-check" not in lab.subject.capabilities:
        raise Unobservable("capability scale-check")
    if "capture" not in lab.subject.capabilities:
        raise Unobservable("capability capture")
    built = bench.build(step)
    with bench.runtime.capture() as graph:
        bench.forward(built, step.padded_rows)
    bench.load(inputs)
    graph.replay()
    lab.golden(bench, bench.output(step.rows), bench.golden(step, inputs), "the replay")
    lab.expect(bench.observe().need("flags"), frozenset(), "flags while the scale is as captured")
    bench.set_scale(bench.config.k_scale * (1 + 2.0**-20))
    graph.replay()
    bench.runtime.synchronize()
    lab.expect(bench.observe().need("flags"), frozenset({"scale_changed"}), "flags afterwards")
