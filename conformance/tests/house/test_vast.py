"""Vast caches: their blocks lie about the borders, little of them is there, and aliases differ.

The other tests give smla a cache of padded rows, on each simulated version of the kernel.
"""

import os
from pathlib import Path

import pytest
import torch

from conformance.core.bench import Bench
from conformance.core.case import Step, parse
from conformance.core.lab import CheckFailed, Lab
from conformance.core.vast import borders, places, vast
from conformance.core.worker import load_subject
from conformance.subjects import SUBJECTS
from conformance.tests.requirements import test_num11
from conformance.tests.requirements.test_num11 import gap_rows, whole_requests
from conformance.tiers import tier
from conformance.twin.semantics import BY_VERSION

JUDGE = test_num11.test_caches_beyond_32_bits_are_addressed_right
CASES: list[str] = JUDGE.judge.cases("twin")
HOWS = ("dense", "gaps", "interleaved")
RESIDENT = 300 << 20


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def lab_of(case: str, version: str = "0.7.2.post1") -> Lab:
    return Lab(parse(case), load_subject(SUBJECTS["smla"]), tier("twin", version), "torch")


def case_of(*parts: str) -> str:
    found: str = next(id for id in CASES if all(part in id for part in parts))
    return found


def benched(lab: Lab) -> tuple[Bench, list[list[int]], int]:
    bench, gap = lab.bench(whole_requests(lab)), gap_rows(lab)
    return bench, [[*near, first] for first, near in enumerate(places(bench.config, gap))], gap


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("case", [case_of(how, kind) for how in HOWS for kind in ("bf16", "fp8,")])
def test_a_request_has_rows_on_both_sides_of_its_border(case: str) -> None:
    lab = lab_of(case)
    bench, blocks, gap = benched(lab)
    config = bench.config
    width, size = config.head_dim_ckv + config.head_dim_kpe, config.geometry.block_size
    unit = 1 if config.fp8 else 2
    known = {2**31, 2**32} | {2**31 // unit, 2**32 // unit}
    assert set(borders(config)) == known and len(blocks) == len(known)
    assert len({block for row in blocks for block in row}) == sum(map(len, blocks))
    for element, row in zip(borders(config), blocks, strict=True):
        rows = sorted(block * (size + gap) + at for block in row for at in range(size))
        ends = [slot * width + width - 1 for slot in rows]
        below, above = max(e for e in ends if e < element), min(e for e in ends if e >= element)
        # Nothing of the cache's own lies between the two rows next to the border.
        assert above - below <= width * (gap + 1)


@pytest.mark.parametrize("case", [case_of(how, kind) for how in HOWS for kind in ("bf16", "fp8g")])
def test_little_of_it_is_there_and_no_cut_product_finds_the_same_row(case: str) -> None:
    before = resident()
    bench, blocks, gap = benched(lab_of(case))
    with vast(bench.world, blocks, gap) as place:
        paged = place.paged
        assert paged.data.numel() > 2**32
        every = torch.arange(4 * paged.block_size)
        slots = torch.cat([place.slots(request, every) for request in range(len(blocks))])
        true, width = paged.gather(slots), paged.head_dim
        assert bool(true.isfinite().all())
        unit = paged.row_bytes // width
        noticed = 0
        for modulus in (2**31, 2**32, 2**31 // unit, 2**32 // unit):
            alias = slots * width % modulus // width
            moved = alias != slots
            noticed += int(moved.sum())
            assert not (paged.gather(alias[moved]) == true[moved]).all(1).any()
        assert noticed
        assert resident() - before < RESIDENT


@pytest.mark.parametrize("how", HOWS)
def test_the_judge_notices_slots_of_another_block(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table whose far blocks are those that a product of 32 bits would find."""
    lab = lab_of(case_of(how, "fp8,"))
    relocate = Bench.relocate

    def cut(self: Bench, cache: torch.Tensor, table: torch.Tensor, scales: object) -> None:
        first = table.long() * cache.stride(0)
        assert bool((first >= 2**32).any())
        relocate(self, cache, (first % 2**32 // cache.stride(0)).int(), None)

    monkeypatch.setattr(Bench, "relocate", cut)
    with pytest.raises(CheckFailed, match="packed slots"):
        JUDGE(lab)
    monkeypatch.setattr(test_num11, "check_slots", lambda *_: None)  # outputs alone tell it, too
    with pytest.raises(CheckFailed, match="differs from golden"):
        JUDGE(lab)


@pytest.mark.parametrize("version", sorted(BY_VERSION))
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@pytest.mark.parametrize("kpe", [0, 64])
def test_smla_serves_padded_rows(version: str, dtype: str, kpe: int) -> None:
    lab = lab_of(f"IDX-4/geo=wide,lens=mixed,dtype={dtype},kpe={kpe}/0", version)
    step = Step((1, 3), (70, 300), (72, 301), 5)
    bench = lab.bench(step)
    inputs = bench.world.draw_step(step)
    stored = bench.world.cache(bench.world.raw)
    unit = 16 // stored.element_size()
    blocks, size, width = stored.shape
    for units in (1, 5):
        wide = torch.full((blocks, size + 2, width + units * unit), 0xFF, dtype=torch.uint8)
        wide = wide if dtype == "fp8" else wide.bfloat16() * torch.nan
        wide[:, :size, :width] = stored
        padded = wide[:, :size, :width]
        assert padded.stride(1) == width + units * unit
        bench.relocate(padded, bench.world.block_table, None)
        lab.judged_run(bench, step, inputs)
        lab.no_flags(bench)
