"""The native surface refuses what the twin does not cover; semantics are chosen from a record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from conformance.tests.twin.bench import Step
from conformance.twin.compiled import flashinfer_include
from conformance.twin.errors import (
    CompilerMissing,
    NativeError,
    TwinDomainError,
    UnknownSemanticsError,
)
from conformance.twin.planner import layout
from conformance.twin.semantics import fingerprint, of_sources, of_version
from conformance.twin.surface import NativeModule


def test_plan_writes_only_the_pinned_buffer() -> None:
    step = Step([100, 20])
    before = step.int_ws.clone()
    step.native.plan(
        step.float_ws,
        step.int_ws,
        torch.zeros(1 << 20, dtype=torch.uint8),
        torch.tensor([0, 1], dtype=torch.int32),
        torch.tensor([0, 9], dtype=torch.int32),
        torch.tensor([9], dtype=torch.int32),
        16,
        64,
        False,
    )
    assert torch.equal(step.int_ws, before)


def test_a_plan_of_0_6_copies_by_itself_and_returns_plan_info_alone() -> None:
    queued: list[Callable[[], None]] = []
    size = layout(132).staged_bytes
    staging = torch.full((1 << 20,), 0xA5, dtype=torch.uint8)
    int_ws = torch.zeros(1 << 20, dtype=torch.uint8)
    indptr, lengths = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([9], dtype=torch.int32)
    float_ws = torch.empty(64 << 20, dtype=torch.uint8)
    args = (float_ws, int_ws, staging, indptr, indptr, lengths, 16, 64, False)
    info = NativeModule("0.6.18", enqueue=queued.append).plan(*args)
    assert (NativeModule("0.7.0", enqueue=queued.append).plan(*args)) == (info, size)
    assert not int_ws.any()
    [copy] = queued
    staging[:4] = 7  # the copy reads the block when it runs
    copy()
    assert torch.equal(int_ws[:size], staging[:size])
    assert not int_ws[size:].any()
    NativeModule("0.6.18").plan(*args)
    assert torch.equal(int_ws[:size], staging[:size])
    assert int(int_ws[0]) == 0


def test_runs_without_lse_and_without_log() -> None:
    step = Step([100, 20])
    expected = step.run()
    step.native.log = None
    touched = len(step.log.tiles)
    step.native.run(
        step.float_ws, step.int_ws, step.info, step.q_nope, step.q_pe, step.cache,
        step.cache[..., 64:], step.indices, step.out.zero_(), None, 0, 16, 1, 0.11, False, 1.0,
        1.0, None,
    )  # fmt: skip
    assert torch.equal(step.out, expected)
    assert len(step.log.tiles) == touched


def small_plan(
    causal: bool = False, dtype: torch.dtype = torch.int32, int_bytes: int = 1 << 20
) -> object:
    lengths = torch.tensor([9], dtype=dtype)
    indptr = torch.tensor([0, 1], dtype=torch.int32)
    staging = torch.zeros(1 << 20, dtype=torch.uint8)
    return NativeModule().plan(
        torch.zeros(64 << 20, dtype=torch.uint8),
        torch.zeros(int_bytes, dtype=torch.uint8),
        staging, indptr, indptr, lengths, 16, 64, causal,
    )  # fmt: skip


def test_causal_plans_are_refused() -> None:
    with pytest.raises(TwinDomainError, match="causal"):
        small_plan(causal=True)


def test_int64_lengths_are_refused() -> None:
    with pytest.raises(TwinDomainError, match=r"kv_len is torch\.int64"):
        small_plan(dtype=torch.int64)


def test_a_small_int_workspace_is_refused() -> None:
    with pytest.raises(NativeError, match="592464"):
        small_plan(int_bytes=592463)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("q_nope", torch.zeros(1, 16, 64)),
        ("q_pe", torch.zeros(2, 16, 0, dtype=torch.bfloat16)),
        ("out", torch.zeros(1, 16, 128, dtype=torch.bfloat16)[..., ::2]),
        ("cache", torch.zeros(8, 1, 64, dtype=torch.float16)),
        ("cache", torch.zeros(8, 64, 1, dtype=torch.bfloat16)),
        ("lse", torch.zeros(1, 16, dtype=torch.float64)),
        ("indices", torch.zeros(100, dtype=torch.int64)),
        ("heads", 8),
        ("info", [1, 132]),
    ],
)
def test_arguments_that_the_kernel_would_misread_are_refused(field: str, value: object) -> None:
    step = Step([100])
    setattr(step, field, value)
    with pytest.raises(TwinDomainError):
        step.run()


def test_unknown_versions_are_refused() -> None:
    with pytest.raises(UnknownSemanticsError, match=r"9\.9\.9"):
        NativeModule(version="9.9.9")


def test_unknown_sources_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownSemanticsError, match=fingerprint(tmp_path)):
        of_sources(tmp_path)


def test_installed_sources_have_the_recorded_fingerprint() -> None:
    try:
        data = flashinfer_include().parent
    except CompilerMissing as reason:
        pytest.skip(str(reason))
    name = next(data.parents[1].glob("flashinfer_python-*.dist-info"), None)
    if name is None:
        pytest.skip(f"no version beside {data}")
    assert of_sources(data) == of_version(name.stem.removeprefix("flashinfer_python-"))
