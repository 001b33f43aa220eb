"""Drawing a cache with group scales: codes of either range, and scales far apart in one row."""

import torch
from torch import Tensor

from conformance.core.case import Config
from golden import Draw

_TAILS = (0, 0, 0, 0, 0, 0, 1, 1, 2, -1, -2, -3, -5, -8, -14, -30)
"""Exponents of a scale beside the cache's level: few are far off. Upwards they end soon: a group
far above all others would be all that a row attends to, and the weight of the rest underflow."""

_FULL = 7
"""Binades between codes of unit variance and codes up to 448, as a cache write leaves them."""

_LEVELS = (-1, 0, 0, 1)
"""The level of a cache's group scales beside its rope part's, as exponents."""


def drawn(draw: Draw, rows: int, config: Config, device: str) -> tuple[Tensor, Tensor]:
    """Return bytes (uint8, flat) and scales (float32 [rows, groups]) of `rows` cache rows.

    Half of the caches use E4M3's whole range in the compressed part. Of scales, a quarter are
    powers of two; the others have full mantissas.
    """
    ckv, groups = config.head_dim_ckv, config.groups
    raw = draw.e4m3((rows, ckv + config.head_dim_kpe), device)
    level = config.k_scale * 2.0 ** draw.choice(_LEVELS)
    if draw.randint(0, 2):
        values = raw[:, :ckv]
        raw[:, :ckv] = torch.where((values & 0x78) > 0, values + (_FULL << 3), values)
        level *= 2.0**-_FULL
    shape = (rows, groups)
    powers = torch.tensor([2.0**tail for tail in _TAILS], dtype=torch.float64, device=device)
    tails = powers[draw.ints(shape, 0, len(_TAILS), device)]
    mantissas = 1 + draw.ints(shape, 0, 2**23, device).double() * 2.0**-23
    whole = draw.ints(shape, 0, 4, device) == 0
    scales = torch.where(whole, 1.0, mantissas) * tails * level
    return raw.view(-1), scales.float()
