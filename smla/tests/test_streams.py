"""A step stays on one stream; the next one may take another, and queues behind the former."""

import pytest

from smla import errors
from smla.tests.workbench import assert_refused, same_bytes, workbench


def test_a_forward_on_another_stream_than_its_build_is_refused_and_writes_nothing():
    bench = workbench()
    batch = bench.batch()
    call, metadata = bench.call(batch), bench.builder.build(batch)
    before = bench.written()
    with bench.runtime.aside():
        assert_refused(
            lambda: bench.forward(call, metadata), errors.OrderError, "stream|another one|build"
        )
    for name, value in bench.written().items():
        same = same_bytes if hasattr(value, "shape") else lambda a, b: a == b
        assert same(before[name], value), f"the refused forward changed {name}"
    bench.forward(call, metadata)
    bench.check_output(batch, call)


@pytest.mark.parametrize("moves", [0, 1, 2])
def test_a_build_on_another_stream_follows_the_former_once(moves, monkeypatch):
    bench = workbench()
    followed: list[int] = []
    monkeypatch.setattr(bench.runtime, "follow", followed.append)
    bench.builder.build(bench.batch())
    for _ in range(moves):
        with bench.runtime.aside():
            batch = bench.batch()
            call, metadata = bench.call(batch), bench.builder.build(batch)
            bench.forward(call, metadata)
            bench.builder.build(bench.batch())
            bench.check_output(batch, call)
        bench.builder.build(bench.batch())
    assert followed == [0, 1] * moves


def test_a_capture_may_have_a_stream_of_its_own():
    bench = workbench()
    batch = bench.batch(padded=9)
    call, metadata = bench.call(batch), bench.builder.build(batch)
    with bench.runtime.aside(), bench.runtime.capture() as graph:
        bench.forward(call, metadata)
    graph.replay()
    bench.check_output(batch, call)


def test_a_build_that_fails_on_another_stream_leaves_the_step_before_usable(monkeypatch):
    bench = workbench()
    batch = bench.batch()
    call, metadata = bench.call(batch), bench.builder.build(batch)

    def refuse(*_):
        raise errors.PlanLayoutError("plan-info", found="7", allowed="18", remedy="none")

    with monkeypatch.context() as patch, bench.runtime.aside():
        patch.setattr(type(bench.state.schedules[0]), "plan", refuse)
        with pytest.raises(errors.PlanLayoutError):
            bench.builder.build(bench.batch((1, 3, 3)))
    bench.forward(call, metadata)
    bench.check_output(batch, call)
