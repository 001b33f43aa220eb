"""The immediate runtime does what a device would, at once; a capture records and runs nothing."""

import os
from typing import Any

import pytest
import torch

import smla
from smla import errors
from smla.kernels import Kernel
from smla.tests.workbench import INT32, assert_refused


def fill(x, value):
    x.fill_(value)


FILL = Kernel("fill", None, fill)


@pytest.fixture
def runtime():
    return smla.CpuRuntime()


def test_memory_is_as_asked_for(runtime):
    for make in (runtime.empty, runtime.zeros, runtime.staging):
        made = make((2, 3), INT32)
        assert made.shape == (2, 3) and made.dtype == INT32 and made.device == runtime.device
    assert not runtime.zeros((4,), INT32).any()


def test_a_staging_block_is_new_each_time(runtime):
    blocks = [runtime.staging((4,), INT32) for _ in range(3)]
    assert len({block.data_ptr() for block in blocks}) == 3


def test_queued_work_runs_at_once(runtime):
    dst = runtime.zeros((3,), INT32)
    runtime.upload(dst, torch.tensor([1, 2, 3], dtype=INT32))
    assert dst.tolist() == [1, 2, 3]
    runtime.fill(dst, 5)
    assert dst.tolist() == [5, 5, 5]
    runtime.launch(FILL, (1,), (dst,), {"value": 7})
    assert dst.tolist() == [7, 7, 7]
    runtime.native_run(fill, dst, 8)
    assert dst.tolist() == [8, 8, 8]
    assert runtime.native_plan(lambda a, b: a + b, 1, 2) == 3


def test_an_empty_grid_launches_nothing(runtime):
    dst = runtime.zeros((3,), INT32)
    for grid in ((0,), (0, 4), (4, 0)):
        runtime.launch(FILL, grid, (dst,), {"value": 7})
    assert not dst.any()


def test_what_is_read_is_a_copy_and_what_is_written_stands(runtime):
    device = runtime.zeros((3,), INT32)
    seen = runtime.read(device)
    runtime.write(device, torch.tensor([4, 5, 6], dtype=INT32))
    runtime.synchronize()
    assert (seen.tolist(), device.tolist()) == ([0, 0, 0], [4, 5, 6])


def test_a_capture_runs_nothing_and_a_replay_all_of_it_in_order(runtime):
    a, b = runtime.zeros((2,), INT32), runtime.zeros((2,), INT32)
    source = torch.tensor([1, 2], dtype=INT32)
    with runtime.capture() as graph:
        assert runtime.capturing()
        runtime.upload(a, source)
        runtime.upload(b, a)
        runtime.fill(a, 0)
        runtime.launch(FILL, (1,), (a[1:],), {"value": 7})
        runtime.native_run(fill, b[1:], 9)
    assert not runtime.capturing()
    assert not a.any() and not b.any(), "work ran during its capture"
    for first in (1, 5):  # a replay sees what its buffers hold by then
        source[0] = first
        graph.replay()
        assert (a.tolist(), b.tolist()) == ([0, 7], [first, 9])
    runtime.fill(a, 0)
    assert not a.any(), "work behind the capture was recorded"


def test_a_capture_that_fails_is_over(runtime):
    with pytest.raises(KeyError), runtime.capture():
        raise KeyError
    assert not runtime.capturing()


def test_the_device_pretends_what_it_was_told():
    runtime = smla.CpuRuntime(num_sms=78, capability=(8, 9))
    assert (runtime.num_sms, runtime.capability) == (78, (8, 9))
    assert (smla.CpuRuntime().num_sms, smla.CpuRuntime().capability) == (132, (9, 0))


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter is on")
def test_interpreted_kernels_need_the_interpreter():
    words = "'interpret'|TRITON_INTERPRET=None|TRITON_INTERPRET=1|before the process imports triton"
    assert_refused(lambda: smla.CpuRuntime(kernels="interpret"), errors.KernelModeError, words)


@pytest.mark.parametrize("kernels", ["", "triton", "cuda", None])
def test_other_kernel_modes_are_refused(kernels):
    words = f"{kernels!r}|'torch', or 'interpret'"
    assert_refused(lambda: smla.CpuRuntime(kernels=kernels), errors.KernelModeError, words)


class Compiling:
    """The Triton half of a kernel: notes what is compiled, and what runs of it."""

    def __init__(self):
        self.compiled, self.ran = [], []

    def __getitem__(self, grid):
        def launch(*args, num_warps, **meta):
            self.compiled.append((meta, num_warps))
            self.ran.append((grid, args, meta))
            return self.variant(meta)

        return launch

    def variant(self, meta):
        class Variant:
            def __getitem__(_, grid):
                return lambda *args: self.ran.append((grid, args, meta))

        return Variant()


@pytest.fixture
def cuda():
    """A CUDA runtime's launching half, which needs no GPU."""
    runtime = object.__new__(smla.CudaRuntime)
    runtime._compiled = {}
    return runtime


def test_a_kernel_is_compiled_once_for_each_name_and_meta_parameters(cuda):
    one, other = Compiling(), Compiling()
    kernels = Kernel("one", one, fill), Kernel("other", other, fill, num_warps=8)
    metas = [{"A": 1, "B": False}, {"A": 1, "B": True}, {"A": 2, "B": False}]
    for turn in range(3):
        for kernel in kernels:
            for meta in metas:
                cuda.launch(kernel, (3 + turn,), (turn, kernel.name), meta)
    assert one.compiled == [(meta, 4) for meta in metas]
    assert other.compiled == [(meta, 8) for meta in metas]
    for name, triton in (("one", one), ("other", other)):
        expected: list[Any] = [((3,), (0, name), meta) for meta in metas]
        # A kept variant takes three extents, and the meta-parameters behind the arguments.
        for turn in (1, 2):
            expected += [((3 + turn, 1, 1), (turn, name, *m.values()), m) for m in metas]
        assert triton.ran == expected


def test_a_kernel_is_not_even_compiled_for_an_empty_grid(cuda):
    triton = Compiling()
    cuda.launch(Kernel("one", triton, fill), (0, 3), (), {})
    assert not triton.ran


def test_a_pageable_block_is_not_uploaded(cuda):
    words = "pageable host memory|pinned memory|runtime.staging()"
    block = torch.zeros(4)
    assert_refused(lambda: cuda.upload(block, block), errors.KernelModeError, words)


@pytest.mark.parametrize("shape", [(16,), (100,), (2, 40)], ids=str)
def test_a_block_is_retained_by_a_copy_of_its_first_bytes(cuda, shape):
    cuda._sink = torch.zeros(16, dtype=torch.uint8)
    block = torch.randint(0, 255, shape, dtype=torch.uint8)
    cuda.retain(block)
    assert torch.equal(cuda._sink, block.view(-1)[:16])


def test_retaining_costs_the_immediate_runtime_nothing(runtime):
    with runtime.capture() as graph:
        runtime.retain(torch.zeros(3))
    assert graph.calls == []
