"""What the planner tier says of copies of the installed headers with one thing changed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.cache import Cache
from conformance.gate import planner
from conformance.gate.model import Change, Finding, Status, TierResult, Weight
from conformance.gate.package import Package
from conformance.gate.planner_inputs import inputs
from conformance.gate.planner_run import plans_of
from conformance.twin import compiled
from conformance.twin.errors import CompilerMissing
from conformance.twin.planner import MAX_WORKS, SPLIT_LIMITS, plan
from conformance.twin.planner import split_limit as limit_of

SCHEDULER = "attention/scheduler.cuh"
HEAP = "attention/heap.h"
PLANNED = f"include/flashinfer/{SCHEDULER}: MLAPlan"
MLA = "struct MLAPlanInfo {"
COPY = "std::copy(kv_end_vec.begin()"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    cache = Cache(tmp_path_factory.mktemp("cache"))
    try:
        compiled.library(cache)
    except CompilerMissing as reason:
        pytest.skip(str(reason))
    return cache


@pytest.fixture(scope="module")
def installed(cache: Cache) -> Package:
    include = compiled.flashinfer_include()
    return Package("installed", "1", include.parents[2], "1")


@pytest.fixture
def edited(installed: Package, tmp_path: Path) -> Callable[..., Package]:
    """A copy with one place of a header edited; in the scheduler only MLA's part is looked at."""

    def make(header: str, *changes: tuple[str, str]) -> Package:
        data = tmp_path / "flashinfer" / "data"
        for folder in ("include", "cccl/libcudacxx/include"):
            shutil.copytree(installed.data / folder, data / folder)
        path = data / "include" / "flashinfer" / header
        text, before = path.read_text(), ""
        if header == SCHEDULER:
            before, text = text[: text.index(MLA)], text[text.index(MLA) :]
        for old, new in changes:
            assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {header}"
            text = text.replace(old, new)
        path.write_text(before + text)
        return Package("edited", "2", tmp_path, "2")

    return make


def objections(result: TierResult) -> dict[str, Finding]:
    return {found.key: found for found in result.findings if found.objects}


def the_only(result: TierResult, key: str) -> Finding:
    found = objections(result)
    assert list(found) == [key]
    assert result.status is Status.FAIL
    return found[key]


def test_the_same_package_has_nothing_to_say(cache: Cache, installed: Package) -> None:
    result = planner.judge(installed, installed, cache)
    assert result.status is Status.PASS
    (finding,) = result.findings
    assert (finding.change, finding.weight) == (Change.UNCHANGED, Weight.NOTE)
    count = len(inputs())
    assert finding.after == f"{count} of {count} inputs"
    assert result.facts["inputs"] == count


def test_comments_and_blanks_change_nothing(
    cache: Cache, installed: Package, edited: Callable[..., Package]
) -> None:
    remarked = edited(
        SCHEDULER, ("int max_total_num_works =", "/* 8192? */\n\n  int  max_total_num_works =")
    )
    result = planner.judge(installed, remarked, cache)
    assert result.status is Status.PASS
    assert result.findings == planner.judge(installed, installed, cache).findings


SPLIT = tuple(f"x <= {most}) {{\n      return {limit};" for most, limit in SPLIT_LIMITS)


@pytest.mark.parametrize("place", [0, len(SPLIT_LIMITS) - 1])
def test_a_split_limit_that_starts_one_later(
    cache: Cache, installed: Package, edited: Callable[..., Package], place: int
) -> None:
    most, limit = SPLIT_LIMITS[place]
    later = SPLIT[place].replace(f"<= {most}", f"<= {most + 1}")
    result = planner.judge(installed, edited(SCHEDULER, (SPLIT[place], later)), cache)
    finding = the_only(result, "planner/array/kv_end")
    assert finding.what.startswith("the KV range is split otherwise")
    assert int(finding.after) == limit
    assert int(finding.before) == limit_of(most + 1, 1)
    assert f"the twin says {finding.before}" in finding.what
    assert finding.cause == PLANNED


def test_a_limit_beyond_the_table(
    cache: Cache, installed: Package, edited: Callable[..., Package]
) -> None:
    coarser = edited(
        SCHEDULER, ("return ceil_div(x, 256) * 256;", "return ceil_div(x, 512) * 512;")
    )
    the_only(planner.judge(installed, coarser, cache), "planner/array/kv_end")


def test_two_work_arrays_that_changed_places(
    cache: Cache, installed: Package, edited: Callable[..., Package]
) -> None:
    moved = edited(
        SCHEDULER,
        ("plan_info.q_len_offset =\n", "plan_info.SWAPPED =\n"),
        ("plan_info.kv_len_offset =\n", "plan_info.q_len_offset =\n"),
        ("plan_info.SWAPPED =\n", "plan_info.kv_len_offset =\n"),
    )
    finding = the_only(planner.judge(installed, moved, cache), "planner/plan-info/q_len")
    assert "layout" in finding.what
    assert "kv_len" in finding.what
    assert int(finding.after) - int(finding.before) == 4 * MAX_WORKS
    assert finding.cause == PLANNED


def test_plan_info_that_names_two_fields_in_another_order(
    cache: Cache, installed: Package, edited: Callable[..., Package]
) -> None:
    ours = "            q_start_offset,\n            kv_start_offset,\n"
    swapped = edited(
        SCHEDULER, (ours, "            kv_start_offset,\n            q_start_offset,\n")
    )
    found = objections(planner.judge(installed, swapped, cache))
    assert found["planner/plan-info/q_start"].cause.endswith("scheduler.cuh: MLAPlanInfo")


def test_a_field_more_in_plan_info(
    cache: Cache, installed: Package, edited: Callable[..., Package]
) -> None:
    longer = edited(
        SCHEDULER, ("            partial_o_offset,\n            partial_lse_offset};",
                    "            partial_o_offset,\n            partial_lse_offset, 7};")
    )  # fmt: skip
    finding = the_only(planner.judge(installed, longer, cache), "planner/plan-info/length")
    assert (finding.before, finding.after) == ("18 integers", "19 integers")


def test_another_cluster_size(
    cache: Cache, installed: Package, edited: Callable[..., Package]
) -> None:
    flipped = edited(SCHEDULER, ("if (avg_packed_qo_len > 64) {", "if (avg_packed_qo_len > 65) {"))
    found = objections(planner.judge(installed, flipped, cache))
    finding = found["planner/plan-info/num_blks_x"]
    assert "launch grid" in finding.what
    assert (finding.before, finding.after) == ("2", "1")


def test_a_heap_that_compares_the_other_way(
    cache: Cache, installed: Package, edited: Callable[..., Package]
) -> None:
    text = (installed.data / "include" / "flashinfer" / HEAP).read_text()
    (line,) = [line for line in text.splitlines() if "a.second > b.second" in line]
    flipped = edited(HEAP, (line, line.replace(">", "<")))
    found = objections(planner.judge(installed, flipped, cache))
    (finding,) = found.values()
    assert finding.key.startswith("planner/array/")
    assert "in another order" in finding.what
    assert finding.cause == f"include/flashinfer/{HEAP}: MinHeap"


def test_a_merge_list_alone(
    cache: Cache, installed: Package, edited: Callable[..., Package]
) -> None:
    other = edited(
        SCHEDULER,
        ("std::max(remaining_len * cluster_size / kv_len_limit, 1)", "1"),
    )
    (finding,) = objections(planner.judge(installed, other, cache)).values()
    assert finding.key.startswith("planner/array/merge_")
    assert finding.what.startswith("the merge list is another")


def test_a_planner_that_ends_its_process_for_one_input(
    cache: Cache, installed: Package, edited: Callable[..., Package]
) -> None:
    crash = "if (batch_size == 512 && qo_indptr_h[512] == 259) *(volatile int*)0 = 1;"
    planted = edited(SCHEDULER, ("int num_sm = 0;", f"{crash}\n  int num_sm = 0;"))
    result = planner.judge(installed, planted, cache)
    finding = the_only(result, "planner/dies")
    assert "SIGSEGV" in finding.after
    assert "'259 of 512 rows live, 128 heads'" in finding.what
    (same,) = [found for found in result.findings if found.key == "planner/plans"]
    assert same.after.startswith(f"{len(inputs()) - 1} of")


def test_a_planner_that_does_not_end_is_named_by_its_input(
    cache: Cache, installed: Package, edited: Callable[..., Package]
) -> None:
    forever = "for (volatile int i = 0; batch_size == 40; ++i) i = 0;"
    stuck = edited(SCHEDULER, ("int num_sm = 0;", f"{forever}\n  int num_sm = 0;"))
    asked = [one for one in inputs(drawn=0) if one.name.startswith(("40 equal", "drafts"))][:2]
    assert [len(one.given.kv_len) for one in asked] == [40, 30]
    plans = plans_of(compiled.library(cache, stuck.data), asked, seconds=5.0)
    assert plans[0].died == "did not end within 5 s"
    assert plans[1].same(plans_of(compiled.library(cache, installed.data), asked)[1])


def test_a_check_that_is_gone(
    cache: Cache, installed: Package, edited: Callable[..., Package]
) -> None:
    text = (installed.data / "include" / "flashinfer" / SCHEDULER).read_text()
    head = text[text.index("inline cudaError_t MLAPlan(") :]
    check = "if (qo_indptr_h[i + 1] - qo_indptr_h[i] < 0) {"
    start = head[: head.index(check)]
    found = objections(
        planner.judge(installed, edited(SCHEDULER, (start + check, start + "if (false) {")), cache)
    )
    (finding,) = found.values()
    assert finding.key in ("planner/accepts", "planner/dies")
    assert "falling qo_indptr" in finding.what
    assert finding.before.startswith("refused: ")


def test_another_signature_is_an_objection_with_the_compilers_words(
    cache: Cache, installed: Package, edited: Callable[..., Package]
) -> None:
    other = edited(SCHEDULER, ("bool causal,", "bool causal, int window,"))
    finding = the_only(planner.judge(installed, other, cache), "planner/compiles")
    assert "error:" in finding.after
    assert finding.cause == PLANNED


def test_bytes_outside_of_the_arrays_are_to_be_read_and_no_objection(
    cache: Cache, installed: Package, edited: Callable[..., Package]
) -> None:
    stray = edited(
        SCHEDULER,
        (COPY, f"cluster_kv_end_h[{MAX_WORKS - 1}] = 3;\n  {COPY}"),
    )
    result = planner.judge(installed, stray, cache)
    assert result.status is Status.PASS
    (review,) = [found for found in result.findings if found.weight is Weight.REVIEW]
    assert review.key == "planner/bytes"


def test_both_packages_against_the_twin(cache: Cache, edited: Callable[..., Package]) -> None:
    other = edited(SCHEDULER, ("x <= 8) {", "x <= 7) {"))
    result = planner.judge(other, other, cache)
    assert result.status is Status.PASS
    (review,) = [found for found in result.findings if found.weight is Weight.REVIEW]
    assert (review.key, review.change) == ("planner/twin", Change.UNCHANGED)
    assert review.before.startswith("twin ")


def test_without_a_compiler_nothing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = Package("any", "1", tmp_path, "1")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    result = planner.judge(package, package, Cache(tmp_path / "cache"))
    assert result.status is Status.NOT_RUN
    assert "g++" in result.reason
    assert "apt-get install g++" in result.command
    assert result.findings == ()


def test_named_inputs_stand_on_every_edge_and_are_inside_the_twins_domain() -> None:
    import torch

    asked = inputs(drawn=0)
    assert len({one.name for one in asked}) == len(asked)
    limits, works, clusters = set(), set(), set()
    for one in asked:
        staging = torch.zeros(1 << 20, dtype=torch.uint8)
        if one.name.startswith(("falling", "one byte less")):
            continue
        info, _ = plan(*one.given.args, staging, one.float_bytes)
        words = staging.view(torch.int32)
        works.add(int(words[info[15] // 4 + info[1]]))
        clusters.add((info[0], one.given.num_heads))
        limits.add(int(words[info[14] // 4] - words[info[13] // 4]))
    assert MAX_WORKS in works
    assert max(works) == MAX_WORKS
    assert {32, 64, 128, 192, 256, 512, 768} <= limits
    assert {(1, 128), (2, 128), (1, 64), (2, 65), (1, 16)} <= clusters
