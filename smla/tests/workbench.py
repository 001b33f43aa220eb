"""A small serving step on a CPU: good calls, and their answers.

Tests spoil one of the good calls, or watch it being made. What a step must give comes from golden.
"""

import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import smla
from golden import Draw, PagedBytes, attend
from golden.tolerance import Roundings, compare
from smla import errors, lengths
from smla.engines.flashinfer.compat import NativeSource
from smla.tests.whole_rows import INT32, NUM_SMS, WholeRows

K_SCALE = 0.375
GROUP_K_SCALE = 0.5
"""Of the rope part beside group scales."""

CONFIG = smla.SparseMLAConfig(
    num_heads=4,
    sm_scale=0.125,
    index_topk=16,
    index_kpool=4,
    topk_width=24,
    max_tokens=12,
    head_dim_ckv=64,
    head_dim_kpe=64,
)
FP8_CONFIG = replace(CONFIG, kv_dtype=torch.float8_e4m3fn)
GROUP_CONFIG = replace(FP8_CONFIG, kv_scaling="group", head_dim_ckv=256)
"""FP8 with two scales for each cached token."""


class Simulated:
    """A native source that hands out one stand-in module and counts how often."""

    version = "stand-in"

    def __init__(self, module: Any = None, head_dims_ckv: frozenset[int] | None = None) -> None:
        self.head_dims_ckv = head_dims_ckv
        self.module = module if module is not None else WholeRows()
        self.loads = 0

    def load(self, config: smla.SparseMLAConfig) -> Any:
        self.loads += 1
        return self.module


def starts_of(q_lens: Sequence[int]) -> Tensor:
    return torch.tensor([0, *itertools.accumulate(q_lens)], dtype=INT32)


@dataclass
class Workbench:
    """A backend, a builder, and a cache that its steps read."""

    config: smla.SparseMLAConfig
    runtime: smla.CpuRuntime
    source: NativeSource
    num_blocks: int = 9

    def __post_init__(self) -> None:
        self.backend = smla.SparseMLABackend(self.config, runtime=self.runtime, source=self.source)
        self.builder = self.backend.builder()
        self.state = self.builder.state
        self.draw = Draw("workbench")
        shape = (self.num_blocks, self.config.block_size, self.config.head_dim)
        fp8 = self.config.storage_dtype == torch.uint8
        self.bytes = self.draw.e4m3(shape) if fp8 else self.draw.bf16(shape).view(torch.uint8)
        self.cache = self.on_device(self.bytes.view(self.config.storage_dtype))
        self.k_scale = K_SCALE if fp8 else None
        self.group_scales = None
        if self.config.scale_groups:
            self.k_scale = GROUP_K_SCALE
            # From 2**-3 to 2**3, no power of two: BF16 holds none of them.
            scales = (self.bytes[..., 0].numel(), self.config.scale_groups)
            drawn = self.draw.ints(scales, 0, 1 << 20)
            self.group_scales = 2.0 ** (drawn.float() / (1 << 20) * 6 - 3)
            self.scale_arr = self.on_device(self.group_scales)

    def on_device(self, tensor: Tensor) -> Tensor:
        """A device copy, made through the runtime."""
        made = self.runtime.empty(tuple(tensor.shape), tensor.dtype)
        self.runtime.write(made, tensor)
        return made

    def batch(
        self,
        q_lens: Sequence[int] = (1, 3, 2),
        seq_lens: Sequence[int] = (7, 40, 100),
        *,
        optimism: int | None = 3,
        padded: int | None = None,
        table: Tensor | None = None,
        eager: bool = False,
    ) -> smla.BatchLayout:
        """A good batch. optimism: by how much the host overrates lengths; None: it knows none.

        table: a block table to refill, as graphs need it; a new one if None.
        """
        starts, known = starts_of(q_lens), torch.tensor(seq_lens, dtype=INT32)
        blocks = self.draw.permutation(self.num_blocks).to(INT32)
        drawn = torch.stack([blocks.roll(i) for i in range(len(q_lens))] or [blocks])
        if table is None:
            table = self.on_device(drawn)
        else:
            self.runtime.write(table[: len(drawn)], drawn)
        return smla.BatchLayout(
            query_start_loc_cpu=starts,
            query_start_loc=self.on_device(starts),
            seq_lens=self.on_device(known),
            block_table=table,
            seq_lens_cpu_upper_bound=None if optimism is None else known + optimism,
            num_padded_tokens=padded,
            eager=eager,
        )

    def call(self, batch: smla.BatchLayout) -> dict[str, Tensor]:
        """Tensors of a forward of this batch: q_nope, q_pe, topk_indices and out."""
        config, rows, draw = self.config, batch.padded_tokens, self.draw
        topk = torch.full((rows, config.topk_width), -1, dtype=INT32)
        for row, tokens in enumerate(self.selected(batch)):
            topk[row, : tokens.numel()] = tokens
        shape = (rows, config.num_heads)
        return {
            "q_nope": self.on_device(draw.bf16((*shape, config.head_dim_ckv))),
            "q_pe": self.on_device(draw.bf16((*shape, config.head_dim_kpe))),
            "topk_indices": self.on_device(topk),
            "out": self.on_device(draw.bf16((*shape, config.head_dim_ckv))),
        }

    def selected(self, batch: smla.BatchLayout) -> list[Tensor]:
        """Which tokens the indexer selects for each live row: the newest ones."""
        topk, kpool = self.config.index_topk, self.config.index_kpool
        ends = self.runtime.read(batch.query_start_loc).tolist()
        chosen = []
        for request, length in enumerate(self.runtime.read(batch.seq_lens).tolist()):
            for row in range(ends[request], ends[request + 1]):
                context = length - ends[request + 1] + row + 1
                count = context if context <= topk else topk + context % kpool
                chosen.append(torch.arange(context - count, context))
        assert all(c.numel() <= lengths.max_valid_count(topk, kpool) for c in chosen)
        return chosen

    def forward(
        self, call: dict[str, Tensor], metadata: smla.SparseMLAMetadata, **changes: Any
    ) -> Tensor:
        merged: dict[str, Any] = {"kv_cache": self.cache, "k_scale": self.k_scale, **call}
        if self.group_scales is not None:
            merged["ckv_scale_arr"] = self.scale_arr
        merged |= changes
        return self.backend.forward(metadata=metadata, **merged)

    def check_output(self, batch: smla.BatchLayout, call: dict[str, Tensor]) -> None:
        """Fail unless the live rows of call['out'] are what golden says."""
        read, config, live = self.runtime.read, self.config, batch.num_tokens
        fmt = "e4m3" if config.storage_dtype == torch.uint8 else "bf16"
        fmt += "_group" if config.scale_groups else ""
        cache = PagedBytes(
            self.bytes, fmt, config.head_dim_ckv, config.head_dim_kpe,
            config.block_size, config.block_size, self.k_scale or 1.0, self.group_scales,
        )  # fmt: skip
        requests = lengths.row_requests(read(batch.query_start_loc).numpy())
        golden = attend(
            read(call["q_nope"])[:live], read(call["q_pe"])[:live], cache,
            read(batch.block_table), torch.from_numpy(requests), self.selected(batch),
            config.sm_scale, split=1 << 20,
        )  # fmt: skip
        exact = Roundings.of(fmt, 1.0)  # whatever the cache's scale, it rounds nothing
        verdict = compare(read(call["out"])[:live], golden, exact)
        assert verdict.ok, f"out is not golden's: {verdict.message}"

    def good_step(self, **shape: Any) -> None:
        """Build and run one batch, and check what comes out."""
        batch = self.batch(**shape)
        call = self.call(batch)
        self.forward(call, self.builder.build(batch))
        self.check_output(batch, call)

    def written(self) -> dict[str, Any]:
        """Everything a step may change, copied."""
        state = self.state
        kept: dict[str, Any] = {
            f"{name} of {number}": value.clone()
            for number, owner in enumerate([state, *state.schedules])
            for name, value in vars(owner).items()
            if isinstance(value, Tensor)
        }
        kept |= {"serial": state.serial, "stats": replace(state.stats)}
        kept |= {"active": len(state.active), "captured": list(state.captures.rows)}
        kept["plan_info"] = list(state.engine.plan_info)
        return kept


def workbench(
    config: smla.SparseMLAConfig = CONFIG, *, source: NativeSource | None = None
) -> Workbench:
    runtime = smla.CpuRuntime(num_sms=NUM_SMS)
    return Workbench(config, runtime, source if source is not None else Simulated())


def ints(*values: int) -> lengths.Ints:
    """Lengths as the host holds them, int32."""
    return np.array(values, dtype=np.int32)


def same_bytes(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


@dataclass(frozen=True)
class Step:
    """A batch that has been built and not run yet."""

    batch: smla.BatchLayout
    call: dict[str, Tensor]
    metadata: smla.SparseMLAMetadata


@contextmanager
def undisturbed(bench: Workbench) -> Iterator[Step]:
    """Fail unless the block changes nothing: not a byte of the state, this step, or the next."""
    bench.good_step()
    batch = bench.batch()
    step = Step(batch, bench.call(batch), bench.builder.build(batch))
    before, out = bench.written(), step.call["out"].clone()
    yield step
    after = bench.written()
    assert before.keys() == after.keys()
    for name, value in before.items():
        same = same_bytes if isinstance(value, Tensor) else operator.eq
        assert same(value, after[name]), f"the refused call changed {name}"
    assert same_bytes(out, step.call["out"]), "the refused call changed out"
    bench.forward(step.call, step.metadata)
    bench.check_output(batch, step.call)
    bench.good_step(q_lens=(2, 4), seq_lens=(70, 9))
    bench.good_step(q_lens=(2, 4), seq_lens=(70, 9), optimism=None)


def assert_refused(call: Callable[[], object], kind: type[errors.SmlaError], words: str) -> None:
    """Fail unless `call` raises exactly `kind` with all of `words` ('|' between) in its message."""
    with pytest.raises(errors.SmlaError) as caught:
        call()
    error = caught.value
    assert type(error) is kind, f"got {type(error).__name__} ({error}), expected {kind.__name__}"
    for word in (*words.split("|"), str(error.found), error.allowed, error.remedy):
        assert word and word in str(error), f"{word!r} is not in {str(error)!r}"
