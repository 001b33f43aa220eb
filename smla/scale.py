"""Scales: what the softmax and an FP8 cache may be scaled by, and how the exact scale is applied.

FlashInfer's kernel multiplies E4M3 values by the cache's scale in BF16 (0.6.18 to 0.7.4,
mla_hopper.cuh), which rounds the scale to 8 bits and every product again. A power of two passes
through unharmed. So a scale is split into a power of two, given to the kernel, and a rest, which
scales the logits through sm_scale (float32) and the output in `smla.kernels.rescale`. That the
output is not rounded to BF16 twice, FlashInfer's module writes it as FP16.

Group scales are another path of the kernel: an E4M3 value times its group's float32 scale, in
float32, rounded once to BF16. They need no such splitting, and no FP16. What is left of `k_scale`
beside them is the rope part's scale, which the kernel still applies in BF16: so it must be a power
of two, for nothing else could make up for its rounding.
"""

import math
from dataclasses import dataclass

import torch

from smla import errors

GROUP = 128
"""Channels of the compressed part that share a scale, where scales come in groups."""

_SMALLEST, _LARGEST = torch.finfo(torch.bfloat16).tiny, torch.finfo(torch.bfloat16).max
SM_SCALES = f"a float above 0, from {_SMALLEST:.3g} to {_LARGEST:.3g}"
_KV_EXPONENT = 40
_LEAST_EXPONENT, _MOST_EXPONENT = -12, 7
LEAST_POWER = 2.0**_LEAST_EXPONENT
KV_SCALES = f"a float from 2**-{_KV_EXPONENT} to 2**{_KV_EXPONENT}"


def is_sm_scale(value: object) -> bool:
    """Return whether a softmax scale neither overflows nor vanishes in the kernel's float32.

    A Python float or int; not a bool, and not a tensor, which would be read from the device.
    """
    return _is_number(value) and _SMALLEST <= value <= _LARGEST  # type: ignore[operator]


@dataclass(frozen=True)
class KVScale:
    """The per-tensor scale of an FP8 cache: value = power * rest."""

    value: float
    power: float
    rest: float

    @classmethod
    def of(cls, value: object) -> "KVScale":
        """Split a scale; raise errors.ScaleError unless it is one of KV_SCALES.

        The power is the largest one not above the value, as far as E4M3 values times the power
        lie well within FP16: from 2**-12 to 2**7. Beyond, the kernel's logits have another size
        than the true ones, which sm_scale makes up for.
        """
        least, most = 2.0**-_KV_EXPONENT, 2.0**_KV_EXPONENT
        if not _is_number(value) or not least <= value <= most:  # type: ignore[operator]
            raise errors.ScaleError(
                "k_scale",
                found=_found(value),
                allowed=f"{KV_SCALES} for an FP8 cache",
                remedy="pass the scale that the cache was written with",
            )
        exponent = math.frexp(value)[1] - 1  # type: ignore[arg-type]
        power = 2.0 ** min(max(exponent, _LEAST_EXPONENT), _MOST_EXPONENT)
        return cls(float(value), power, value / power)  # type: ignore[arg-type, operator]

    @classmethod
    def of_rope(cls, value: object, *, needed: bool) -> "KVScale":
        """The scale of the rope part beside group scales; where that is not `needed`, None does.

        Raises errors.ScaleError unless it is a power of two, which BF16 holds, of KV_SCALES.
        """
        if value is None and not needed:
            return ONE
        least, most = 2.0**-_KV_EXPONENT, 2.0**_KV_EXPONENT
        fits = _is_number(value) and least <= value <= most  # type: ignore[operator]
        if not fits or math.frexp(value)[0] != 0.5:  # type: ignore[arg-type]
            raise errors.ScaleError(
                "k_scale",
                found=_found(value),
                allowed=f"a power of two from 2**-{_KV_EXPONENT} to 2**{_KV_EXPONENT}, for the "
                "rope part beside group scales: the kernel rounds it to BF16"
                + ("" if needed else "; or None, since there is no rope part"),
                remedy="write the rope part with a power of two (1.0 if its values are moderate)"
                if needed
                else "pass None: the compressed part has its scales in ckv_scale_arr",
            )
        return cls(float(value), float(value), 1.0)  # type: ignore[arg-type]


ONE = KVScale(1.0, 1.0, 1.0)


def _found(value: object) -> str:
    """A tensor is told by its type alone: its value may be on a device, and take a wait."""
    return type(value).__name__ if isinstance(value, torch.Tensor) else repr(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
