"""All that differs between FlashInfer versions, and where their native module comes from.

What is used is probed, not looked up by version:

| what | 0.6.18 | 0.7.0 to 0.7.4 | how it is told |
|---|---|---|---|
| module's loader, below flashinfer.mla | _core | _batch_mla._backends._fa_common | which exists |
| loaded module | the raw one | an adapter, the raw one in `_module` | the attribute |
| raw `plan` returns | plan-info | (plan-info, staged bytes) | the result's length |
| staged bytes | copied by `plan`, asynchronously | left to the caller | the same |
| logit of masked positions | -50000, unscaled | -inf | the same |

Raw `plan` and `run` take the same arguments in all of them. The wrapper differs much more (it waits
in 0.7.4, refuses padded rows, reuses one staging buffer in 0.6.18, clones its buffers in 0.7) and
is not used.

Versions in `TRUSTED` are admitted; others only for a trial (`trial=True`, or in the environment
SMLA_FLASHINFER_TRIAL=1). Whatever the version, a backend plans and runs a tiny batch at its
construction and is refused unless the answer is right (`smla.admission`).
"""

import importlib
import os
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

import torch
from packaging.specifiers import SpecifierSet

from smla import errors
from smla.config import SparseMLAConfig

TRUSTED = SpecifierSet(">=0.6.18,<=0.7.4")
TRIAL = "SMLA_FLASHINFER_TRIAL"
_LOADERS = ("flashinfer.mla._batch_mla._backends._fa_common", "flashinfer.mla._core")
FINITE_MASK = 5e4
"""Size of the logit, before sm_scale, that a FlashInfer whose planner copies by itself masks with
(0.6.18, math.cuh)."""


class NativeModule(Protocol):
    """FlashInfer's compiled MLA module, called as its C++ binding declares it.

    plan(float_workspace, int_workspace, pinned, qo_indptr, kv_indptr, kv_len, num_heads,
    head_dim_o, causal) writes `pinned`; see `planned` for what it returns;
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
    """The FlashInfer of this environment.

    trial: admit a version outside of TRUSTED; None asks the environment.
    """

    head_dims_ckv: frozenset[int] | None = frozenset({512})

    def __init__(self, *, trial: bool | None = None) -> None:
        self.version = installed_version()
        trial = os.environ.get(TRIAL) == "1" if trial is None else trial
        if not trial and not TRUSTED.contains(self.version, prereleases=True):
            raise errors.VersionError(
                "FlashInfer",
                found=f"version {self.version}",
                allowed=str(TRUSTED),
                remedy=f"install one of these, or set {TRIAL}=1 to try this one",
            )

    def load(self, config: SparseMLAConfig) -> NativeModule:
        """Load the prebuilt module, or have FlashInfer build it (about 45 s, once)."""
        module = _loader()(
            "fa3",
            torch.bfloat16,
            config.kv_dtype,
            out_dtype(config),
            torch.int32,
            config.head_dim_ckv,
            config.head_dim_kpe,
            False,
        )
        native: NativeModule = raw(module)
        return native


def out_dtype(config: SparseMLAConfig) -> torch.dtype:
    """Return what the module writes: FP16 where the output of an FP8 cache is still to be scaled.

    With group scales it is not: the kernel has applied them.
    """
    to_scale = config.kv_dtype == torch.float8_e4m3fn and not config.scale_groups
    return torch.float16 if to_scale else torch.bfloat16


def _loader() -> Any:
    for name in _LOADERS:
        try:
            return importlib.import_module(name).get_batch_mla_module
        except AttributeError:
            continue
        except ModuleNotFoundError as missing:
            if not name.startswith(missing.name or "?"):
                raise  # a package that FlashInfer itself needs
    raise errors.VersionError(
        "FlashInfer",
        found=f"version {installed_version()} without get_batch_mla_module",
        allowed="the function in " + " or ".join(_LOADERS),
        remedy=f"install a FlashInfer of {TRUSTED}",
    )


def raw(module: Any) -> Any:
    """Return the native module under FlashInfer's adapter, or `module` where there is none.

    The adapter adds staging and a copy of its own around `plan`.
    """
    return getattr(module, "_module", module)


def complete(module: Any) -> NativeModule:
    """Return `module`; raise errors.VersionError unless it has what is used of it."""
    missing = [name for name in ("plan", "run") if not callable(getattr(module, name, None))]
    if missing:
        raise errors.VersionError(
            "FlashInfer's native module",
            found=f"{type(module).__name__} without {' and '.join(missing)}",
            allowed="a module with plan and run",
            remedy=f"install a FlashInfer of {TRUSTED}",
        )
    native: NativeModule = module
    return native


def planned(result: Any) -> tuple[Sequence[int], int | None]:
    """Return (plan-info, staged bytes) of what raw `plan` returned.

    None for the bytes: it has queued their copy itself.
    """
    if len(result) == 2:
        return result[0], int(result[1])
    return result, None


def installed_version() -> str:
    """Return the installed FlashInfer's version; raise errors.VersionError without one."""
    try:
        return version("flashinfer-python")
    except PackageNotFoundError:
        raise errors.VersionError(
            "FlashInfer",
            found="not installed",
            allowed=str(TRUSTED),
            remedy="pip install flashinfer-python==0.7.2.post1",
        ) from None
