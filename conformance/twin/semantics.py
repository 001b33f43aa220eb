"""What differs between FlashInfer versions in the SM90 MLA module, as data.

A row of the table is chosen by version or by the fingerprint of the sources the module is built
from, comments and layout aside; where neither is on record the twin must not run, since it would
guess. 0.6.18.post1 has the sources of 0.6.18, 0.7.0.post1 and 0.7.1 those of 0.7.0, 0.7.2 those of
0.7.2.post1. 0.6.17 has no row: its module knows neither FP8 caches nor queries without a rope part.

0.6.18 stands for minus infinity with the finite -5e4 and guards nothing; 0.7.0 brought IEEE
infinity and the guards it needs, and left the copy of the plan to its caller. 0.7.2 changed how a
descriptor steps over value rows (HEAD_DIM_CKV * 2 bytes, once the constant 1024: equal for 512
channels, the only width that module was right for; the twin computes any) and 0.7.4 only the
spelling of log2(e).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from conformance.twin.errors import UnknownSemanticsError
from conformance.twin.tokens import digest, text_digest

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
    fingerprint: str  # of the tokens of SOURCES
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
        fingerprint="ba5a1664af3f3e0564b73935536cc2d8",
        minus_inf=-5e4,
        clamps_peak=False,
        guards_merge=False,
        plan_copies=True,
    ),
    Semantics(version="0.7.0", fingerprint="3e872234599ede14a30ae0cdc90dc655"),
    Semantics(version="0.7.2.post1", fingerprint="f693505c54275e315d90454618f8baf7"),
    Semantics(version="0.7.4", fingerprint="b6e9a5de3ec3863c42d2f768c4786a64"),
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
    """Hash of the tokens of SOURCES under a package's `data` folder: no comments, no layout."""
    words = []
    for name in SOURCES:
        path = data / name
        found = text_digest(path.read_text(errors="replace")) if path.is_file() else "absent"
        words += [name, found]
    return digest(words)


def plan_copies(data: Path) -> bool:
    """Whether `plan` of the sources under `data` returns plan-info alone, having queued the copy.

    Read from the return type, which is a tuple where the caller is told how much to copy.
    """
    text = (data / _PLAN).read_text()
    found = re.search(r"([^;{}]*?)\bBatchMLAPagedAttentionSM90Plan\s*\(", text)
    if found is None:
        raise UnknownSemanticsError(f"{data / _PLAN}: found no BatchMLAPagedAttentionSM90Plan")
    return "Tuple" not in found[1]
