"""All that differs between FlashInfer versions, and where their native module comes from.

| version | module loader | raw `plan` returns | copies by itself |
|---|---|---|---|
| 0.7.2.post1 | flashinfer.mla._batch_mla._backends._fa_common | (info, staged bytes) | no |

Only versions in this table are used; others are refused.
"""

from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

import torch

from smla import errors
from smla.config import SparseMLAConfig

KNOWN_VERSIONS = ("0.7.2.post1",)


class NativeModule(Protocol):
    """FlashInfer's compiled MLA module, called as its C++ binding declares it.

    plan(float_workspace, int_workspace, pinned, qo_indptr, kv_indptr, kv_len, num_heads,
    head_dim_o, causal) writes `pinned` and returns (plan-info of 18 ints, staged bytes);
    run(float_workspace, int_workspace, plan_info, q_nope, q_pe, ckv, kpe, kv_indices, out, lse,
    mask_mode, num_heads, page_size, sm_scale, return_lse_base_on_e, ckv_scale, kpe_scale,
    ckv_scale_arr) launches on the current stream.
    """

    plan: Any
    run: Any


class NativeSource(Protocol):
    """Where native modules come from: the installed FlashInfer, or a simulation of one."""

    version: str
    head_dims_ckv: frozenset[int] | None

    def load(self, config: SparseMLAConfig) -> NativeModule:
        """Return the module for this configuration's dtypes and head dimensions."""


class InstalledFlashInfer:
    """The FlashInfer of this environment."""

    head_dims_ckv: frozenset[int] | None = frozenset({512})

    def __init__(self) -> None:
        self.version = installed_version()
        if self.version not in KNOWN_VERSIONS:
            raise errors.VersionError(
                "FlashInfer",
                found=f"version {self.version}",
                allowed=", ".join(KNOWN_VERSIONS),
                remedy="install a known version",
            )

    def load(self, config: SparseMLAConfig) -> NativeModule:
        """Load the prebuilt module, or have FlashInfer build it (about 45 s, once)."""
        from flashinfer.mla._batch_mla._backends._fa_common import get_batch_mla_module

        module = get_batch_mla_module(
            "fa3",
            torch.bfloat16,
            config.kv_dtype,
            torch.bfloat16,
            torch.int32,
            config.head_dim_ckv,
            config.head_dim_kpe,
            False,
        )
        # FlashInfer's Python adapter adds staging and a copy of its own around the raw plan.
        raw: NativeModule | None = getattr(module, "_module", None)
        if raw is None:
            raise errors.VersionError(
                "FlashInfer's module adapter",
                found=f"{type(module).__name__} without the module it wraps",
                allowed="an adapter with the raw module in `_module`",
                remedy="install a known version: " + ", ".join(KNOWN_VERSIONS),
            )
        return raw


def installed_version() -> str:
    """Return the installed FlashInfer's version; raise errors.VersionError without one."""
    try:
        return version("flashinfer-python")
    except PackageNotFoundError:
        raise errors.VersionError(
            "FlashInfer",
            found="not installed",
            allowed=", ".join(KNOWN_VERSIONS),
            remedy="pip install flashinfer-python==" + KNOWN_VERSIONS[-1],
        ) from None
