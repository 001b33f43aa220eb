"""TWIN: the simulated planner equals FlashInfer's, compiled on the CPU and read back on a GPU."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import conformance
from conformance.core.bench import Bench
from conformance.core.case import Step
from conformance.core.lab import Lab
from conformance.core.requirement import requirement
from conformance.core.schedule import FIELDS, MERGE_FIELDS, WORK_FIELDS
from conformance.core.trace import Trace, read_traces
from conformance.tests.requirements.test_len import planned_lengths
from conformance.twin import planner
from conformance.twin.compiled import compiled_planner
from conformance.twin.drawn import FLOAT_BYTES, draw_inputs
from conformance.twin.errors import CompilerMissing

INPUTS_PER_CASE = 24
BACKGROUND = 0xA5
TRACES = Path(conformance.__file__).parent / "traces"


@requirement("TWIN-1", geo=("tiny", "wide", "glm"), heads=(16, 64, 128), loss=("draft", "far"))
def test_the_planner_twin_writes_what_flashinfers_planner_writes(lab: Lab) -> None:
    if lab.tier.name == "twin":
        against_the_compiled_planner(lab)
    else:
        against_the_gpu(lab)


def against_the_compiled_planner(lab: Lab) -> None:
    try:
        real = compiled_planner()
    except CompilerMissing as missing:
        pytest.skip(str(missing))
    for given in draw_inputs(INPUTS_PER_CASE, lab.case.number):
        size = planner.layout(given.num_sms).staged_bytes
        ours = torch.full((size,), BACKGROUND, dtype=torch.uint8)
        theirs = ours.clone()
        info = planner.plan(*given.args, ours, FLOAT_BYTES)
        expected = real.plan(*given.args, theirs, FLOAT_BYTES)
        lab.expect(info, expected, f"plan-info and staged bytes of {given}")
        differing = torch.nonzero(ours != theirs).flatten().tolist()
        lab.expect(differing[:5], [], f"differing bytes of {given}")


def against_the_gpu(lab: Lab) -> None:
    first = lab.step()
    # Three steps: a plan, a reuse with other lengths, a replan after the window is left.
    reused = replace(first, seq_lens=tuple(max(n - 1, 0) for n in first.seq_lens))
    moved = replace(
        first,
        bounds=tuple(
            b + 40 * (n > 0) for b, n in zip(first.bounds or (), first.q_lens, strict=True)
        ),
    )
    bench = lab.bench(first, reused, moved)
    for number, step in enumerate((first, reused, moved)):
        bench.build(step)
        trace = observe_trace(bench, step)
        lab.expect(replayed(trace), {}, f"arrays that differ at step {number}")
        if lab.traces is not None and lab.case.number < 9 and number < 2:
            trace.write(
                lab.traces
                / f"{lab.case['geo']}-h{lab.case['heads']}-{lab.case.number}-{number}.json"
            )


@requirement("TWIN-2", how=("recorded",))
def test_recorded_schedules_replay(lab: Lab) -> None:
    traces = read_traces(TRACES)
    least = 8
    lab.check(len(traces) >= least, "recorded traces", got=len(traces), expected=f">= {least}")
    for trace in traces[lab.case.number :: least]:
        lab.expect(replayed(trace), {}, f"arrays that differ from {trace.name}")


def observe_trace(bench: Bench, step: Step) -> Trace:
    """Return the schedule as it stands on the device, with what it was made from."""
    seen = bench.observe()
    schedule = bench.schedule(seen)
    names = (*WORK_FIELDS, *MERGE_FIELDS)
    arrays = {name: schedule.array(name).tolist() for name in names}
    arrays["work_indptr"] = schedule.work_indptr.tolist()
    return Trace(
        name=bench.case.id,
        num_heads=bench.config.num_heads,
        num_sms=bench.runtime.num_sms,
        head_dim=bench.config.head_dim_ckv,
        planned=planned_lengths(bench, step.rows),
        valid=bench.valid(step),
        plan_info=seen.need("plan_info"),
        arrays=arrays,
    )


def replayed(trace: Trace) -> dict[str, object]:
    """Plan and clamp a trace's rows on the twin; return what differs, by name."""
    staging = torch.zeros(planner.layout(trace.num_sms).staged_bytes, dtype=torch.uint8)
    rows = len(trace.planned)
    offsets = torch.tensor([0, *trace.planned]).cumsum(0).tolist()
    info, _ = planner.plan(
        list(range(rows + 1)), offsets, trace.planned, trace.num_heads, trace.head_dim,
        trace.num_sms, staging, FLOAT_BYTES,
    )  # fmt: skip
    if info != trace.plan_info:
        return {"plan_info": (info, trace.plan_info)}
    words, where = staging.view(torch.int32), dict(zip(FIELDS, info, strict=True))

    def array(name: str, length: int) -> list[int]:
        start = where[name] // 4
        return words[start : start + length].tolist()

    works = trace.arrays["work_indptr"][-1]
    expected = {name: array(name, works) for name in WORK_FIELDS}
    expected |= {name: array(name, trace.num_sms) for name in MERGE_FIELDS}
    expected["work_indptr"] = array("work_indptr", where["num_blks_y"] + 1)
    valid = [trace.valid[row] for row in expected["q_indptr"]]
    ends = zip(expected["kv_start"], expected["kv_end"], valid, strict=True)
    expected["kv_end"] = [max(start, min(end, count)) for start, end, count in ends]
    lengths = zip(expected["kv_len"], valid, strict=True)
    expected["kv_len"] = [min(length, count) for length, count in lengths]
    return {
        name: (trace.arrays[name], values)
        for name, values in expected.items()
        if trace.arrays[name] != values
    }
