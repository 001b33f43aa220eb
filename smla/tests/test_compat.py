"""What differs between FlashInfer's versions is found by looking at what is installed."""

import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import smla
from smla import errors
from smla.engines.flashinfer import compat
from smla.tests.workbench import (
    CONFIG,
    FP8_CONFIG,
    NUM_SMS,
    Simulated,
    WholeRows,
    Workbench,
    assert_refused,
)

NEW, OLD = "flashinfer.mla._batch_mla._backends._fa_common", "flashinfer.mla._core"


def installed(monkeypatch, version):
    """Pretend that this version of FlashInfer is installed, None for none."""

    def of(name):
        assert name == "flashinfer-python"
        if version is None:
            raise PackageNotFoundError(name)
        return version

    monkeypatch.setattr(compat, "version", of)
    monkeypatch.delenv(compat.TRIAL, raising=False)


def modules(monkeypatch, **loaders):
    """Put fake modules in the place of FlashInfer's; `new` and `old` are their loaders."""
    for name in (NEW, OLD):
        for parent in [name.rsplit(".", depth)[0] for depth in range(1, name.count(".") + 1)]:
            monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    for name, key in ((NEW, "new"), (OLD, "old")):
        module = SimpleNamespace() if key in loaders else None
        if module is not None and loaders[key] is not None:
            module.get_batch_mla_module = loaders[key]
        monkeypatch.setitem(sys.modules, name, module)  # None: not to be imported


@pytest.mark.parametrize(
    "version",
    ["0.6.18", "0.7.0", "0.7.2.post1", "0.7.4", "0.7.4rc1", "0.7.3.dev20260101", "0.7.4+cu130"],
)
def test_versions_in_the_proven_range_are_trusted(version, monkeypatch):
    installed(monkeypatch, version)
    assert compat.InstalledFlashInfer().version == version


@pytest.mark.parametrize(
    "version", ["0.6.17", "0.6.18rc1", "0.7.4.post1", "0.7.5", "0.8.0", "1.0", "nightly"]
)
def test_other_versions_are_for_a_trial_only(version, monkeypatch):
    installed(monkeypatch, version)
    words = f"version {version}|>=0.6.18|<=0.7.4|SMLA_FLASHINFER_TRIAL=1"
    assert_refused(compat.InstalledFlashInfer, errors.VersionError, words)
    assert compat.InstalledFlashInfer(trial=True).version == version
    monkeypatch.setenv("SMLA_FLASHINFER_TRIAL", "1")
    assert compat.InstalledFlashInfer().version == version
    assert_refused(lambda: compat.InstalledFlashInfer(trial=False), errors.VersionError, version)
    for other in ("0", "", "yes"):
        monkeypatch.setenv("SMLA_FLASHINFER_TRIAL", other)
        assert_refused(compat.InstalledFlashInfer, errors.VersionError, words)


@pytest.mark.parametrize("trial", [False, True])
def test_an_absent_flashinfer_is_refused(trial, monkeypatch):
    installed(monkeypatch, None)
    words = "not installed|0.7.4|pip install flashinfer-python=="
    assert_refused(lambda: compat.InstalledFlashInfer(trial=trial), errors.VersionError, words)


@pytest.mark.parametrize("key", ["old", "new"])
@pytest.mark.parametrize("config", [CONFIG, FP8_CONFIG], ids=["bf16", "fp8"])
def test_either_loader_is_found_and_asked_for_the_kernel_of_the_config(key, config, monkeypatch):
    native: Any = WholeRows()
    asked = []

    def loader(*args):
        asked.append(args)
        return native

    installed(monkeypatch, "0.7.4")
    modules(monkeypatch, **{key: loader})
    assert compat.InstalledFlashInfer().load(config) is native
    out = torch.float16 if config is FP8_CONFIG else torch.bfloat16
    dims = (config.head_dim_ckv, config.head_dim_kpe)
    assert asked == [("fa3", torch.bfloat16, config.kv_dtype, out, torch.int32, *dims, False)]


def test_the_newer_loader_is_preferred_and_a_module_without_one_passed_over(monkeypatch):
    installed(monkeypatch, "0.7.4")
    old: Any = WholeRows()
    new: Any = WholeRows()
    modules(monkeypatch, new=lambda *_: new, old=lambda *_: old)
    assert compat.InstalledFlashInfer().load(CONFIG) is new
    modules(monkeypatch, new=None, old=lambda *_: old)
    assert compat.InstalledFlashInfer().load(CONFIG) is old


@pytest.mark.parametrize("loaders", [{}, {"new": None}, {"old": None}, {"new": None, "old": None}])
def test_a_flashinfer_without_any_loader_is_refused(loaders, monkeypatch):
    installed(monkeypatch, "0.7.4")
    modules(monkeypatch, **loaders)
    source = compat.InstalledFlashInfer()
    words = f"version 0.7.4 without get_batch_mla_module|{NEW}|{OLD}"
    assert_refused(lambda: source.load(CONFIG), errors.VersionError, words)


@pytest.mark.parametrize("version", ["0.6.18", "0.7.4"])
def test_a_backend_of_an_installed_flashinfer_computes_with_the_native_module(version, monkeypatch):
    class Adapter:
        """FlashInfer's own, which stages and copies what smla does by itself."""

        def __init__(self, module):
            self._module = module

        def plan(self, *_):
            pytest.fail("the adapter planned")

        run = plan

    native = WholeRows(copies=version == "0.6.18")
    installed(monkeypatch, version)
    if version == "0.6.18":
        modules(monkeypatch, old=lambda *_: native)
    else:
        modules(monkeypatch, new=lambda *_: Adapter(native))
    config = replace(CONFIG, head_dim_ckv=512)
    source = compat.InstalledFlashInfer()
    Workbench(config, smla.CpuRuntime(num_sms=NUM_SMS), source).good_step()


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (SimpleNamespace(), "SimpleNamespace without plan and run"),
        (SimpleNamespace(plan=len), "without run"),
        (SimpleNamespace(plan=len, run=3), "without run"),
        (SimpleNamespace(_module=SimpleNamespace(run=len), plan=len), "without plan"),
        (SimpleNamespace(_module=None, plan=len, run=len), "NoneType without plan and run"),
    ],
)
def test_a_module_without_plan_or_run_is_refused(module, words, monkeypatch):
    installed(monkeypatch, "0.7.4")
    modules(monkeypatch, new=lambda *_: module)
    runtime, config = smla.CpuRuntime(num_sms=NUM_SMS), replace(CONFIG, head_dim_ckv=512)
    assert_refused(
        lambda: smla.SparseMLABackend(config, runtime=runtime, source=compat.InstalledFlashInfer()),
        errors.VersionError,
        f"native module|{words}",
    )


def test_the_result_of_plan_tells_who_copies():
    info = [*range(18)]
    assert compat.planned(info) == (info, None)
    assert compat.planned((info, 592464)) == (info, 592464)
    assert compat.planned([info, 592464.0]) == (info, 592464)


class Logged(smla.CpuRuntime):
    """Notes (method, address of the host block) in order."""

    def __init__(self):
        super().__init__(num_sms=NUM_SMS)
        self.log: list[tuple[str, int]] = []

    def native_plan(self, function, *args):
        self.log.append(("plan", args[2].data_ptr()))
        return super().native_plan(function, *args)

    def upload(self, dst, src):
        self.log.append(("upload", src.untyped_storage().data_ptr()))
        super().upload(dst, src)

    def retain(self, block):
        self.log.append(("retain", block.untyped_storage().data_ptr()))


@pytest.mark.parametrize("copies", [True, False], ids=["0.6.18", "0.7"])
@pytest.mark.parametrize("rows", [6, 12], ids=["one schedule", "several"])
def test_every_planned_block_is_uploaded_or_kept_until_plans_own_copy_is_made(
    copies, rows, monkeypatch
):
    monkeypatch.setattr(smla.schedule.ScheduleLayout, "capacity", 11)
    runtime = Logged()
    bench = Workbench(CONFIG, runtime, Simulated(WholeRows(copies=copies)))
    before = bench.state.int_workspace.clone()
    runtime.log.clear()
    batch = bench.batch((rows,), (50,))
    call, metadata = bench.call(batch), bench.builder.build(batch)
    assert not torch.equal(before, bench.state.int_workspace)
    planned = [block for what, block in runtime.log if what == "plan"]
    assert len(planned) == len(set(planned)) == (1 if rows == 6 else 4)
    for block in planned:
        later = runtime.log[runtime.log.index(("plan", block)) + 1 :]
        what = [name for name, kept in later if kept == block]
        assert len(what) == 1, f"{what}: a block is uploaded, or retained, once"
        assert copies or what == ["upload"]
    bench.forward(call, metadata)
    bench.check_output(batch, call)


@pytest.mark.parametrize("copies", [True, False])
def test_the_schedules_of_both_kinds_of_plan_are_the_same(copies):
    benches = [
        Workbench(CONFIG, smla.CpuRuntime(num_sms=NUM_SMS), Simulated(WholeRows(copies=kind)))
        for kind in (copies, False)
    ]
    for bench in benches:
        bench.good_step()
        bench.good_step(q_lens=(), seq_lens=())
        bench.good_step(optimism=None)
    one, other = (bench.state for bench in benches)
    assert one.engine.plan_copies is copies
    # What lies beyond an array's used part is whatever the block held before.
    schedules = [state.layout.view(state.int_workspace) for state in (one, other)]
    assert schedules[0].num_works == 6
    for name in WholeRows.WRITES:
        assert torch.equal(*(schedule.array(name) for schedule in schedules)), name


def test_a_bad_plan_info_of_a_plan_that_copies_leaves_no_metadata_usable():
    module = WholeRows(copies=True)
    bench = Workbench(CONFIG, smla.CpuRuntime(num_sms=NUM_SMS), Simulated(module))
    batch = bench.batch()
    call, metadata = bench.call(batch), bench.builder.build(batch)
    module.tamper = lambda info: [*info[:5], info[5] + 16, *info[6:]]
    bad = bench.batch((5,), (60,))
    assert_refused(lambda: bench.builder.build(bad), errors.PlanLayoutError, "plan-info")
    module.tamper = None
    assert_refused(lambda: bench.forward(call, metadata), errors.OrderError, "newest build")
    bench.good_step()
