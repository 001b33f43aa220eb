"""What is told about memory is what is taken, to the byte."""

from dataclasses import replace

import pytest
import torch

import smla
from smla.schedule import ScheduleLayout
from smla.tests.workbench import CONFIG, FP8_CONFIG, NUM_SMS, Simulated, WholeRows, Workbench


class Counting(smla.CpuRuntime):
    """Counts the bytes asked for on the device and in staging blocks."""

    def __init__(self, num_sms=NUM_SMS):
        super().__init__(num_sms=num_sms)
        self.device_bytes = self.staged_bytes = 0

    def empty(self, shape, dtype):
        made = super().empty(shape, dtype)
        self.device_bytes += made.nbytes
        return made

    def zeros(self, shape, dtype):
        made = super().zeros(shape, dtype)
        self.device_bytes += made.nbytes
        return made

    def staging(self, shape, dtype):
        made = super().staging(shape, dtype)
        self.staged_bytes += 1 << (made.nbytes - 1).bit_length()  # as torch takes it
        return made


CONFIGS = [
    CONFIG,
    FP8_CONFIG,
    replace(CONFIG, max_tokens=1),
    replace(CONFIG, max_tokens=77, topk_width=41, head_dim_ckv=512, num_heads=128),
]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("capacity", [16384, 11], ids=["one schedule", "several"])
@pytest.mark.parametrize("sms", [8, 6])
def test_a_builder_takes_the_device_memory_that_was_told(config, capacity, sms, monkeypatch):
    monkeypatch.setattr(ScheduleLayout, "capacity", capacity)
    runtime = Counting(sms)
    backend = smla.SparseMLABackend(config, runtime=runtime, source=Simulated(WholeRows(sms)))
    runtime.device_bytes = 0
    state = backend.builder().state
    told = smla.memory_estimate(config, sms)
    assert runtime.device_bytes == told.device
    assert told == state.memory_estimate(config, sms)
    for name in ("float_workspace", "kv_indices", "kv_indptr", "slots"):
        assert getattr(state, name).nbytes == getattr(told, name), name
    rows = (state.counts, state.row_request, state.row_context, state.live, state.flags)
    assert sum(tensor.nbytes for tensor in rows) == told.rows


@pytest.mark.parametrize("capacity", [16384, 11], ids=["one schedule", "several"])
@pytest.mark.parametrize("optimism", [3, None], ids=["bounds", "exact"])
def test_a_plan_of_all_rows_takes_the_host_memory_that_was_told(capacity, optimism, monkeypatch):
    monkeypatch.setattr(ScheduleLayout, "capacity", capacity)
    runtime = Counting()
    bench = Workbench(CONFIG, runtime, Simulated())
    runtime.staged_bytes = 0
    batch = bench.batch((CONFIG.max_tokens,), (50,), optimism=optimism)
    bench.builder.build(batch)
    assert runtime.staged_bytes == smla.memory_estimate(CONFIG, NUM_SMS).pinned_per_plan
    assert bench.state.stats.chunks == (1 if capacity == 16384 else 4)


def test_steps_take_no_device_memory_but_their_output():
    runtime = Counting()
    bench = Workbench(CONFIG, runtime, Simulated())
    batch = bench.batch()
    call = bench.call(batch)
    runtime.device_bytes = 0
    bench.forward(call, bench.builder.build(batch))
    assert runtime.device_bytes == 0
    out = bench.forward(call, bench.builder.build(batch), out=None)
    assert runtime.device_bytes == out.nbytes


def test_the_default_is_an_h200():
    config = replace(CONFIG, num_heads=128, head_dim_ckv=512)
    assert smla.memory_estimate(config) == smla.memory_estimate(config, 132)
    assert smla.memory_estimate(config).float_workspace == 2 * 66 * 128 * (2 * 512 + 4) + 32


def test_every_buffer_of_a_graph_has_a_told_address():
    state = Workbench(CONFIG, Counting(), Simulated()).state
    buffers = [value for value in vars(state).values() if isinstance(value, torch.Tensor)]
    buffers += [schedule.workspace for schedule in state.schedules]
    assert sorted(state.addresses().values()) == sorted(b.data_ptr() for b in buffers)
    assert {"kv_indices", "kv_indptr", "flags", "live", "schedule 0"} <= state.addresses().keys()
