"""The merge of one row's partial results, as state_t does it, for many rows at once.

Source: FlashInfer, include/flashinfer/attention/state.cuh; the numbers it starts from and whether
it guards against empty states differ by version (`conformance.twin.semantics`). It merges one
partial result after the other; here all weights are taken against the final maximum, which gives
the same zeros, infinities and NaN, and the same values but for the last bits of float32.
"""

from __future__ import annotations

import torch

from conformance.twin.semantics import Semantics


def combine(
    lse: torch.Tensor, values: torch.Tensor, semantics: Semantics
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalised output [rows, dim] and base-2 LSE [rows], float32.

    lse: base-2 LSEs [rows, pieces] of the partial results, -inf where there is none.
    values: their outputs [rows, pieces, dim], 0 where there is none. All float32.
    """
    peak = lse.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf).amax(-1)
    peak.clamp_(min=semantics.minus_inf)
    exponents, first = lse - peak[:, None], semantics.minus_inf - peak
    if semantics.guards_merge:
        exponents.nan_to_num_(nan=-torch.inf)
        first.nan_to_num_(nan=-torch.inf)
    weights = exponents.exp2_()
    total = semantics.initial_merge_sum * first.exp2_() + weights.sum(-1)
    factor = 1 / total
    if semantics.guards_merge:
        factor = torch.where(total > 0, factor, 0.0)
    o = torch.bmm(weights[:, None, :], values)[:, 0]
    return o * factor[:, None], peak + total.log2()
