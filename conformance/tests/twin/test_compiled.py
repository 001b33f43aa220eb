"""The compiled planner is built once, and says what is missing where it cannot be built."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest
import torch

from conformance.cache import Cache
from conformance.twin import compiled
from conformance.twin.errors import CompilerMissing, TwinDomainError


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


def test_no_rows_never_reach_the_native_division(tmp_path: Path) -> None:
    planner = build(tmp_path)
    with pytest.raises(TwinDomainError, match="0 rows"):
        planner.plan([0], [0], [], 16, 512, 132, torch.zeros(1 << 20, dtype=torch.uint8), 1 << 27)


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
