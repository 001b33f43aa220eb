"""The compiled planner is built once, and says what is missing where it cannot be built."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

import pytest
import torch

from conformance.cache import Cache
from conformance.twin import compiled
from conformance.twin.drawn import FLOAT_BYTES
from conformance.twin.errors import CompilerMissing, DoesNotCompile, TwinDomainError
from conformance.twin.planner import INFO_FIELDS, plan


def build(root: Path) -> compiled.CompiledPlanner:
    try:
        return compiled.compiled_planner(Cache(root))
    except CompilerMissing as reason:
        pytest.skip(str(reason))


def test_a_second_request_finds_the_cached_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build(tmp_path)
    compiled.compiled_planner.cache_clear()
    monkeypatch.setattr(compiled, "_build", lambda *_: pytest.fail("built again"))
    assert compiled.compiled_planner(Cache(tmp_path)).library == first.library
    assert [path.suffix for path in tmp_path.rglob("*.so")] == [".so"]


def copy_of_data(target: Path, edit: Callable[[str], str] = str) -> Path:
    """The installed package's headers elsewhere, its scheduler's text edited."""
    try:
        source = compiled.flashinfer_include().parent
    except CompilerMissing as reason:
        pytest.skip(str(reason))
    shutil.copytree(source / "include", target / "include")
    shutil.copytree(source / "cccl/libcudacxx/include", target / "cccl/libcudacxx/include")
    scheduler = target / "include/flashinfer/attention/scheduler.cuh"
    before = scheduler.read_text()
    scheduler.write_text(edit(before))
    return target


def test_any_packages_data_folder_is_compiled(tmp_path: Path) -> None:
    build(tmp_path / "cache")
    data = copy_of_data(tmp_path / "data", lambda text: text.replace("return 32;", "return 16;"))
    edited = compiled.compiled_planner(Cache(tmp_path / "cache"), data)
    args = ([0, 1], [0, 64], [64], 16, 512, 132)
    plans = [torch.zeros(1 << 20, dtype=torch.uint8) for _ in range(2)]
    for planner, target in zip((build(tmp_path / "cache"), edited), plans, strict=True):
        planner.plan(*args, target, FLOAT_BYTES)
    assert not torch.equal(*plans)


def test_the_cache_knows_what_the_compiler_reads_and_nothing_else(tmp_path: Path) -> None:
    build(tmp_path / "cache")
    cache = Cache(tmp_path / "cache")
    installed = compiled.library(cache)
    remarked = copy_of_data(tmp_path / "a", lambda text: text.replace("// step 1.", "// Step one:"))
    assert compiled.library(cache, remarked) == installed
    heap = copy_of_data(tmp_path / "b") / "include/flashinfer/attention/heap.h"
    heap.write_text(heap.read_text().replace("#endif", "inline int more;\n#endif", 1))
    assert compiled.library(cache, tmp_path / "b") != installed


def test_sources_that_do_not_compile_are_told_from_a_missing_compiler(tmp_path: Path) -> None:
    build(tmp_path / "cache")
    data = copy_of_data(tmp_path / "data", lambda text: text.replace("bool causal,", "int causal,"))
    with pytest.raises(DoesNotCompile, match="MLAPlan"):
        compiled.library(Cache(tmp_path / "cache"), data)


def test_no_rows_never_reach_the_native_division(tmp_path: Path) -> None:
    planner = build(tmp_path)
    with pytest.raises(TwinDomainError, match="0 rows"):
        planner.plan([0], [0], [], 16, 512, 132, torch.zeros(1 << 20, dtype=torch.uint8), 1 << 27)


@pytest.mark.parametrize("heads", [16, 128])
@pytest.mark.parametrize("num_sms", [8, 132])
def test_a_slice_of_a_batch_is_planned_as_alone_with_absolute_starts(
    num_sms: int, heads: int, tmp_path: Path
) -> None:
    planner, rows, first_row, first_entry = build(tmp_path), [1, 0, 4, 2], 1000, 1 << 25
    lengths = [9000, 9, 300, 0]
    alone, slice_, twin = (torch.full((1 << 20,), 0xA5, dtype=torch.uint8) for _ in range(3))
    starts = list(accumulate(rows, initial=0))
    kv_starts = list(accumulate(lengths, initial=0))
    sizes = (heads, 512, num_sms)
    expected = planner.plan(starts, kv_starts, lengths, *sizes, alone, FLOAT_BYTES)
    starts, kv_starts = [x + first_row for x in starts], [x + first_entry for x in kv_starts]
    assert planner.plan(starts, kv_starts, lengths, *sizes, slice_, FLOAT_BYTES) == expected
    assert plan(starts, kv_starts, lengths, *sizes, twin, FLOAT_BYTES) == expected
    assert torch.equal(twin, slice_)
    # Back to relative numbers, and nothing else may differ.
    where = dict(zip(INFO_FIELDS, expected[0], strict=True))

    def ints(name: str, count: int) -> torch.Tensor:
        return slice_[where[name] : where[name] + 4 * count].view(torch.int32)

    works = int(ints("work_indptr", where["num_blks_y"] + 1)[-1])
    ints("q_indptr", works).sub_(first_row)
    ints("kv_indptr", works).sub_(first_entry)
    jobs = ints("merge_packed_offset_end", num_sms) > 0
    assert bool(jobs.any())
    for name in ("merge_packed_offset_start", "merge_packed_offset_end"):
        ints(name, num_sms)[jobs] -= first_row * heads
    assert torch.equal(slice_, alone)


def test_a_missing_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(CompilerMissing, match="g\\+\\+"):
        compiled.compiled_planner(Cache(tmp_path / "none"))


def test_a_cache_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "somebody's").touch()
    with pytest.raises(CompilerMissing, match="other files"):
        try:
            compiled.compiled_planner(Cache(tmp_path))
        except CompilerMissing as reason:
            if "other files" not in str(reason):
                pytest.skip(str(reason))
            raise


@pytest.mark.parametrize(
    ("find", "remedy"),
    [
        (compiled.flashinfer_include, "install flashinfer-python"),
        (compiled.cuda_include, "nvidia-cuda-crt"),
    ],
)
def test_missing_headers_are_named(
    find: object, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    with pytest.raises(CompilerMissing, match=remedy):
        find()  # type: ignore[operator]
