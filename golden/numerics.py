"""Hard numbers: what is done to drawn queries and cache bytes so that rounding errors show.

Only signs, exponents and whole elements are changed, bit by bit, so that equal draws stay equal
bytes on any machine. "Sign" and "subnormal" mean the same in BF16 and in E4M3.
"""

from dataclasses import dataclass

import torch

from golden.draw import Draw

_CONSTANT = 32  # channels of each part that all tokens have in common in "equal"


@dataclass(frozen=True, eq=False)
class Drawn:
    """What may be changed in place.

    q: BF16 [rows, heads, head_dim]. raw: uint8 [cache rows, row bytes].
    scales: float32 [cache rows, groups], or None. ckv: where the rope part begins.
    slots: for each row the cache rows that it selects.
    """

    q: torch.Tensor
    raw: torch.Tensor
    scales: torch.Tensor | None
    ckv: int
    slots: list[torch.Tensor]

    @property
    def bits(self) -> torch.Tensor:
        """The cache's elements as integers, [cache rows, head_dim]: int16 BF16, uint8 E4M3."""
        wide = self.raw.shape[1] != self.q.shape[2]
        return self.raw.view(torch.int16) if wide else self.raw


def harden(kind: str, drawn: Drawn, draw: Draw) -> None:
    """Change `drawn` into one of `recipe.NUMERICS`."""
    _KINDS[kind](drawn, draw)


def _plain(drawn: Drawn, draw: Draw) -> None:
    """Nothing."""


def _dominating(drawn: Drawn, draw: Draw) -> None:
    """One token of each row points where all queries point: it has nearly all weight."""
    signs = draw.ints([drawn.q.shape[2]], 0, 2)
    _set_signs(_q_bits(drawn), signs)
    for slots in drawn.slots:
        chosen = drawn.bits[slots[:1]]
        _set_signs(chosen, signs)
        drawn.bits[slots[:1]] = chosen
        if drawn.scales is not None:
            drawn.scales[slots[:1]] = drawn.scales.amax(0)


def _negative(drawn: Drawn, draw: Draw) -> None:
    """All tokens point away from all queries: every logit is far below zero."""
    signs = draw.ints([drawn.q.shape[2]], 0, 2)
    _set_signs(_q_bits(drawn), signs)
    _set_signs(drawn.bits, 1 - signs)


def _equal(drawn: Drawn, draw: Draw) -> None:
    """Queries see channels alone that are the same in all tokens: all logits of a row are equal,
    and no value is zero."""
    for start, stop in ((0, drawn.ckv), (drawn.ckv, drawn.q.shape[2])):
        end = min(start + _CONSTANT, stop)
        drawn.bits[:, start:end] = drawn.bits[0, start:end]
        drawn.q[..., end:stop] = 0
    if drawn.scales is not None:
        drawn.scales[:, 0] = drawn.scales[0, 0]


def _cancelling_values(drawn: Drawn, draw: Draw) -> None:
    """Every second cache row is the negative of the one before it."""
    negative = drawn.bits[::2].clone()
    negative[:] ^= _sign_bit(negative)
    drawn.bits[1::2] = negative[: len(drawn.bits[1::2])]
    if drawn.scales is not None:
        drawn.scales[1::2] = drawn.scales[::2][: len(drawn.scales[1::2])]


def _cancelling_logits(drawn: Drawn, draw: Draw) -> None:
    """In half of the compressed part neighbouring channels are equal, and the queries, 64 times
    as large there, opposite: large sums cancel exactly."""
    half = drawn.ckv // 2
    drawn.bits[:, 1:half:2] = drawn.bits[:, 0 : half - 1 : 2]
    drawn.q[..., 0 : half - 1 : 2] *= 64.0
    drawn.q[..., 1:half:2] = -drawn.q[..., 0 : half - 1 : 2]


def _denormal(drawn: Drawn, draw: Draw) -> None:
    """Half of the cache's elements and a quarter of the queries' are subnormal."""
    bits, q_bits = drawn.bits, _q_bits(drawn)
    _clear_exponents(bits, draw.ints(bits.shape, 0, 2) == 0)
    _clear_exponents(q_bits, draw.ints(q_bits.shape, 0, 4) == 0)


_KINDS = {
    "plain": _plain,
    "dominating": _dominating,
    "equal": _equal,
    "negative": _negative,
    "cancelling-values": _cancelling_values,
    "cancelling-logits": _cancelling_logits,
    "denormal": _denormal,
}


def _q_bits(drawn: Drawn) -> torch.Tensor:
    return drawn.q.view(torch.int16)


def _sign_bit(bits: torch.Tensor) -> int:
    return -(2**15) if bits.dtype == torch.int16 else 0x80


def _set_signs(bits: torch.Tensor, signs: torch.Tensor) -> None:
    """Make elements [..., dim] negative where `signs` [dim] is 1, positive where it is 0."""
    sign = _sign_bit(bits)
    pattern = torch.where(signs == 1, sign, 0).to(bits.dtype)
    bits.bitwise_and_(~sign if bits.dtype == torch.int16 else 0x7F).bitwise_or_(pattern)


def _clear_exponents(bits: torch.Tensor, where: torch.Tensor) -> None:
    """Make elements subnormal (or zero, where nothing else is left)."""
    keep = -(2**15) + 0x7F if bits.dtype == torch.int16 else 0x87
    bits.copy_(torch.where(where, bits & keep, bits))
