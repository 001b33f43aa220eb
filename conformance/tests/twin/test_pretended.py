"""The pretended device: what it says to FlashInfer's code alone, and that it leaves no trace."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from conformance.twin.eager import Eager
from conformance.twin.pretended import package, pretending

CODE = """
import torch
def devices(*tensors): return [str(t.device) for t in tensors]
def pinned(size): return torch.empty(size, dtype=torch.uint8, pin_memory=True, device="cpu")
def is_pinned(t): return t.is_pinned()
def moved(t): return t.to(torch.device("cuda", 0), non_blocking=True)
def made(t): return torch.empty(3, device=t.device)
def kept(t): return t.max()
def read(t): return t.item()
def upload(to, of): to.copy_(of, non_blocking=True)
def sm(): return torch.cuda.get_device_properties(0).multi_processor_count
def wait(): torch.cuda.synchronize()
"""


class Native:
    num_sms = 7

    def plan(self, *args: Any) -> str:
        return "planned"

    def run(self, out: torch.Tensor) -> None:
        out.add_(1)


class Spec:
    def build_and_load(self) -> Any:
        self.build()
        return sys.modules["tvm_ffi"].load_module(self.path)

    def build(self) -> None:
        raise AssertionError("nothing is built")

    path = "jit/batch_mla_attention_sm90.so"


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A package that asks its device as FlashInfer does, in place of FlashInfer."""
    for name in [n for n in sys.modules if n.split(".")[0] in ("flashinfer", "tvm_ffi")]:
        monkeypatch.delitem(sys.modules, name)
    made = {n: ModuleType(n) for n in ("flashinfer", "flashinfer.mla", "flashinfer.jit",
                                       "flashinfer.jit.core", "tvm_ffi")}  # fmt: skip
    exec(CODE, vars(made["flashinfer.mla"]))
    spec = type("Spec", (), dict(vars(Spec)))
    vars(made["flashinfer.jit.core"]).update(Spec=spec)
    vars(made["tvm_ffi"]).update(load_module=lambda path: "a real module")
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
    return made["flashinfer.mla"]


def native(enqueue: Any = None) -> Native:
    return Native()


def test_the_device_is_told_to_flashinfers_code_alone(code: Any) -> None:
    device = Eager(7)
    package(device)
    there, host = device.zeros((4,), torch.int32), torch.zeros(4, dtype=torch.int32)
    with pretending(native, 7), device.active():
        assert code.devices(there, there[1:], host) == ["cuda:0", "cuda:0", "cpu"]
        assert str(there.device) == "cpu" and not there.is_cuda
        assert code.devices(code.moved(host), code.made(there)) == ["cuda:0", "cuda:0"]
        assert code.is_pinned(code.pinned(8)) and not code.is_pinned(host)
        assert code.sm() == 7
        assert len(device.waits) == 0


def test_what_waits_is_counted(code: Any) -> None:
    device = Eager(7)
    package(device)
    large = device.zeros((1 << 17,), torch.uint8)
    with pretending(native):
        with device.active():
            code.upload(large, code.pinned(1 << 17))
            assert len(device.waits) == 0
            code.upload(large, torch.zeros(1 << 17, dtype=torch.uint8))
            code.wait()
            largest = code.kept(large)
        with device.active():  # what an earlier call made is the device's still
            assert code.read(largest) == 0
    kinds = [reason.partition(",")[0] for reason in device.waits.reasons]
    assert kinds == ["131072 bytes of a tensor", "synchronize of the device",
                     "item of a device tensor"]  # fmt: skip


def test_modules_are_not_built_and_their_runs_are_the_devices(code: Any) -> None:
    device, out = Eager(7), torch.zeros(1)
    with pretending(native):
        spec = sys.modules["flashinfer.jit.core"].Spec()
        module = spec.build_and_load()
        assert module.plan(1, 2) == "planned"
        with device.capture() as graph, device.active():
            module.run(out)
        assert out.item() == 0
        graph.replay()
        assert out.item() == 1
        spec.path = "jit/another_kernel.so"
        with pytest.raises(LookupError, match="another_kernel"):
            spec.build_and_load()


def test_nothing_is_left_of_it(code: Any) -> None:
    names = ("get_device_properties", "get_device_capability", "synchronize", "current_stream",
             "device", "Event")  # fmt: skip
    before = [getattr(torch.cuda, name) for name in names]
    version, spec = torch.version.cuda, sys.modules["flashinfer.jit.core"].Spec
    with pretending(native):
        assert torch.cuda.get_device_capability() == (9, 0)
    assert [getattr(torch.cuda, name) for name in names] == before
    assert torch.version.cuda == version
    assert sys.modules["tvm_ffi"].load_module(Path("x")) == "a real module"
    with pytest.raises(AssertionError, match="nothing is built"):
        spec().build_and_load()
