"""The immediate runtime does what a device would, at once; a capture records and runs nothing."""

import os

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
    other = runtime.zeros((3,), INT32)
    runtime.copy(other, dst)
    runtime.zero(dst)
    assert (dst.tolist(), other.tolist()) == ([0, 0, 0], [1, 2, 3])
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
        runtime.copy(b, a)
        runtime.zero(a)
        runtime.launch(FILL, (1,), (a[1:],), {"value": 7})
        runtime.native_run(fill, b[1:], 9)
    assert not runtime.capturing()
    assert not a.any() and not b.any(), "work ran during its capture"
    for first in (1, 5):  # a replay sees what its buffers hold by then
        source[0] = first
        graph.replay()
        assert (a.tolist(), b.tolist()) == ([0, 7], [first, 9])
    runtime.zero(a)
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
