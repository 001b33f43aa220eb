"""The exact answer of an attention, and the sums from which an honest engine's error is bounded."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class DecodeSums:
    """What errors in decoding the cache are weighted with. float32 or float64 (three digits
    count); s' is s minus its mean. Where parts of a row are decoded with factors of their own
    (the groups of "e4m3_group", and its rope part unless that is exact), s_g is what part g adds
    to s, and d runs over those parts alone.

    value_shift [rows, heads, ckv]: sum p s' v, the change of out when all logits are scaled;
        with parts, the sum over g of |sum p s_g' v|.
    logit_noise_sq [rows, heads, ckv]: sum p^2 c^2 (v - out)^2, where
        c^2 = sm_scale^2 * sum_d q_d^2 k_d^2 is the variance of s per unit of relative,
        independent error of the k_d; with parts, plus the sum over g of s_g^2, for errors that a
        token's part has in common.
    logit_noise_max [rows, heads]: the largest c of the row's tokens.
    logit_fourth [rows, heads]: sqrt(sum p s'^4).
    """

    value_shift: torch.Tensor
    logit_noise_sq: torch.Tensor
    logit_noise_max: torch.Tensor
    logit_fourth: torch.Tensor


@dataclass(frozen=True, eq=False)
class Golden:
    """The exact answer and the sums that bound an engine's error, on q's device.

    out, lse and logit_reach are float64, the other sums float64 where float32 has not the range.

    out [rows, heads, ckv]: 0 in rows without tokens.
    lse [rows, heads]: natural log of sum exp(s); -inf in rows without tokens.
    count [rows], int64: selected tokens.
    value_sq [rows, heads, ckv]: sum p v^2.
    value_sq_p [rows, heads, ckv]: sum p^2 v^2.
    partials [rows, heads, ckv]: sum over the row's pieces of |sum of p v in the piece|; 0 in
        a row of one piece; sum p |v| where the pieces are not known.
    partials_sq [rows, heads, ckv]: the same with the squares of the pieces' sums; where the
        pieces are not known, (sum p |v|)^2, which no cut exceeds.
    logit_reach [rows, heads]: sm_scale * |q| * max |k|, a bound on every partial sum of s.
    decode: None where decoding the cache is exact (BF16, or a power of two as the one scale).
    head_dim: elements of a dot product q . k.
    """

    out: torch.Tensor
    lse: torch.Tensor
    count: torch.Tensor
    value_sq: torch.Tensor
    value_sq_p: torch.Tensor
    partials: torch.Tensor
    partials_sq: torch.Tensor
    logit_reach: torch.Tensor
    decode: DecodeSums | None
    head_dim: int
