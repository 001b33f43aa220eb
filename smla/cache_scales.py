"""What a forward is given of its cache's scales: checked against the configuration."""

import torch
from torch import Tensor

from smla import errors
from smla.config import SparseMLAConfig
from smla.engines.base import Engine
from smla.group_scales import check_group_scales
from smla.kv_cache import FlatCache
from smla.scale import ONE, KVScale


def given_scale(
    config: SparseMLAConfig,
    engine: Engine,
    device: torch.device,
    k_scale: float | None,
    device_k_scale: Tensor | None,
) -> KVScale:
    """Return the cache's scale, or the rope part's; raise errors.ScaleError for a bad one."""
    if config.kv_dtype == torch.bfloat16:
        for name, given in (("k_scale", k_scale), ("device_k_scale", device_k_scale)):
            if given is not None:
                raise errors.ScaleError(
                    name,
                    found=type(given).__name__ if isinstance(given, Tensor) else given,
                    allowed="None for a BF16 cache",
                    remedy="a BF16 cache holds the values themselves",
                )
        return ONE
    if device_k_scale is not None:
        wanted = (torch.float32, 1, device)
        found = (device_k_scale.dtype, device_k_scale.numel(), device_k_scale.device)
        if found != wanted:
            raise errors.ScaleError(
                "device_k_scale",
                found="{} [{}] on {}".format(*found),
                allowed="{} [{}] on {}".format(*wanted),
                remedy="pass the scale that the cache write reads, or None",
            )
    if config.scale_groups:
        if k_scale is None and device_k_scale is not None:
            raise errors.ScaleError(
                "device_k_scale",
                found="a tensor, and None for k_scale",
                allowed="the same scale on the device and on the host",
                remedy="pass k_scale too, or neither",
            )
        return KVScale.of_rope(k_scale, needed=config.head_dim_kpe > 0)
    scale = KVScale.of(k_scale)
    engine.check_scale(scale)
    return scale


def check_given_groups(
    config: SparseMLAConfig, cache: FlatCache, device: torch.device, ckv_scale_arr: Tensor | None
) -> None:
    """Raise an error of `smla.errors` unless there are group scales where, and as, configured."""
    if ckv_scale_arr is not None and config.scale_groups:
        check_group_scales(ckv_scale_arr, cache, device)
    elif ckv_scale_arr is not None:
        raise errors.ScaleError(
            "ckv_scale_arr",
            found="an array",
            allowed=f"None where kv_scaling is {config.kv_scaling!r}",
            remedy="configure kv_scaling='group' for a cache with group scales",
        )
    elif config.scale_groups:
        raise errors.ScaleError(
            "ckv_scale_arr",
            found="None",
            allowed="the cache's group scales where kv_scaling is 'group'",
            remedy="take them from smla.new_group_scales once, write with smla.write_per_group",
        )
