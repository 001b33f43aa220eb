"""The simulated wrapper does what FlashInfer's own Python code does, and counts what waits."""

import functools
import inspect
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.gate.probes import Recorder, Setup, observe
from conformance.tests.twin import wrapper_cases
from conformance.twin.access import AccessLog
from conformance.twin.eager import Eager
from conformance.twin.semantics import BY_VERSION, plan_copies
from conformance.twin.surface import NativeModule
from conformance.twin.wrapper import package
from conformance.twin.wrapping import BY_VERSION as WRAPPINGS
from conformance.twin.wrapping import PAGEABLE_BYTES

ROOT = Path(__file__).parents[3]
TREES = "SMLA_TEST_FLASHINFER_TREES"
"""Folders with further unpacked FlashInfers, as PATH is written."""

VERSIONS = tuple(WRAPPINGS)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def simulated(version: str) -> Any:
    """The wrapper class over a recorder."""
    copies = BY_VERSION[version].plan_copies
    modules = package(version, functools.partial(Recorder, not copies))
    return modules["flashinfer.mla"].BatchMLAPagedAttentionWrapper


def trees() -> list[str]:
    """Folders with a FlashInfer: the installed one's, and those that are named."""
    spec = find_spec("flashinfer")
    found = list(spec.submodule_search_locations or []) if spec else []
    return [str(Path(f).parent) for f in found] + os.environ.get(TREES, "").split(os.pathsep)


@functools.cache
def real(tree: str, scratch: str) -> tuple[str, dict[str, Any]]:
    """The version in a folder, and what its wrapper does."""
    copies = plan_copies(Path(tree) / "flashinfer" / "data")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(ROOT), tree)),
        "FLASHINFER_WORKSPACE_BASE": scratch,
    }
    command = [sys.executable, "-m", wrapper_cases.__name__, "alone" if copies else "size"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode and "ModuleNotFoundError" in done.stderr:
        pytest.skip(f"FlashInfer's package does not import: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr[-3000:]
    version, seen = done.stdout.strip().splitlines()[-2:]
    return version, json.loads(seen)


@pytest.mark.parametrize("tree", [t for t in trees() if t] or [""], ids=lambda t: Path(t).name)
def test_the_simulated_wrapper_does_what_flashinfers_does(tree: str, tmp_path: Path) -> None:
    if not tree:
        pytest.skip(f"no FlashInfer is installed, and {TREES} names none")
    version, expected = real(tree, str(tmp_path))
    if version not in WRAPPINGS:
        pytest.skip(f"FlashInfer {version} is not simulated")
    got = observe(simulated(version), lambda wrapper: len(wrapper.waits))
    assert got == expected, {
        name: (got.get(name), expected.get(name))
        for name in {*got, *expected}
        if got.get(name) != expected.get(name)
    }


def test_every_simulated_module_has_a_wrapper() -> None:
    assert set(WRAPPINGS) == set(BY_VERSION)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_probe_that_callers_use_finds_the_keyword(version: str) -> None:
    parameters = inspect.signature(simulated(version).run).parameters
    assert parameters["ckv_scale_arr"].kind is inspect.Parameter.KEYWORD_ONLY


@pytest.mark.parametrize(("version", "works"), [("0.7.2.post1", True), ("0.7.0", False)])
def test_a_plan_beyond_the_capacity_is_refused_with_both_numbers(version: str, works: bool) -> None:
    many = Setup(simulated(version), rows=17000)
    steps, ones = torch.arange(17001).int(), torch.ones(17000).int()
    given = {"qo_indptr": steps, "kv_indptr": steps, "kv_len_arr": ones, "kv_indices": ones}
    if not works:
        many.plan(**given, num_heads=128)
        return
    with pytest.raises(ValueError, match=r"17000.*16384"):
        many.plan(**given, num_heads=128)


@pytest.mark.parametrize("version", VERSIONS)
def test_offsets_above_64_kib_wait(version: str) -> None:
    rows = PAGEABLE_BYTES // 4
    for size, waits in ((rows - 1, 0), (rows, 2)):
        case = Setup(simulated(version), rows=size)
        # One index each, on the host: 0.7.4 reads nothing back of it.
        case.plan(kv_indices=torch.zeros(50).int())
        found = [reason for reason in case.wrapper.waits.reasons if "pageable" in reason]
        assert len(found) == waits, (size, case.wrapper.waits)


def test_waits_are_counted_by_the_device_that_there_is() -> None:
    device = Eager(132)
    modules = package("0.7.4", Recorder, device=device)
    Setup(modules["flashinfer.mla"].BatchMLAPagedAttentionWrapper).plan()
    assert len(device.waits) == 2, device.waits


def test_what_0_7_4_reads_back_is_named() -> None:
    case = Setup(simulated("0.7.4"))
    case.plan()
    assert [("kv_indices" in reason) for reason in case.wrapper.waits.reasons] == [True, True]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("fp8", [False, True])
def test_plan_and_run_give_attention(version: str, fp8: bool) -> None:
    log = AccessLog()
    device = Eager(132)
    modules = package(version, lambda: NativeModule(version, 132, log), device=device)
    case = Setup(modules["flashinfer.mla"].BatchMLAPagedAttentionWrapper)
    kind = torch.float8_e4m3fn if fp8 else torch.bfloat16
    case.reserved["kv_indices"][:50] = torch.randperm(100, dtype=torch.int32)[:50]
    chosen = case.reserved["kv_indices"][:50].clone()
    case.plan(kv_data_type=kind, num_heads=16)
    source = torch.Generator().manual_seed(1)
    q = torch.randn(5, 16, 512, generator=source).bfloat16()
    cache = torch.randn(100, 1, 512, generator=source).to(kind)
    more = {"ckv_scale": 0.5, "kpe_scale": 0.5} if fp8 else {}
    with device.active():
        out = case.wrapper.run(q, q[..., :0], cache, cache[..., :0], **more)
    values = cache[:, 0].double() * (0.5 if fp8 else 1)
    for row in range(5):
        keys = values[chosen[10 * row : 10 * row + 10].long()]
        weights = torch.softmax(q[row].double() @ keys.T * 0.04, -1)
        assert torch.allclose(out[row].double(), weights @ keys, atol=0.03), row
    assert log.touched_slots() == set(chosen.tolist())
