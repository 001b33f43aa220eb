"""Subjects written the way serving engines wrap FlashInfer, each with one fault that was measured.

`Sound` has none, so what the suite says of another is the doing of its one field of `Style`. Run
one with `--subject conformance.subjects.upstream:NAME`.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, ClassVar

import torch

import smla
from conformance.core.case import Config
from conformance.core.subject import Tier
from conformance.subjects.wrapper import Style, Wrapper

_LOADERS = ("flashinfer.mla._batch_mla._backends._fa_common", "flashinfer.mla._core")
"""Where get_batch_mla_module stands: FlashInfer 0.7, and 0.6.18."""


def without_kernel(config: Config, capability: tuple[int, int]) -> list[str]:
    """Return why FlashInfer has no kernel for `config` on a GPU of this compute capability."""
    wrong = []
    if capability != (9, 0):
        wrong.append(f"compute capability {capability}: the kernel is for 9.0")
    if config.head_dim_ckv != 512 or config.head_dim_kpe not in (0, 64):
        wrong.append("head dimensions: the kernel is for 512 and 0 or 64")
    if config.kv_dtype_name not in ("", "bfloat16", "float8_e4m3fn"):
        wrong.append(f"kv_dtype {config.kv_dtype_name}: the kernel is for bfloat16 and E4M3")
    return wrong


class Sound:
    """The same code without a fault."""

    style: ClassVar[Style] = Style()
    capabilities = frozenset({"bf16", "fp8", "capture", "native", "clock"})

    @property
    def name(self) -> str:
        """What names this subject on a command line."""
        return f"{__name__}:{type(self).__name__}"

    def refusals(self, config: Config, capability: tuple[int, int]) -> list[str]:
        """Nothing but what FlashInfer has no kernel for."""
        return without_kernel(config, capability)

    def construct(
        self,
        config: Config,
        tier: Tier,
        *,
        interpret: bool,
        wrap: Callable[[Any], Any] | None = None,
        clock: Any = None,
    ) -> Wrapper:
        """Return an instance; its device work is plain torch, which nothing interprets."""
        runtime: Any
        if tier.native is None:
            runtime = smla.CudaRuntime()
        else:
            runtime = smla.CpuRuntime() if clock is None else clock

        def load(out_dtype: torch.dtype) -> Any:
            if tier.native is None:
                module = _installed(config, out_dtype)
            elif tier.installed:
                module = _installed(config, out_dtype)
                module = module if clock is None else module.queueing(clock.enqueue)
            else:
                module = tier.native() if clock is None else tier.native(clock.enqueue)
            return module if wrap is None else wrap(module)

        return Wrapper(config, self.style, runtime, load)


def _installed(config: Config, out_dtype: torch.dtype) -> Any:
    """Return FlashInfer's native module, without the adapter that 0.7 puts around it."""
    for name in _LOADERS:
        try:
            loader = import_module(name).get_batch_mla_module
        except (ModuleNotFoundError, AttributeError):
            continue
        kv_dtype = torch.float8_e4m3fn if config.fp8 else torch.bfloat16
        dims = (config.head_dim_ckv, config.head_dim_kpe)
        module = loader("fa3", torch.bfloat16, kv_dtype, out_dtype, torch.int32, *dims, False)
        return getattr(module, "_module", module)
    raise LookupError(f"no get_batch_mla_module in {' or '.join(_LOADERS)}")


class PaddedPlan(Sound):
    """Plans padding rows too, with no query token, so the launch grid follows the fill ratio.

    MLAPlan takes clusters of two blocks where sum(q_len) * heads / rows is above 64 (FlashInfer
    0.6.18 to 0.7.4, scheduler.cuh). On an H200, 128 heads, captured at 12 of 16 rows and replayed
    with 8, 5 and 3: half of the schedule is run, and nothing says so.
    """

    style = Style(plans_padding=True)


class OneStagingBlock(Sound):
    """Refills one page-locked block at every plan, so a copy in flight takes the later schedule.

    FlashInfer 0.6.18, mla/_core.py, _pin_memory_int_workspace_buffer. On an H200, four plans and
    runs behind a busy kernel: wrong rows, NaN, then a CUDA error.
    """

    style = Style(one_staging_block=True)


class NoCapacityCheck(Sound):
    """Plans any number of rows into one schedule; MLAPlan does not count its 16384 work items.

    On an H200, 17000 rows at 128 heads: an illegal memory access on FlashInfer 0.6.18 and 0.7.0;
    the wrapper of 0.7.1 and later refuses such a plan (_fa_common.py, _FA_MAX_WORK_ITEMS). It ends
    its process on a GPU.
    """

    style = Style(counts_works=False)


class ReadsBack(Sound):
    """Reads the least and the largest index back from the device in each plan.

    FlashInfer 0.7.4, mla/_batch_mla/_backends/_fa_common.py, aminmax of kv_indices.
    """

    style = Style(reads_back=True)


class PageableOffsets(Sound):
    """Copies max_tokens + 1 offsets from pageable memory, which waits above 64 KiB.

    CUDA Runtime API, "API synchronization behavior". On an H200, max_tokens 32768: plan() of
    FlashInfer 0.6.18, 0.7.0 and 0.7.2.post1 returns only after what is queued has run.
    """

    style = Style(pinned_offsets=False)


class ClampsKvEnd(Sound):
    """Clamps kv_end alone: the kernel's loads end at kv_len (FlashInfer, mla_hopper.cuh)."""

    style = Style(clamped=("kv_end",))


class RefusesPaddedRows(Sound):
    """Refuses more query rows than were planned, which a graph of padded batches needs.

    FlashInfer 0.7.4, _fa_common.py: a ValueError of run() about the planned query shape.
    """

    style = Style(refuses_padding=True)


class ScaleInBf16(Sound):
    """Gives the kernel the cache's scale as it is, which is rounded to BF16 there.

    On an H200, k_scale 0.0123: twice the relative error of a scale that BF16 holds.
    """

    style = Style(exact_scale=False)


class StalePlan(Sound):
    """Runs plans of bounds as they are, whatever lengths the device has by then."""

    style = Style(clamped=())


class BakedTable(Sound):
    """Captures the block table's address, and compares it with no later step's."""

    style = Style(checks_table=False)
