"""Calls out of turn, and plans that cannot be: refused with nothing written."""

from dataclasses import replace
from functools import partial

import pytest

from smla import errors
from smla.schedule import PLAN_INFO_FIELDS
from smla.tests.workbench import (
    CONFIG,
    Simulated,
    WholeRows,
    assert_refused,
    undisturbed,
    workbench,
)


def test_metadata_of_an_older_build_is_refused():
    bench = workbench()
    stale = bench.builder.build(bench.batch())
    with undisturbed(bench) as step:
        assert_refused(
            lambda: bench.forward(step.call, stale),
            errors.OrderError,
            f"metadata|of build 1, the plan is of {step.metadata.serial}|newest build",
        )


def test_metadata_of_another_backend_is_refused():
    bench, other = workbench(), workbench(replace(CONFIG, num_heads=128))
    strange = other.builder.build(other.batch())
    with undisturbed(other), undisturbed(bench) as step:
        assert_refused(
            lambda: bench.forward(step.call, replace(strange, serial=strange.state.serial)),
            errors.OrderError,
            "metadata|another backend|this backend",
        )


def test_two_builders_of_one_backend_do_not_disturb_each_other():
    bench = workbench()
    second = bench.backend.builder()
    batch = bench.batch(q_lens=(1, 1), seq_lens=(9, 90))
    call, metadata = bench.call(batch), second.build(batch)
    with undisturbed(bench):
        pass
    bench.forward(call, metadata)
    bench.check_output(batch, call)


def test_planning_in_a_capture_is_refused():
    bench = workbench()
    with undisturbed(bench) as step:
        for batch in (step.batch, bench.batch(optimism=None), bench.batch((), ())):
            with bench.runtime.capture() as graph:
                assert_refused(
                    partial(bench.builder.build, batch),
                    errors.CaptureError,
                    "graph capture|outside|call builder.build() before the capture",
                )
            graph.replay()


def test_another_layout_of_plan_info_is_refused_at_construction():
    module = WholeRows()
    module.tamper = lambda info: [*info, 0]
    assert_refused(
        lambda: workbench(source=Simulated(module)),
        errors.PlanLayoutError,
        "plan-info|19 fields|18 fields|4 heads on 8 SMs",
    )


@pytest.mark.parametrize("optimism", [3, None], ids=["bounds", "exact"])
@pytest.mark.parametrize("place", [0, 1, 2, 9, 17])
def test_another_layout_of_plan_info_is_refused_at_a_later_plan(place, optimism):
    module = WholeRows()
    bench = workbench(source=Simulated(module))
    name = PLAN_INFO_FIELDS[place]
    with undisturbed(bench) as step:
        good = step.metadata.state.layout.plan_info
        module.tamper = lambda info: [*info[:place], info[place] + 16, *info[place + 1 :]]
        assert_refused(
            lambda: bench.builder.build(bench.batch((5,), (60,), optimism=optimism)),
            errors.PlanLayoutError,
            f"{name} {good[place] + 16} (expected {good[place]})|nothing was launched",
        )
        module.tamper = None


def test_a_planner_that_fails_leaves_the_step_before_intact():
    module = WholeRows()
    bench = workbench(source=Simulated(module))

    def fail(info):
        raise RuntimeError("the planner has no room")

    with undisturbed(bench):
        module.tamper = fail
        with pytest.raises(RuntimeError, match="no room"):
            bench.builder.build(bench.batch((5,), (60,)))
        module.tamper = None


def test_debug_mode_raises_the_flags_and_clears_them():
    bench = workbench(replace(CONFIG, debug=True))
    bench.good_step()
    batch = bench.batch()
    call, metadata = bench.call(batch), bench.builder.build(batch)
    call["topk_indices"][2, :4] = -1  # four of the selected tokens are gone
    assert_refused(
        lambda: bench.forward(call, metadata),
        errors.FlagError,
        "COUNT_BELOW_FORMULA|smla.flags",
    )
    assert not bench.state.read_flags()
    bench.good_step()
