"""Every effect on a device goes through `smla.runtime`, watched while steps run.

Every tensor of the device is marked, and any operation on one outside of a runtime method fails.
What reads a CPU tensor without an operation (tolist, numpy) only `test_seam` sees.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import smla
from smla.schedule import ScheduleLayout
from smla.tests.workbench import (
    CONFIG,
    FP8_CONFIG,
    GROUP_CONFIG,
    INT32,
    NUM_SMS,
    Simulated,
    Workbench,
)


class Touched(AssertionError):
    """Device memory was touched outside of a runtime method."""


VIEWS = set(
    "alias as_strided detach expand permute select slice split squeeze t transpose unbind "
    "unsqueeze view".split()
)


class Watch(TorchDispatchMode):
    """Fails on operations on marked tensors, pure views apart, while no runtime method runs."""

    def __init__(self, runtime: "WatchedRuntime") -> None:
        super().__init__()
        self.runtime, self.seen = runtime, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        name = func.overloadpacket.__name__
        self.seen += name not in VIEWS
        if not self.runtime.depth and name not in VIEWS:
            for leaf in tree_leaves((args, kwargs or {})):
                if isinstance(leaf, Tensor) and self.runtime.owns(leaf):
                    raise Touched(f"{func} touches device memory of shape {tuple(leaf.shape)}")
        return func(*args, **(kwargs or {}))


class WatchedRuntime(smla.CpuRuntime):
    """An immediate runtime that knows what it allocated, and whether one of its methods runs."""

    def __init__(self) -> None:
        super().__init__(num_sms=NUM_SMS)
        self.depth = 0
        self.calls: Counter[str] = Counter()
        self._marked: dict[int, Tensor] = {}  # kept, so that no address comes back
        self._staged: dict[int, Tensor] = {}

    def owns(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._marked

    def _mark(self, where: dict[int, Tensor], made: Tensor) -> Tensor:
        if made.numel():
            where[made.untyped_storage().data_ptr()] = made
        return made

    @contextmanager
    def _inside(self, name: str) -> Iterator[None]:
        self.calls[name] += 1
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    def empty(self, shape, dtype):
        with self._inside("empty"):
            return self._mark(self._marked, super().empty(shape, dtype))

    def zeros(self, shape, dtype):
        with self._inside("zeros"):
            return self._mark(self._marked, super().zeros(shape, dtype))

    def staging(self, shape, dtype):
        with self._inside("staging"):
            return self._mark(self._staged, super().staging(shape, dtype))

    def upload(self, dst, src):
        assert src.untyped_storage().data_ptr() in self._staged, "an upload from pageable memory"
        assert self.owns(dst), "an upload into memory of the host"
        super().upload(dst, src)

    def _queue(self, call):
        def counted() -> None:
            with self._inside("queued"):
                call()

        super()._queue(counted)

    def native_plan(self, function, *args):
        self.calls["native_plan"] += 1  # works on the host alone, so it is watched as well
        return super().native_plan(function, *args)

    def read(self, src):
        with self._inside("read"):
            return super().read(src)

    def write(self, dst, src):
        with self._inside("write"):
            super().write(dst, src)


CONFIGS = [CONFIG, FP8_CONFIG, GROUP_CONFIG, replace(CONFIG, head_dim_kpe=0, plan_slack=0)]
STEPS: list[tuple[str, dict[str, Any], dict[str, int]]] = [
    ("planned", {}, {"staging": 1, "native_plan": 1}),
    ("reused", {}, {"staging": 0, "native_plan": 0}),
    ("of other rows, padded", {"q_lens": (4, 1), "seq_lens": (90, 3), "padded": 9}, {"staging": 1}),
    ("without rows", {"q_lens": (), "seq_lens": ()}, {"native_plan": 0, "staging": 1}),
    ("without rows, padded", {"q_lens": (0,), "seq_lens": (0,), "padded": 4}, {"staging": 0}),
    ("exact", {"optimism": None}, {"native_plan": 1}),
]


@pytest.mark.parametrize("config", CONFIGS, ids=["bf16", "fp8", "group", "nope"])
def test_steps_touch_the_device_through_the_runtime_alone(config):
    runtime = WatchedRuntime()
    with Watch(runtime) as watch:
        bench = Workbench(config, runtime, Simulated())
    assert watch.seen, "nothing was watched"
    for name, shape, calls in STEPS:
        batch = bench.batch(**shape)
        call = bench.call(batch)
        runtime.calls.clear()
        with Watch(runtime) as watch:
            metadata = bench.builder.build(batch)
            bench.forward(call, metadata)
        assert watch.seen, f"nothing was watched in the step {name}"
        expected = {**calls, "empty": 0, "zeros": 0, "write": 0}
        if shape.get("optimism", 0) is not None:
            expected["read"] = 0  # the bound path never waits
        got = {key: runtime.calls[key] for key in expected}
        bench.check_output(batch, call)
        assert got == expected, f"step {name}: calls of the runtime {got}, expected {expected}"


@pytest.mark.parametrize("optimism", [3, None], ids=["bounds", "exact"])
def test_steps_of_several_schedules_touch_the_device_through_the_runtime_alone(
    optimism, monkeypatch
):
    monkeypatch.setattr(ScheduleLayout, "capacity", 11)
    runtime = WatchedRuntime()
    bench = Workbench(CONFIG, runtime, Simulated())
    batch = bench.batch((12,), (50,), optimism=optimism)
    call = bench.call(batch)
    runtime.calls.clear()
    with Watch(runtime):
        bench.forward(call, bench.builder.build(batch))
    assert runtime.calls["staging"] == runtime.calls["native_plan"] == 4
    assert runtime.calls["read"] == (0 if optimism else 2)
    bench.check_output(batch, call)


@pytest.mark.parametrize("config", CONFIGS, ids=["bf16", "fp8", "group", "nope"])
def test_a_captured_forward_does_all_its_work_when_replayed(config):
    runtime = WatchedRuntime()
    bench = Workbench(config, runtime, Simulated())
    batch = bench.batch(padded=9)
    call, metadata = bench.call(batch), bench.builder.build(batch)
    before, names = bench.written(), ("slots", "counts", "kv_indices")
    with Watch(runtime), runtime.capture() as graph:
        bench.forward(call, metadata)
    assert all(
        map(torch.equal, *[[s[f"{n} of 0"] for n in names] for s in (before, bench.written())])
    )
    with Watch(runtime):
        graph.replay()
    bench.check_output(batch, call)


@pytest.mark.parametrize("config", [FP8_CONFIG, GROUP_CONFIG], ids=["tensor", "group"])
@pytest.mark.parametrize("captured", [False, True], ids=["queued", "captured"])
def test_a_cache_write_touches_the_device_through_one_launch_alone(config, captured):
    runtime = WatchedRuntime()
    bench = Workbench(config, runtime, Simulated())
    values = bench.on_device(bench.draw.bf16((5, config.head_dim)))
    slots = bench.on_device(torch.tensor([0, 65, -1, 7, 10**9]))
    before = runtime.read(bench.cache)
    runtime.calls.clear()

    def write() -> None:
        parts = values[:, : config.head_dim_ckv], values[:, config.head_dim_ckv :]
        if config.scale_groups:
            smla.write_per_group(
                runtime, *parts, bench.cache, bench.scale_arr, slots, k_scale=bench.k_scale
            )
        else:
            smla.write_per_tensor(runtime, *parts, bench.cache, slots, k_scale=0.375)

    if captured:
        with Watch(runtime), runtime.capture() as graph:
            write()
        assert torch.equal(before, bench.cache), "the capture wrote"
        with Watch(runtime):
            graph.replay()
    else:
        with Watch(runtime):
            write()
    assert runtime.calls == {"queued": 1}
    changed = (before != bench.cache).any(-1).nonzero().tolist()
    assert changed == [[0, 0], [0, 7], [1, 1]]


@pytest.mark.parametrize(
    "offend",
    [
        lambda x: x.zero_(),
        lambda x: x[1:].copy_(torch.zeros(3, dtype=INT32)),
        lambda x: x[2:].view(torch.uint8).long(),
        lambda x: int(x[0]),
        lambda x: x.clone(),
        lambda x: x + 1,
        lambda x: torch.zeros(4, dtype=INT32).copy_(x),
        lambda x: torch.cat([torch.zeros(1, dtype=INT32), x]),
        lambda x: bool((x == 0).any()),
    ],
)
def test_the_watch_sees_what_it_must(offend):
    runtime = WatchedRuntime()
    device = runtime.zeros((4,), INT32)
    with Watch(runtime):
        device[1:3].view(torch.uint8)  # a view touches nothing
        torch.zeros(4).add_(1)  # memory of the host is free
        with pytest.raises(Touched):
            offend(device)
