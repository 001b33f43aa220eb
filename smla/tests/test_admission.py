"""A module that computes wrongly is refused at construction, whatever its version says."""

from dataclasses import replace

import pytest
import torch

import smla
from smla import admission, errors
from smla.schedule import ScheduleLayout
from smla.tests.workbench import (
    CONFIG,
    FP8_CONFIG,
    GROUP_CONFIG,
    INT32,
    NUM_SMS,
    Simulated,
    WholeRows,
    assert_refused,
    workbench,
)


class Tampered(WholeRows):
    """A module whose `run` goes wrong in one way."""

    def run(self, *args):
        arguments = [*args]
        self.spoil(arguments)
        super().run(*arguments)
        self.after(arguments[8])

    def spoil(self, arguments):
        return

    def after(self, out):
        return


class OtherSlot(Tampered):
    """Reads the cache row behind the right one."""

    def spoil(self, arguments):
        arguments[7] = arguments[7] + 1


class ReadsPlannedLengths(Tampered):
    """Knows nothing of the clamp: reads as many entries as were planned."""

    def run(self, float_ws, int_ws, info, *rest):
        layout = ScheduleLayout(CONFIG.num_heads, NUM_SMS, CONFIG.head_dim_ckv)
        words = int_ws.clone()
        ends = layout.at("kv_end"), layout.at("kv_len")
        for at in ends:
            words.view(INT32)[at] = CONFIG.max_valid
        super().run(float_ws, words, info, *rest)


class DropsTheNewestToken(Tampered):
    """Ends each row of more than one token a token too early."""

    def run(self, float_ws, int_ws, info, *rest):
        words = int_ws.clone()
        at = ScheduleLayout(CONFIG.num_heads, NUM_SMS, CONFIG.head_dim_ckv).at("kv_end")
        words.view(INT32)[at] = max(int(words.view(INT32)[at]) - 1, 1)
        super().run(float_ws, words, info, *rest)


class LeaksWeight(Tampered):
    """Leaves some weight on masked positions."""

    def after(self, out):
        out.mul_(1 - 2.0**-6)


class MasksWithALogit(WholeRows):
    """As 0.6.18 does: masked positions of a tile of 64 have the finite logit -50000."""

    def run(self, *args):
        super().run(*args)
        int_ws, q, out, scale = args[1], args[3], args[8], args[13]
        layout = ScheduleLayout(q.shape[1], NUM_SMS, q.shape[2])
        length = int(layout.view(int_ws).array("kv_end")[0])
        leaked = (-length % 64) * torch.tensor(-50000.0 * scale).exp().item()
        out.mul_(length / (length + leaked))  # about so, for logits near 0


class WritesNothing(Tampered):
    def run(self, *args):
        return


class LeavesAHeadOut(Tampered):
    def run(self, *args):
        kept = args[8][:, -1].clone()
        super().run(*args)
        args[8][:, -1] = kept


class WritesNaN(Tampered):
    def after(self, out):
        out[0, 0, 0] = torch.nan


class ForgetsTheRopePart(Tampered):
    def spoil(self, arguments):
        arguments[4] = torch.zeros_like(arguments[4])


class ForgetsTheSoftmaxScale(Tampered):
    def spoil(self, arguments):
        arguments[13] = 1.0


class ForgetsTheGroupScales(Tampered):
    """Takes the rope part's scale for all of the cache."""

    def spoil(self, arguments):
        arguments[17] = None


class TakesTheScalesOfTheRowBehind(Tampered):
    def spoil(self, arguments):
        arguments[17] = arguments[17].roll(-1, 0)


class TakesTheScalesOfTheNextGroup(Tampered):
    def spoil(self, arguments):
        arguments[17] = arguments[17].roll(-1, 1)


class TakesARowsFirstScaleForAll(Tampered):
    def spoil(self, arguments):
        arguments[17] = arguments[17][:, :1].expand_as(arguments[17])


class ForgetsTheRopePartsScale(Tampered):
    def spoil(self, arguments):
        arguments[16] = 1.0


class ForgetsTheCacheScale(Tampered):
    def spoil(self, arguments):
        arguments[15] = arguments[16] = 1.0


WRONG = [
    OtherSlot, ReadsPlannedLengths, DropsTheNewestToken, LeaksWeight, WritesNothing,
    LeavesAHeadOut, WritesNaN, ForgetsTheRopePart, ForgetsTheSoftmaxScale,
]  # fmt: skip


@pytest.mark.parametrize("module", WRONG)
@pytest.mark.parametrize("copies", [False, True], ids=["0.7", "0.6.18"])
@pytest.mark.parametrize("config", [CONFIG, FP8_CONFIG], ids=["bf16", "fp8"])
def test_a_module_that_computes_wrongly_is_refused(module, config, copies):
    assert_refused(
        lambda: workbench(config, source=Simulated(module(copies=copies))),
        errors.AdmissionError,
        "FlashInfer stand-in|relative error of|sm_scale 0.125|another version",
    )


def test_a_module_that_forgets_the_scale_of_an_fp8_cache_is_refused():
    assert_refused(
        lambda: workbench(FP8_CONFIG, source=Simulated(ForgetsTheCacheScale())),
        errors.AdmissionError,
        "relative error",
    )
    workbench(CONFIG, source=Simulated(ForgetsTheCacheScale())).good_step()


@pytest.mark.parametrize(
    "module",
    [
        ForgetsTheGroupScales, TakesTheScalesOfTheRowBehind, TakesTheScalesOfTheNextGroup,
        TakesARowsFirstScaleForAll, ForgetsTheRopePartsScale, *WRONG[3:],
    ],
)  # fmt: skip
def test_a_module_that_computes_a_group_scaled_cache_wrongly_is_refused(module):
    assert_refused(
        lambda: workbench(GROUP_CONFIG, source=Simulated(module())),
        errors.AdmissionError,
        "relative error",
    )


@pytest.mark.parametrize(
    ("sm_scale", "leaks"), [(0.125, False), (2.0**-10, False), (2e-4, True), (1e-4, True)]
)
def test_a_finite_mask_is_refused_where_the_softmax_scale_makes_it_leak(sm_scale, leaks):
    config = replace(CONFIG, sm_scale=sm_scale)
    workbench(config).good_step()
    if leaks:
        assert_refused(
            lambda: workbench(config, source=Simulated(MasksWithALogit())),
            errors.AdmissionError,
            f"a row of 1 tokens|sm_scale {sm_scale}|allowed: none",
        )
    else:
        workbench(config, source=Simulated(MasksWithALogit())).good_step()


class PlansTooLittle(WholeRows):
    """Plans one token for a longer row, and computes with all of them nevertheless."""

    def plan(self, float_ws, int_ws, pinned, *rest):
        planned = super().plan(float_ws, int_ws, pinned, *rest)
        pinned.view(INT32)[self.layout.at("kv_len")] = 1
        return planned

    def run(self, float_ws, int_ws, info, *rest):
        words = int_ws.clone().view(INT32)
        words[self.layout.at("kv_len")] = words[self.layout.at("kv_end")]
        super().run(float_ws, words.view(torch.uint8), info, *rest)

    layout = ScheduleLayout(CONFIG.num_heads, NUM_SMS, CONFIG.head_dim_ckv)


def test_a_right_output_whose_plan_was_too_short_is_refused_by_its_flag():
    assert_refused(
        lambda: workbench(source=Simulated(PlansTooLittle())),
        errors.AdmissionError,
        "FlashInfer stand-in|VALID_ABOVE_PLAN|no flags",
    )


@pytest.mark.parametrize("topk,kpool", [(1, 1), (2, 1), (16, 4), (36, 1), (37, 1), (64, 64)])
@pytest.mark.parametrize("heads", [1, 65, 128])
@pytest.mark.parametrize("slack", [0, 32])
@pytest.mark.parametrize("base", [CONFIG, FP8_CONFIG, GROUP_CONFIG], ids=["bf16", "fp8", "group"])
def test_every_geometry_of_a_right_module_is_admitted(topk, kpool, heads, slack, base):
    config = replace(
        base, index_topk=topk, index_kpool=kpool, topk_width=topk + kpool - 1, num_heads=heads,
        plan_slack=slack, max_graph_tokens=4, debug=True,
    )  # fmt: skip
    bench = workbench(config)
    assert bench.backend.config == config and bench.state.stats.plans == 0
    bench.good_step()


@pytest.mark.parametrize("sm_scale", [2e-38, 1e-9, 1.0, 5, 1e3])
@pytest.mark.parametrize("base", [CONFIG, FP8_CONFIG, GROUP_CONFIG], ids=["bf16", "fp8", "group"])
def test_every_softmax_scale_of_a_right_module_is_admitted(sm_scale, base):
    bench = workbench(replace(base, sm_scale=sm_scale))
    assert bench.backend.config.sm_scale == sm_scale and not bench.state.read_flags()


def test_admission_leaves_nothing_behind():
    bench = workbench()
    assert bench.state.stats == smla.PlanStats()
    assert bench.state.serial == 0 and bench.state.captures.rows == []
    assert not bench.state.read_flags() and not bench.state.int_workspace.any()


@pytest.mark.parametrize("base", [CONFIG, FP8_CONFIG, GROUP_CONFIG], ids=["bf16", "fp8", "group"])
def test_a_model_s_default_dtype_changes_nothing(base):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        workbench(base)
    finally:
        torch.set_default_dtype(before)


def test_a_model_s_default_device_gets_nothing_of_the_host():
    runtime = smla.CpuRuntime(num_sms=NUM_SMS)
    with torch.device("meta"):
        backend = smla.SparseMLABackend(CONFIG, runtime=runtime, source=Simulated(), verify=False)
        made = [backend.engine._rows, admission._ints([1]), runtime.staging((2,), INT32)]
        made += [runtime.empty((2,), INT32), runtime.zeros((2,), INT32)]
        made.append(admission._pattern(2, 3, 1, 1))
    assert {tensor.device.type for tensor in made} == {"cpu"}
