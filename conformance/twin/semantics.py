"""What differs between FlashInfer versions in the SM90 MLA module, as data.

A row of the table is chosen by version or by the fingerprint of the sources the module is built
from; where neither is on record the twin must not run, since it would guess.

0.6.18 stands for minus infinity with the finite -5e4 and guards nothing; 0.7.0 brought IEEE
infinity and the guards it needs, and left the copy of the plan to its caller. 0.7.2 changed how a
descriptor steps over value rows (HEAD_DIM_CKV * 2 bytes, once the constant 1024: equal for 512
channels, the only width that module was right for; the twin computes any) and 0.7.4 only the
spelling of log2(e).
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from conformance.twin.errors import UnknownSemanticsError

# Relative to the package's data folder: everything that decides what the kernel reads and computes,
# and how `plan` hands its schedule over.
_PLAN = "csrc/batch_mla_sm90_plan.cu"
SOURCES = (
    _PLAN,
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
    """One version's module (source: include/flashinfer/attention/mla_hopper.cuh where no other)."""

    version: str
    fingerprint: str  # of SOURCES
    tile_q: int = 64  # packed (query, head) pairs per CTA
    tile_kv: int = 64  # KV positions per tile, counted from the work item's kv_start
    num_stages: int = 2  # the last `num_stages` tiles processed are always masked
    load_bound: Literal["kv_len", "kv_end"] = "kv_len"  # field that ends index reads and loads
    stand_in_slot: int = 0  # slot used for lanes at or behind the load bound
    # -math::inf (math.cuh): a masked logit, the maximum before any logit, and the mark of a row
    # that saw none. Of raw logits in a work item, of base-2 LSEs in a merge.
    minus_inf: float = -math.inf
    initial_sum: float = 4.0  # init_states_: 1 in each of the four threads of a row, added at last
    initial_merge_sum: float = 1.0  # state_t::init (state.cuh)
    clamps_peak: bool = True  # update_md_: the subtracted maximum is at least -FLT_MAX
    guards_merge: bool = True  # state_t (state.cuh): NaN exponents weigh 0, and x / 0 is 0
    # batch_mla_sm90_plan.cu: whether `plan` queues the copy of the staged bytes (a cudaMemcpyAsync
    # at the end of MLAPlan, scheduler.cuh) and returns plan-info alone, or leaves the copy to its
    # caller and returns the number of bytes as well.
    plan_copies: bool = False


_KNOWN = (
    Semantics(
        version="0.6.18",
        fingerprint="470d7189480c13822a47edeb09d588d9",
        minus_inf=-5e4,
        clamps_peak=False,
        guards_merge=False,
        plan_copies=True,
    ),
    Semantics(version="0.7.0", fingerprint="1e9a667afeea95bd45224cf348788a45"),
    Semantics(version="0.7.2.post1", fingerprint="d1c2e296adcfde081df5f915a0e37fa2"),
    Semantics(version="0.7.4", fingerprint="e348a4686067d54eb07fbe8ea4d0b3a5"),
)
BY_VERSION = {known.version: known for known in _KNOWN}
BY_FINGERPRINT = {known.fingerprint: known for known in _KNOWN}


def of_version(version: str) -> Semantics:
    """Semantics on record for a FlashInfer version; UnknownSemanticsError where there are none."""
    try:
        return BY_VERSION[version]
    except KeyError:
        raise UnknownSemanticsError(
            f"no semantics for FlashInfer {version}; known: {', '.join(BY_VERSION)}. "
            "Read its sources and add a row to conformance.twin.semantics"
        ) from None


def of_sources(data: Path) -> Semantics:
    """Semantics of the sources under a flashinfer package's `data` folder, by fingerprint."""
    found = fingerprint(data)
    try:
        return BY_FINGERPRINT[found]
    except KeyError:
        raise UnknownSemanticsError(
            f"module sources under {data} have fingerprint {found}, which is not on record "
            f"(known: {', '.join(BY_VERSION)}). Read what changed and add a row to "
            "conformance.twin.semantics"
        ) from None


def fingerprint(data: Path) -> str:
    """Hash of SOURCES under a flashinfer package's `data` folder."""
    digest = hashlib.blake2b(digest_size=16)
    for name in SOURCES:
        path = data / name
        digest.update(name.encode() + b"\0")
        digest.update(path.read_bytes() if path.is_file() else b"absent")
    return digest.hexdigest()


def plan_copies(data: Path) -> bool:
    """Whether `plan` of the sources under `data` returns plan-info alone, having queued the copy.

    Read from the return type, which is a tuple where the caller is told how much to copy.
    """
    text = (data / _PLAN).read_text()
    found = re.search(r"([^;{}]*?)\bBatchMLAPagedAttentionSM90Plan\s*\(", text)
    if found is None:
        raise UnknownSemanticsError(f"{data / _PLAN}: found no BatchMLAPagedAttentionSM90Plan")
    return "Tuple" not in found[1]
