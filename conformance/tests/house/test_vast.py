"""Vast caches: their blocks lie about the borders, little of them is there, and aliases differ.

The other tests give smla a cache of padded rows, on each simulated version of the kernel.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.core import vast as module
from conformance.core.bench import Bench
from conformance.core.case import Step, parse
from conformance.core.lab import CheckFailed, Lab
from conformance.core.subject import Unobservable
from conformance.core.vast import borders, pitch, places, vast
from conformance.core.worker import load_subject
from conformance.subjects import SUBJECTS
from conformance.tests.requirements import test_num11
from conformance.tests.requirements.test_num11 import gap_rows, row_padding, whole_requests
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


def case_of(*parts: str, padded: bool = False) -> str:
    """Return the first case whose id has these parts, with rows padded or not."""
    return next(
        id
        for id in CASES
        if all(part in id for part in parts) and bool(row_padding(lab_of(id))) == padded
    )


def benched(lab: Lab) -> tuple[Bench, list[list[int]], int, int]:
    bench, gap, padding = lab.bench(whole_requests(lab)), gap_rows(lab), row_padding(lab)
    near = places(bench.config, gap, padding)
    return bench, [[*about, first] for first, about in enumerate(near)], gap, padding


def without(lab: Lab, *capabilities: str) -> Lab:
    """Take capabilities from a lab's subject."""
    subject: Any = lab.subject
    subject.capabilities = subject.capabilities - {*capabilities}
    return lab


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


SOME = [case_of(how, kind) for how in HOWS for kind in ("bf16", "fp8,")]
PADDED = [case_of(kind, padded=True) for kind in ("bf16", "fp8,", "fp8g")]


@pytest.mark.parametrize("case", [*SOME, *PADDED])
def test_a_request_has_rows_on_both_sides_of_its_border(case: str) -> None:
    lab = lab_of(case)
    bench, blocks, gap, padding = benched(lab)
    config = bench.config
    width, size = pitch(config, padding), config.geometry.block_size
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


@pytest.mark.parametrize(
    "case", [*(case_of(how, kind) for how in HOWS for kind in ("bf16", "fp8g")), *PADDED]
)
def test_little_of_it_is_there_and_no_cut_product_finds_the_same_row(case: str) -> None:
    before = resident()
    bench, blocks, gap, padding = benched(lab_of(case))
    with vast(bench, blocks, gap, padding) as place:
        paged = place.paged
        assert place.cache.stride(1) == place.cache.shape[2] + padding == paged.head_dim
        assert paged.data.numel() > 2**32
        every = torch.arange(4 * paged.block_size)
        slots = torch.cat([place.slots(request, every) for request in range(len(blocks))])
        true, width = place.gather(slots), paged.head_dim
        assert bool(true.isfinite().all())
        assert bool(paged.gather(slots)[:, place.cache.shape[2] :].isnan().all())  # the padding
        unit = paged.row_bytes // width
        noticed = 0
        for modulus in (2**31, 2**32, 2**31 // unit, 2**32 // unit):
            alias = slots * width % modulus // width
            moved = alias != slots
            noticed += int(moved.sum())
            assert not (place.gather(alias[moved]) == true[moved]).all(1).any()
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


def test_rows_are_padded_in_some_cases_and_for_subjects_alone_that_can() -> None:
    paddings = [(id, row_padding(lab_of(id))) for id in CASES]
    for kind in ("bf16", "fp8,", "fp8g"):
        units = [padding * (2 if kind == "bf16" else 1) for id, padding in paddings if kind in id]
        assert not any(unit % 16 for unit in units)
        assert 0 < sum(unit > 0 for unit in units) < len(units)
    assert not any(row_padding(without(lab_of(id), "padded-rows")) for id in CASES)
    lab = without(lab_of(case_of("fp8,", padded=True)), "padded-rows")
    seen: list[torch.Tensor] = []
    recorded(lab, seen)
    JUDGE(lab)
    assert seen and all(cache.stride(1) == cache.shape[2] for cache in seen)


def recorded(lab: Lab, seen: list[torch.Tensor]) -> None:
    """Note the cache of each forward of a lab's subject, and of each write before it."""
    subject: Any = lab.subject
    construct = subject.construct

    def constructed(*args: Any, **more: Any) -> Any:
        instance = construct(*args, **more)
        for name, at in (("forward", 2), ("write_cache", 2)):
            method = getattr(instance, name)

            def noted(*args: Any, method: Any = method, at: int = at, **more: Any) -> None:
                seen.append(args[at])
                method(*args, **more)

            setattr(instance, name, noted)
        return instance

    subject.construct = constructed


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kind", ["fp8,", "fp8g"])
def test_border_rows_are_written_before_they_are_read(kind: str, padded: bool) -> None:
    case = case_of(kind, padded=padded)
    lab, seen = lab_of(case), list[torch.Tensor]()
    recorded(lab, seen)
    JUDGE(lab)
    assert len(seen) == 2 and seen[0] is seen[1]
    lab, seen = without(lab_of(case), "cache-write"), []
    recorded(lab, seen)
    JUDGE(lab)
    assert len(seen) == 1


def test_nothing_is_written_to_a_bf16_cache() -> None:
    lab, seen = lab_of(case_of("bf16")), list[torch.Tensor]()
    recorded(lab, seen)
    JUDGE(lab)
    assert len(seen) == 1


@pytest.mark.parametrize("bits", [31, 32])
@pytest.mark.parametrize("kind", ["fp8,", "fp8g"])
def test_the_judge_notices_writes_to_an_alias(kind: str, bits: int) -> None:
    """A writer that finds the row of a slot by a product of 31 or 32 bits."""
    lab = lab_of(case_of("dense", kind))
    subject: Any = lab.subject
    construct = subject.construct

    def constructed(*args: Any, **more: Any) -> Any:
        instance = construct(*args, **more)
        write = instance.write_cache

        def cut(ckv: Any, kpe: Any, cache: Any, slots: torch.Tensor, *others: Any) -> None:
            first = slots * cache.stride(1)  # no gaps: a slot is a row
            assert bool((first < 2**bits).any()) and bool((first >= 2**bits).any())
            write(ckv, kpe, cache, first % 2**bits // cache.stride(1), *others)

        instance.write_cache = cut
        return instance

    subject.construct = constructed
    with pytest.raises(CheckFailed, match="differs from golden"):
        JUDGE(lab)


@pytest.mark.parametrize("fails", [False, True])
def test_memory_that_can_be_given_back_is_whoever_holds_it(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_memory", lambda nbytes, _: torch.empty(nbytes, dtype=torch.uint8))
    bench, blocks, gap, padding = benched(lab_of(case_of("dense", "fp8g")))
    home = bench.given()["block_table"]
    held: list[Any] = []
    try:
        with vast(bench, blocks, gap, padding) as place:
            held += [place, bench._given_cache()]
            assert held[1] == (place.cache, place.scales)
            assert not torch.equal(bench.given()["block_table"], home)
            if fails:
                raise CheckFailed("found wrong")
    except CheckFailed as problem:
        held.append(problem)
    assert len(held) == 2 + fails
    for tensor in (place.cache, place.paged.data, place.scales):
        assert tensor is not None and tensor.untyped_storage().nbytes() == 0
    assert bench._given_cache()[0].untyped_storage().nbytes() > 0
    assert torch.equal(bench.given()["block_table"], home)


def test_too_little_device_memory_is_unobservable(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(module.torch, "full", full)
    monkeypatch.setattr(module.torch.cuda, "mem_get_info", lambda _: (12345, 99999))
    with pytest.raises(Unobservable, match=r"4294967296 bytes .* 12345"):
        module._memory(2**32, "cuda:0")


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
