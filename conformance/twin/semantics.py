"""What differs between FlashInfer versions in the SM90 MLA kernel, as data.

A row of the table is chosen by version or by the fingerprint of the sources the kernel is built
from; where neither is on record the twin must not run, since it would guess.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from conformance.twin.errors import UnknownSemanticsError

# Relative to the package's data folder: everything that decides what the kernel reads and computes.
KERNEL_SOURCES = (
    "csrc/batch_mla_sm90_run.cu",
    "include/flashinfer/attention/mla.cuh",
    "include/flashinfer/attention/mla_hopper.cuh",
    "include/flashinfer/attention/mla_params.cuh",
    "include/flashinfer/attention/state.cuh",
    "include/flashinfer/cp_async.cuh",
    "include/flashinfer/math.cuh",
    "include/flashinfer/permuted_smem.cuh",
    "include/flashinfer/vec_dtypes.cuh",
)


@dataclass(frozen=True)
class Semantics:
    """One version's kernel (source: include/flashinfer/attention/mla_hopper.cuh)."""

    version: str
    fingerprint: str  # of KERNEL_SOURCES
    tile_q: int = 64  # packed (query, head) pairs per CTA
    tile_kv: int = 64  # KV positions per tile, counted from the work item's kv_start
    num_stages: int = 2  # the last `num_stages` tiles processed are always masked
    load_bound: Literal["kv_len", "kv_end"] = "kv_len"  # field that ends index reads and loads
    mask_fill: float = float("-inf")  # logit of a masked position
    stand_in_slot: int = 0  # slot used for lanes at or behind the load bound


_KNOWN = (Semantics(version="0.7.2.post1", fingerprint="7723d578c760d3128c1cbbf2f1ee9495"),)
BY_VERSION = {known.version: known for known in _KNOWN}
BY_FINGERPRINT = {known.fingerprint: known for known in _KNOWN}


def of_version(version: str) -> Semantics:
    """Semantics on record for a FlashInfer version; UnknownSemanticsError where there are none."""
    try:
        return BY_VERSION[version]
    except KeyError:
        raise UnknownSemanticsError(
            f"no kernel semantics for FlashInfer {version}; known: {', '.join(BY_VERSION)}. "
            "Read its kernel sources and add a row to conformance.twin.semantics"
        ) from None


def of_sources(data: Path) -> Semantics:
    """Semantics of the sources under a flashinfer package's `data` folder, by fingerprint."""
    found = fingerprint(data)
    try:
        return BY_FINGERPRINT[found]
    except KeyError:
        raise UnknownSemanticsError(
            f"kernel sources under {data} have fingerprint {found}, which is not on record "
            f"(known: {', '.join(BY_VERSION)}). Read what changed and add a row to "
            "conformance.twin.semantics"
        ) from None


def fingerprint(data: Path) -> str:
    """Hash of KERNEL_SOURCES under a flashinfer package's `data` folder."""
    digest = hashlib.blake2b(digest_size=16)
    for name in KERNEL_SOURCES:
        path = data / name
        digest.update(name.encode() + b"\0")
        digest.update(path.read_bytes() if path.is_file() else b"absent")
    return digest.hexdigest()
