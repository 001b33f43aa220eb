"""The one tolerance function: how far a correct engine's output may lie from the golden one.

The bound is built, element by element, from the roundings that a flash-attention engine with
BF16 tensor-core inputs makes. Nothing in it is fitted to a measured error. Notation: p softmax
weights, v values, o the exact output, s logits, s' = s minus its p-mean, spread =
sqrt(sum p v^2 - o^2) the deviation of v under p (so sum p |v - o| <= spread and
sum p |v| <= sqrt(sum p v^2)). A format with b significant bits (the hidden one counted) rounds
to nearest with a relative error of at most u = 2**-b: 2**-8 for BF16.

Deterministic parts, of one rounding or of errors with one known sign, enter with their
largest size. Sums of n independent roundings enter by probability. A rounding error is spread
evenly over at most [-a, a], a = u |x|; such a variable is strictly sub-Gaussian with a
variance of at most a^2 / 3, hence P(|sum| > K sqrt(sum a_i^2 / 3)) <= 2 exp(-K^2 / 2). K = 8
makes that 2.6e-14: over 1e10 judged elements a correct engine fails with a chance below 3e-4.

The terms:

1. the output's roundings: u_out |o|, where an engine may write FP16 first, and FP16's smallest
   subnormal steps (floor);
2. split rows: each piece's partial result is rounded, u_partial |sum p v| in the piece;
3. the weights' rounding, which the normalising sum does not see: u_p |o| for what tokens have
   in common (equal logits round equally), and independent roundings of u_p p v;
4. decoding FP8 by multiplication with a rounded scale, rounded again. The relative error then
   depends on the element's 3 mantissa bits alone: eight known numbers, written as their centre
   e and the deviations from it, at most w. The centre scales values and logits: e |o| +
   e |sum p s' v| and, of second order, e^2 / 2 sqrt(sum p s'^4) spread. The deviations have a
   common part, w |o| + w |sum p s' v|, and the rest w v, w q k, whose signs are those of v and
   q k: Rademacher sums, sub-Gaussian with variance w^2 each (no third off), from the values
   w^2 sum p^2 v^2, from the logits w^2 sum p^2 c^2 (v - o)^2 (c^2: see `answer.DecodeSums`),
   times (1 + w max c)^2 for their second order.
   With a scale for each row and group (float32; the product is rounded to BF16 once, 2**-8), the
   eight numbers are others for every scale. Then e = 0 and w is the largest error of all: its
   common part is, for the groups' logits s_g, w |o| + w sum over g of |sum p s_g' v|, and c^2
   gains sum over g of s_g^2, for what the channels of one token's group have in common.
5. float32: a tensor-core step adds 16 products and may truncate, 2**-23 of the sum's size. A
   logit: head_dim / 16 steps and 4 operations more, times its reach, moves o by at most that
   times spread. The weighted sum, its rescaling and the normalising sum: n / 4 steps, and 8
   operations (exp2, division, merge), times sum p |v|;
6. a floor of 2**-133, BF16's smallest subnormal.

The independent parts of 2, 3 and 4 enter together, K sqrt(the sum of their variances), or with
their largest sizes where that is less: (u_p + w) sum p |v| for few tokens, common parts
included, and u_partial sum over pieces |sum p v| for few pieces.

Products of roundings, and the three-digit sums they are computed from, are covered by a factor
1 + 2**-6 over everything.

What the model takes from the test: values and logits without conspiracies. Groups of tokens
with equal logits and values of one sign per group defeat the independence of term 3.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import torch

from golden.answer import Golden
from golden.refusal import refusal

_K = 8.0
_F32_STEP = 2.0**-23
_MMA_K = 16
_FLOOR = 2.0**-133
_SLACK = 1 + 2.0**-6
_WORST = 5
_FP16_UNIT, _FP16_FLOOR = 2.0**-11, 2.0**-25
_GROUP_UNIT = 2.0**-8 + 2.0**-23  # a float32 product, then BF16


def _nearest(x: float, bits: int) -> float:
    """x rounded to `bits` significant bits, ties to even, without limits on the exponent."""
    mantissa, exponent = math.frexp(x)
    return math.ldexp(round(math.ldexp(mantissa, bits)), exponent - bits)


def _product_errors(scale: float) -> tuple[Fraction, Fraction]:
    """The least and the largest relative error of an E4M3 value times a scale, where the scale
    comes as float32 and is rounded to BF16, and the product too."""
    rounded, exact = _nearest(_nearest(scale, 24), 8), Fraction(scale)
    errors = [Fraction(_nearest(m * rounded, 8)) / (m * exact) - 1 for m in range(8, 16)]
    return min(errors), max(errors)


@dataclass(frozen=True)
class Roundings:
    """Which roundings the engine makes; significant bits, the hidden one counted (BF16: 8).

    p_bits: of the softmax weights before they meet the values.
    out_bits: of the output. partial_bits: of a split row's partial results.
    out_unit, out_floor: of another rounding of the output before that, relative and absolute.
    scale_error, kv_unit: centre and largest deviation of the relative errors of decoded cache
        elements, term 4 of the module's docstring; 0 where decoding is exact.
    """

    p_bits: int = 8
    out_bits: int = 8
    partial_bits: int = 8
    out_unit: float = 0.0
    out_floor: float = 0.0
    scale_error: float = 0.0
    kv_unit: float = 0.0

    @property
    def kv_product(self) -> bool:
        """Whether decoding a cache element rounds differently from element to element."""
        return self.kv_unit > 0

    @classmethod
    def of(cls, fmt: str, scale: float) -> "Roundings":
        """FlashInfer's on SM90 (0.7.2.post1, mla_hopper.cuh): a BF16 cache as it is; E4M3
        widened to BF16, exactly, and multiplied in BF16 by the scale, which comes as a float32
        and is rounded to BF16. An engine that scales exactly, or with one of these roundings
        only, is within the same bound; so is one that applies the scale's power of two, within
        2**-12 to 2**7, to the cache and the rest to an output that was rounded to FP16.

        "e4m3_group": the compressed part is widened to BF16, exactly, multiplied in float32 by
        its group's scale, and rounded to BF16; `scale`, the rope part's, as for "e4m3". A scale
        that is no power of two widens the bound of all elements, for kv_unit is one number.

        Raises ValueError for another `fmt`.
        """
        if fmt == "bf16":
            return cls()
        if fmt not in ("e4m3", "e4m3_group"):
            allowed = "'bf16', 'e4m3' or 'e4m3_group'"
            raise ValueError(refusal("cache format", repr(fmt), allowed, "name one of these"))
        low, high = _product_errors(scale)
        if fmt == "e4m3_group":
            return cls(kv_unit=max(_GROUP_UNIT, float(abs(low)), float(abs(high))))
        return cls(
            out_unit=_FP16_UNIT,
            out_floor=_FP16_FLOOR * scale / 2.0 ** min(max(math.frexp(scale)[1] - 1, -12), 7),
            scale_error=float((high + low) / 2),
            kv_unit=float((high - low) / 2),
        )


@dataclass(frozen=True)
class Verdict:
    """What `compare` found.

    ok: every element within its bound, and of the golden kind (finite, NaN, +Inf, -Inf).
    max_error: worst row's relative Frobenius error, over elements finite on both sides.
    max_ratio: worst |error| / bound; inf where an element is of the wrong kind.
    worst: up to five elements by ratio: (row, head, dim, got, expected, bound).
    message: the same for people.
    """

    ok: bool
    max_error: float
    max_ratio: float
    worst: tuple[tuple[int, int, int, float, float, float], ...]
    message: str


def bound(golden: Golden, roundings: Roundings) -> torch.Tensor:
    """[rows, heads, ckv], of value_sq's type: the largest error allowed; 0 in rows without tokens.

    Not meaningful where golden.out is not finite. Raises ValueError where `roundings` tells
    of decoding errors and `golden` was made for a cache that decodes exactly.
    """
    u_out, u_p, u_partial = (
        2.0**-bits for bits in (roundings.out_bits, roundings.p_bits, roundings.partial_bits)
    )
    kind = golden.value_sq.dtype
    size, value = golden.out.to(kind).abs(), golden.value_sq.sqrt()
    spread = golden.value_sq.addcmul(size, size, value=-1).clamp_(min=0).sqrt_()
    steps = (golden.count.to(kind) / 4 + 8)[:, None, None]
    logit = (golden.head_dim / _MMA_K + 4) * _F32_STEP * golden.logit_reach.to(kind)[..., None]

    e, w = abs(roundings.scale_error), roundings.kv_unit
    common, partials = (u_p + w) * size, u_partial * golden.partials
    total = size.mul_(u_out + roundings.out_unit + e).addcmul_(value, steps * _F32_STEP)
    few_tokens = value.mul_(u_p + w).add_(partials)
    variance = golden.value_sq_p * (u_p * u_p / 3 + w * w)
    if e or w:
        decode = golden.decode
        if decode is None:
            raise ValueError(
                refusal(
                    "roundings",
                    f"scale_error {roundings.scale_error}, kv_unit {w}",
                    "0 and 0 for a cache that decodes exactly",
                    "derive them from the same cache, Roundings.of(fmt, scale)",
                )
            )
        total.add_(decode.value_shift.abs(), alpha=e + w)
        logit = logit + (e * e / 2 * decode.logit_fourth.to(kind))[..., None]
        second_order = (1 + w * decode.logit_noise_max.to(kind)).square()[..., None]
        logit_noise = (w * w * second_order) * decode.logit_noise_sq
        variance += logit_noise
        few_tokens.add_(logit_noise.sqrt_(), alpha=_K)
    total.addcmul_(spread, logit)
    pieces = variance.add(golden.partials_sq, alpha=u_partial * u_partial / 3)
    few_pieces = partials.add_(variance.sqrt_(), alpha=_K)
    many = pieces.sqrt_().mul_(_K)
    independent = torch.minimum(few_pieces, many, out=many).add_(common)
    total += torch.minimum(few_tokens, independent, out=independent)
    total.add_(roundings.out_floor + _FLOOR).mul_(_SLACK)
    total[golden.count == 0] = 0
    return total


def compare(observed: torch.Tensor, golden: Golden, roundings: Roundings) -> Verdict:
    """The verdict on `observed` [rows, heads, ckv], any float type and device.

    Kinds first: NaN must stand where golden has NaN, Inf of the same sign where it has Inf,
    and nowhere else. Then |observed - golden| <= bound, element by element. Rows without
    tokens must be exactly zero, of either sign.

    Raises ValueError for another shape, or as `bound` does.
    """
    expected = golden.out
    if observed.shape != expected.shape:
        found, allowed = f"{[*observed.shape]}", f"{[*expected.shape]}, as golden's"
        fix = "pass all rows, heads and channels of the output"
        raise ValueError(refusal("shape of observed", found, allowed, fix))
    got = observed.to(expected.device, torch.float64)
    limit = bound(golden, roundings)
    error = (got - expected).abs_()
    numbers, alike = None, None  # None where everything is finite and above its bound of 0
    ratio = error.to(limit.dtype, copy=True).div_(limit)
    if not bool(ratio.sum(dtype=torch.float64).isfinite()):
        numbers = got.isfinite() & expected.isfinite()
        alike = (got == expected) | (got.isnan() & expected.isnan())
        ratio = torch.where(numbers, ratio, torch.inf).masked_fill_(alike, 0.0)
        ratio = torch.where(ratio.isnan(), torch.inf, ratio)

    top, places = _largest(ratio, _WORST)
    max_ratio = top[0] if top else 0.0
    worst = []
    for place, value in zip(places, top, strict=True):
        if value > 0:
            row, rest = divmod(place, expected.shape[1] * expected.shape[2])
            head, dim = divmod(rest, expected.shape[2])
            at = (row, head, dim)
            worst.append((*at, float(got[at]), float(expected[at]), float(limit[at])))
    outside = int((ratio > 1).sum()) if max_ratio > 1 else 0
    wrong_kind = 0 if numbers is None or alike is None else int((~numbers & ~alike).sum())
    lines = [
        f"  row {row} head {head} dim {dim}: got {a:.9g}, expected {b:.9g}, "
        f"bound {c:.3g}, error {abs(a - b):.3g}"
        for row, head, dim, a, b, c in worst
    ]
    if outside:
        rows = (ratio > 1).flatten(1).any(1).nonzero().flatten().tolist()
        shown = ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")
        head_line = (
            f"{outside} of {ratio.numel()} elements are outside their bound, {wrong_kind} of them "
            f"NaN or Inf on one side only, in {len(rows)} of {len(ratio)} rows ({shown}); "
            f"worst error {max_ratio:.3g} times its bound"
        )
    else:
        head_line = (
            f"all {ratio.numel()} elements are within their bounds; "
            f"worst error {max_ratio:.3g} times its bound"
        )
    if numbers is not None:
        error, expected = torch.where(numbers, error, 0.0), torch.where(numbers, expected, 0.0)
    both, scale = error.flatten(1).norm(dim=1), expected.flatten(1).norm(dim=1)
    relative = torch.where(both > 0, both / scale, 0.0)
    return Verdict(
        ok=outside == 0,
        max_error=float(relative.max()) if len(relative) else 0.0,
        max_ratio=max_ratio,
        worst=tuple(worst),
        message="\n".join([head_line, *lines]),
    )


def _largest(values: torch.Tensor, count: int) -> tuple[list[float], list[int]]:
    """The `count` largest values, falling, and their places; those of a few vectors suffice.

    Picked on the host: torch's CUDA top-k reads scratch that it never wrote, which is harmless
    but fills a sanitizer's report.
    """
    if not values.numel():
        return [], []
    width = values.shape[-1]
    of_vectors = values.amax(-1).flatten().cpu()
    vectors = of_vectors.topk(min(count, of_vectors.numel())).indices
    some = values.view(-1, width)[vectors.to(values.device)].cpu().flatten()
    top = some.topk(min(count, some.numel()))
    places = vectors[top.indices // width] * width + top.indices % width
    return top.values.tolist(), places.tolist()
