"""The device for code that launches by itself: what it records, replays, and counts as waits."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conformance.twin.eager import Eager
from conformance.twin.errors import CaptureError
from conformance.twin.wrapping import PAGEABLE_BYTES


@pytest.fixture
def device() -> Eager:
    return Eager(132)


def fake_triton() -> Any:
    """A Triton whose kernels are Python functions of a grid."""

    class Function:
        def __init__(self, body: Any) -> None:
            self.body = body

        def __getitem__(self, grid: Any) -> Any:
            return lambda *args, **kwargs: self.body(grid, *args, **kwargs)

    return SimpleNamespace(jit=lambda function, **options: Function(function), cdiv=7)


def step(x: torch.Tensor, out: torch.Tensor) -> None:
    """Functional, allocating, in-place and out= operations, and a view."""
    scratch = torch.empty_like(x)
    torch.add(x, 1, out=scratch)
    doubled = scratch[1:] * 2
    out[1:].copy_(torch.where(doubled > 4, doubled, out[1:]))


def test_a_replay_does_the_work_again_with_new_values(device: Eager) -> None:
    x, out = device.zeros((4,), torch.float32), device.zeros((4,), torch.float32)
    x.copy_(torch.tensor([0.0, 1, 2, 3]))
    with device.capture() as graph, device.active():
        step(x, out)
    assert out.tolist() == [0, 0, 0, 0], "a capture does nothing"
    graph.replay()
    assert out.tolist() == [0, 0, 6, 8]
    x.copy_(torch.tensor([9.0, 9, 0, 1]))
    out.fill_(-1)
    graph.replay()
    assert out.tolist() == [-1, 20, -1, -1]


def test_kernels_are_recorded_with_the_arguments_they_had(device: Eager) -> None:
    triton = Eager.triton(fake_triton())

    @triton.jit
    def fill(grid: Any, out: torch.Tensor, value: int) -> None:
        out[: grid[0]] = value

    out, size = device.zeros((3,), torch.int32), 2
    with device.capture() as graph, device.active():
        fill[(size,)](out, 5)
    assert out.tolist() == [0, 0, 0]
    size = 3
    graph.replay()
    assert out.tolist() == [5, 5, 0]
    with device.active():
        fill[(size,)](out, 7)
    assert out.tolist() == [7, 7, 7]
    fill[(1,)](out, 8)
    assert out.tolist() == [8, 7, 7], "outside of any device it runs at once"
    assert triton.cdiv == 7


def test_code_inside_sees_the_capture(device: Eager) -> None:
    with device.active():
        assert not torch.cuda.is_current_stream_capturing()
    with device.capture(), device.active():
        assert torch.cuda.is_current_stream_capturing()


def test_a_value_read_in_a_capture_is_an_error(device: Eager) -> None:
    x = device.zeros((1,), torch.int32)
    with device.capture(), device.active(), pytest.raises(CaptureError):
        int(x)


READS = {
    "item": lambda x: x[1].item(),
    "int": lambda x: int((x + 1).max()),
    "bool": lambda x: bool((x > 0).any()),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x[:2].to("cpu"),
    "to a device by name": lambda x: x.to(device="cpu", dtype=torch.int64),
    "numpy": lambda x: x.numpy(),
    "a copy": lambda x: torch.empty(4, dtype=torch.int32).copy_(x),
}


@pytest.mark.parametrize("read", READS)
def test_each_read_of_a_device_tensor_is_a_wait(device: Eager, read: str) -> None:
    x = device.zeros((4,), torch.int32)
    with device.active():
        READS[read](x)
    assert len(device.waits) == 1, device.waits
    assert "test_eager.py" in device.waits.reasons[0], "it says where"


def test_what_stays_on_one_side_is_no_wait(device: Eager) -> None:
    x = device.zeros((4,), torch.int32)
    with device.active():
        y = (x * 2).to(torch.int64).to(device.device)
        x.copy_(y)
        made = torch.zeros(9, dtype=torch.int32, device=device.device)
        made.copy_(torch.arange(9))
        host = torch.arange(4)
        assert int(host[1]) + int(host.max()) == 4
    assert len(device.waits) == 0, device.waits
    with device.active():
        int(made[1])
    assert len(device.waits) == 1, "what is made on the device by its name is the device's"


def test_what_was_read_is_on_the_host(device: Eager) -> None:
    x = device.zeros((4,), torch.int32)
    with device.active():
        host = x.cpu()
        int(host[0]), host.tolist()
    assert len(device.waits) == 1, device.waits


@pytest.mark.parametrize(("nbytes", "waits"), [(PAGEABLE_BYTES, 0), (PAGEABLE_BYTES + 4, 1)])
def test_copies_from_pageable_memory_wait_above_64_kib(
    device: Eager, nbytes: int, waits: int
) -> None:
    x, host = device.zeros((nbytes // 4,), torch.int32), torch.zeros(nbytes // 4).int()
    with device.active():
        x.copy_(host, non_blocking=True)
    assert len(device.waits) == waits, device.waits


def test_the_suites_own_reads_are_no_waits(device: Eager) -> None:
    x = device.zeros((4,), torch.int32)
    device.write(x, torch.ones(4, dtype=torch.int32))
    assert device.read(x).tolist() == [1, 1, 1, 1]
    assert len(device.waits) == 0
