"""Admission: a tiny batch planned and run at construction, so that what is admitted works.

It also compiles every Triton kernel of a forward, so that no step does.
"""

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from smla import errors
from smla.builder import SparseMLABuilder
from smla.config import SparseMLAConfig
from smla.flags import Flag
from smla.layout import BatchLayout
from smla.scale import GROUP

if TYPE_CHECKING:
    from smla.backend import SparseMLABackend

_MANTISSA, _MOST_EXPONENT = 1.75, 39
_MOST_ERROR = 2.0**-6
"""Relative error allowed; a correct engine's is below 2**-7."""


def admit(backend: "SparseMLABackend", version: str) -> None:
    """Raise errors.AdmissionError unless a tiny batch comes out right; see `_try`."""
    try:
        _try(backend, version)
    except errors.SmlaError:
        raise
    except Exception as problem:  # whatever a native module raises
        found = f"{type(problem).__name__}: {problem}"
        raise _refusal(version, found, "no error of its own") from problem


def _try(backend: "SparseMLABackend", version: str) -> None:
    """Raise errors.AdmissionError unless a row of 1 token and one of 37 come out right.

    Both under a plan for 37, so that the clamp's part is seen.

    The row of one token must be exact: any weight that a masked position keeps would show. Such a
    weight is what a FlashInfer that masks with a finite logit (0.6.18: -50000) leaves behind where
    sm_scale is very small.
    """
    config, runtime = backend.config, backend.runtime
    tiny = replace(config, max_tokens=1, max_graph_tokens=0)
    builder = SparseMLABuilder(tiny, runtime, backend.engine)
    fp8 = config.kv_dtype != torch.bfloat16
    # Powers of two that give logits of about one, in the cache's scale where there is one.
    size = -round(math.log2(config.sm_scale * config.head_dim**0.5))
    of_scale = min(max(size, -_MOST_EXPONENT), _MOST_EXPONENT) if fp8 else 0
    of_scale = of_scale or int(fp8)  # a power of 1 would not show whether the kernel applies it
    k_scale, groups = _scales(config, of_scale)
    keys = _pattern(config.block_size, config.head_dim, 7, 3).view(1, config.block_size, -1)
    query = _pattern(config.num_heads, config.head_dim, 1, 1).view(1, config.num_heads, -1)
    query = query * 2.0 ** (size - of_scale)
    stored = keys.to(config.kv_dtype)
    cache = _on_device(backend, stored.view(torch.uint8) if fp8 else stored)
    on_device = _on_device(backend, query.bfloat16())
    q = on_device[..., : config.head_dim_ckv], on_device[..., config.head_dim_ckv :]
    scale = (
        None
        if k_scale is None
        else _on_device(backend, torch.from_numpy(np.array([k_scale], np.float32)))
    )
    scaled = keys * (k_scale or 1.0)
    if groups is not None:
        per_channel = groups.double().repeat_interleave(GROUP, -1)
        scaled[..., : config.head_dim_ckv] = keys[..., : config.head_dim_ckv] * per_channel
    starts = _ints([0, 1])
    table = _on_device(backend, _ints([[0]]))
    many = min(37, config.index_topk)
    bound = _ints([many])
    for context in (1, many):  # the second reuses the first one's plan
        length = _ints([context])
        batch = BatchLayout(
            query_start_loc_cpu=starts,
            query_start_loc=_on_device(backend, starts),
            seq_lens=_on_device(backend, length),
            block_table=table,
            seq_lens_cpu_upper_bound=bound,
        )
        selected = _ints([[*range(context), *[-1] * (config.topk_width - context)]])
        unwritten = torch.from_numpy(np.full((1, *q[0].shape[1:]), np.nan, np.float32))
        out = _on_device(backend, unwritten.bfloat16())
        try:
            backend.forward(
                *q,
                cache,
                _on_device(backend, selected),
                builder.build(batch),
                k_scale=k_scale,
                device_k_scale=scale,
                ckv_scale_arr=None if groups is None else _on_device(backend, groups),
                out=out,
            )
        except errors.FlagError as problem:  # debug mode; without it the flags are read below
            raise _refusal(version, problem.found, "no flags") from None
        scale = None  # both variants of the convert kernel are seen
        expected = _attention(query[0], scaled[0, :context], backend)
        got = runtime.read(out)[0].double()
        error = float((got - expected).norm() / expected.norm())
        if not error <= (0.0 if context == 1 else _MOST_ERROR):
            wrong = f"a relative error of {error:.2g} for a row of {context} tokens, sm_scale "
            allowed = "none" if context == 1 else f"{_MOST_ERROR:.2g}"
            raise _refusal(version, f"{wrong}{config.sm_scale:.3g}", allowed)
    if flags := builder.state.read_flags():
        names = ", ".join(flag.name or "" for flag in Flag if flag & flags)
        raise _refusal(version, names, "no flags")


def _refusal(version: str, found: object, allowed: str) -> errors.AdmissionError:
    return errors.AdmissionError(
        f"FlashInfer {version}",
        found=found,
        allowed=f"{allowed}, for a row whose lengths the host knows",
        remedy="use another version; python -m conformance run tells more",
    )


def _scales(config: SparseMLAConfig, exponent: int) -> tuple[float | None, Tensor | None]:
    """k_scale and group scales [block_size, groups] of about 2**exponent, where there are any.

    Neighbours differ, so that a scale of another row or group shows. None times a value of
    `_pattern` is rounded in BF16.
    """
    if config.kv_dtype == torch.bfloat16:
        return None, None
    if not config.scale_groups:
        return _MANTISSA * 2.0**exponent, None
    row, group = np.arange(config.block_size)[:, None], np.arange(config.scale_groups)
    scales = _MANTISSA * 2.0 ** (exponent - (row + group) % 3)
    return 2.0**exponent, torch.from_numpy(scales.astype(np.float32))


def _pattern(rows: int, columns: int, a: int, b: int) -> Tensor:
    """Multiples of 1/8 in [-1, 1), which BF16 and E4M3 hold exactly."""
    row, column = np.arange(rows)[:, None], np.arange(columns)
    return torch.from_numpy(((a * row + b * column + row * column) % 16 - 8) / 8.0)


def _ints(values: list[Any]) -> Tensor:
    """An int32 tensor of the host, whatever torch's default device is."""
    return torch.from_numpy(np.array(values, np.int32))


def _attention(query: Tensor, keys: Tensor, backend: "SparseMLABackend") -> Tensor:
    """Softmax attention in float64: [heads, head_dim_ckv]."""
    weights = torch.softmax(query @ keys.T * backend.config.sm_scale, -1)
    return weights @ keys[:, : backend.config.head_dim_ckv]


def _on_device(backend: "SparseMLABackend", tensor: Tensor) -> Tensor:
    made = backend.runtime.empty(tuple(tensor.shape), tensor.dtype)
    backend.runtime.write(made, tensor)
    return made
