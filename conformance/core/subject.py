"""What is under test, as the suite sees it: a subject, its instances, what they let us observe."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from conformance.core.case import Config


class Unobservable(Exception):
    """The subject does not show what a check needs; counted apart, never a pass."""


@dataclass(frozen=True)
class HostBatch:
    """A step's batch as tensors: int32, `_cpu` ones on the host, the others on the device.

    seq_lens_cpu_upper_bound None: the host knows nothing, the subject reads lengths back.
    adaptive: the device may distribute the decodes' rows otherwise than the host thinks.
    """

    query_start_loc_cpu: Tensor
    query_start_loc: Tensor
    seq_lens: Tensor
    seq_lens_cpu_upper_bound: Tensor | None
    block_table: Tensor
    num_padded_tokens: int
    adaptive: bool = False


@dataclass(frozen=True)
class Observation:
    """What a subject shows of itself after a step, on the host; None where it does not.

    plan_info: FlashInfer's 18 integers. int_workspace: uint8, as the kernel reads it.
    kv_indptr, kv_indices: packed CSR, int32. counts, contexts: per row, int32.
    flags: names of what the device noticed, of valid_above_plan, count_below_formula,
    count_above_formula, rows_beyond_forward, scale_changed and slot_zero_scale. plans: how many
    plans were made so far. waits: how often the host has waited for the device so far, on behalf
    of the subject's own steps. addresses: device address of every buffer that a captured forward of
    the subject uses, by name.
    """

    plan_info: list[int] | None = None
    int_workspace: Tensor | None = None
    kv_indptr: Tensor | None = None
    kv_indices: Tensor | None = None
    counts: Tensor | None = None
    contexts: Tensor | None = None
    flags: frozenset[str] | None = None
    plans: int | None = None
    addresses: Mapping[str, int] | None = None
    waits: int | None = None

    def need(self, name: str) -> Any:
        """Return an observation; raise Unobservable where the subject does not offer it."""
        value = getattr(self, name)
        if value is None:
            raise Unobservable(name)
        return value


@dataclass(frozen=True)
class Tier:
    """Where a subject runs.

    native: makes a simulated FlashInfer module (`plan` and `run`) on the CPU, or None where the
    installed FlashInfer runs on a GPU. Its argument takes the device work that the module queues by
    itself; without it that work is done at once. log: what that module's kernel touched (`clear`,
    `behind`, ...), or None. full_width: the compressed width is always the real 512.
    simulates: the simulated version. clock: makes a runtime whose device runs later than the host,
    from a seed and the kernels' mode ("torch" or "interpret"); None where there is a real device.
    package: makes modules in place of FlashInfer's Python package, by name, for code that calls
    its wrapper; its argument is the device that does the work (`conformance.twin.eager`). None
    where the installed FlashInfer runs. installed: `native` and `package` stand below the Python
    code of the FlashInfer on the path, which a subject takes as on a GPU.
    """

    name: str
    full_width: bool
    native: Callable[..., Any] | None = None
    log: Any = None
    simulates: str = ""
    clock: Callable[[int | None, str], Any] | None = None
    package: Callable[[Any], dict[str, Any]] | None = None
    installed: bool = False


class Instance(Protocol):
    """A constructed subject: one attention group with its plan state."""

    runtime: Any

    def build(self, batch: HostBatch) -> Any:
        """Plan a step; return its metadata.

        Of it the suite reads num_rows (rows that the subject computes) and prefill_to_mha (the
        others are left to the caller's dense attention).
        """

    def forward(
        self,
        q_nope: Tensor,
        q_pe: Tensor,
        kv_cache: Tensor,
        topk_indices: Tensor,
        metadata: Any,
        k_scale: float | None,
        out: Tensor,
        device_k_scale: Tensor | None = None,
        ckv_scale_arr: Tensor | None = None,
    ) -> None:
        """Compute the step into `out`.

        ckv_scale_arr: float32 [physical rows, groups], contiguous, rows between blocks counted and
        those behind the last block not. Given to subjects with the capability `fp8_group` for
        caches with group scales alone, of which k_scale is the rope part's scale.
        device_k_scale: float32 [1], the cache's scale on the device; given to subjects with the
        capability `scale-check` alone, which flag one that differs from k_scale.
        """

    def observe(self) -> Observation:
        """Wait for the device and show what can be seen."""

    def write_cache(
        self,
        ckv: Tensor,
        kpe: Tensor,
        kv_cache: Tensor,
        slot_mapping: Tensor,
        k_scale: float,
        ckv_scale_arr: Tensor | None = None,
    ) -> None:
        """Quantize tokens into the cache; only for subjects with the capability `cache-write`.

        ckv, kpe: BF16 [tokens, width]. kv_cache: as forward's. slot_mapping: int64 [tokens] of
        logical slots block * block_size + offset; -1: nothing is written. ckv_scale_arr: as
        forward's, written beside the codes; None: k_scale is the scale of both parts.

        A group's scale is its largest finite magnitude / 448 in float32, at least 2**-126, and 1
        where that magnitude is 0. A code is value / scale, rounded to float32 and that to E4M3:
        ties to even, at most 448, infinities too; NaN becomes a NaN code.
        """


class Subject(Protocol):
    """A backend under test.

    capabilities: of `bf16`, `fp8`, `fp8_group` (E4M3 with group scales), `cache-write` (its
    instances have `write_cache`), `padded-rows` (takes caches whose rows are padded to any multiple
    of 16 bytes, in forwards and writes), `capture` (forwards can be captured), `native` (takes a
    wrapped native module), `mha` (routes prefills to the caller's dense attention), `scale-check`
    (takes the cache's scale on the device, too), `one-stream` (refuses a forward on another stream
    than its build), `clock` (queues through a given runtime; without
    it the subject runs on the twin at once, and what waits is asked of its observations).

    A subject may also have `version`, a string (PEP 440), which records name and the ledger of
    known deviations is matched by; without one it counts as "".
    """

    name: str
    capabilities: frozenset[str]

    def refusals(self, config: Config, capability: tuple[int, int]) -> list[str]:
        """Return why the subject would refuse `config` on a GPU of this compute capability."""

    def construct(
        self,
        config: Config,
        tier: Tier,
        *,
        interpret: bool,
        wrap: Callable[[Any], Any] | None = None,
        clock: Any = None,
    ) -> Instance:
        """Return an instance. interpret: run Triton kernels interpreted (twin tier).

        clock: the runtime to use, one of `tier.clock`; given only where a case needs one, else the
        subject takes one of its own.

        wrap: takes FlashInfer's native module (`plan`, `run`) and gives the one to use instead,
        to tamper with what goes in and out; only for subjects with the capability `native`.
        """
