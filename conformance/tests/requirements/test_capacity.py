"""PLAN-7: more rows than one of FlashInfer's schedules holds."""

from collections.abc import Sequence
from typing import Any

import torch

from conformance.core.bench import Bench, Frame
from conformance.core.case import Step, valid_count
from conformance.core.inputs import StepInputs
from conformance.core.lab import Lab
from conformance.core.requirement import requirement

CAPACITY = 16384
"""Work items of a schedule (FlashInfer 0.6.18 to 0.7.4, scheduler.cuh: max_total_num_works)."""

SAMPLES = 256
_PART = 1024  # rows looked at together
_QUERIES = 512
"""Rows whose queries are drawn; the others repeat them."""


def prompt(lab: Lab, rows: int) -> Step:
    """Return one request whose last `rows` tokens are all queries of this step, and a decode."""
    before = lab.case.draw.fork(f"before {rows}").randint(0, 40)
    return Step((1, rows - 1), (17, rows - 1 + before), (17, rows - 1 + before), rows)


def large_frames(bench: Bench, steps: Sequence[Step]) -> list[tuple[Frame, StepInputs]]:
    """Put many rows on the device: each selects its newest tokens; queries repeat, and are shared.

    Every step has as many rows as the first one, or fewer.
    """
    config, world, like = bench.config, bench.world, bench.runtime.empty
    geometry, draw = config.geometry, bench.case.draw.fork("large")
    heads, rows = config.num_heads, steps[0].rows
    repeat = torch.arange(rows, device=world.device) % _QUERIES
    q_nope = draw.bf16((_QUERIES, heads, config.head_dim_ckv), world.device)[repeat]
    q_pe = draw.bf16((_QUERIES, heads, config.head_dim_kpe), world.device)[repeat]
    frames = []
    for step in steps:
        contexts = torch.tensor(step.contexts(), dtype=torch.int64)
        counts = torch.tensor([valid_count(context, geometry) for context in contexts.tolist()])
        place = torch.arange(geometry.topk_width)
        topk = (contexts - counts)[:, None] + place
        topk = topk.masked_fill_(place >= counts[:, None], -1).to(torch.int32)
        tokens = [
            torch.arange(context - count, context)
            for context, count in zip(contexts.tolist(), counts.tolist(), strict=True)
        ]
        live = slice(0, step.rows)
        inputs = StepInputs(tokens, topk, q_nope[live], q_pe[live])
        on_device = like(tuple(topk.shape), torch.int32)
        bench.write(on_device, topk)
        out = like((step.rows, heads, config.head_dim_ckv), torch.bfloat16)
        bench.write(out, torch.full_like(out, torch.nan))
        batch = bench.own_batch(step)
        frames.append((Frame(step, batch, inputs.q_nope, inputs.q_pe, on_device, out), inputs))
    return frames


def sampled(lab: Lab, rows: int) -> list[int]:
    """Draw rows to judge, with both ends and what lies around each possible border."""
    draw = lab.case.draw.fork("samples")
    chosen = {draw.randint(0, rows) for _ in range(SAMPLES)} | {0, 1, rows - 2, rows - 1}
    for parts in (2, 3):
        border = -(-rows // parts)
        chosen |= {b + d for b in range(border, rows, border) for d in (-2, -1, 0, 1)}
    for border in range(CAPACITY, rows, CAPACITY):
        chosen |= {border - 1, border, border + 1}
    return sorted(row for row in chosen if 0 <= row < rows)


@requirement(
    "PLAN-7", how=("forced-mqa",), heads=(128, 1), dtype=("bf16", "fp8"), geo=("tiny", "wide")
)
def test_any_number_of_rows_is_served(lab: Lab) -> None:
    on_gpu = lab.tier.native is None
    lab.interpret = False  # 16384 programs of a kernel take minutes in the interpreter
    rows = 32768 if on_gpu else CAPACITY + 700 + lab.case.number
    # Two steps at once, the host ahead: no block of a plan's chunks may be written twice.
    steps = [prompt(lab, rows), prompt(lab, rows - 5)]
    # On the twin full sizes would only take longer.
    most_heads = 4 if lab.tier.full_width else 66
    changes: dict[str, Any] = (
        {} if on_gpu else {"num_heads": min(int(lab.case["heads"]), most_heads)}
    )
    if not on_gpu and changes["num_heads"] > 4:
        changes["head_dim_ckv"] = 16
    # The bench's own buffers are those of a small step; the large ones are made here.
    longest = max(step.seq_lens[1] for step in steps)
    small = Step((1, 1), (9, longest), (9, longest), 2)
    changes["max_tokens"] = rows + 8
    bench = lab.bench(small, changes=changes, clock=True)
    made = large_frames(bench, steps)
    frames = [frame for frame, _ in made]
    if on_gpu:  # once before, so that nothing is loaded or compiled while the device is held
        bench.queue(frames[0])
        bench.runtime.synchronize()
    blocked = bench.block() if bench.can_block else None
    try:
        for frame in frames:
            bench.queue(frame)
    finally:
        if blocked is not None:
            blocked.release()
    bench.runtime.synchronize()
    for frame, given in made:
        step, out = frame.step, frame.out  # stays where it is: gigabytes on a GPU
        wrong = sum(int((~part.isfinite()).sum()) for part in out.split(_PART))
        lab.expect(wrong, 0, "elements that are not finite")
        chosen = sampled(lab, step.rows)
        golden = bench.world.golden(step, given, split=None, rows=chosen)
        lab.golden(bench, bench.read(out[chosen]), golden, f"{len(chosen)} of {step.rows} rows")
    # A small step after it finds nothing left of the large one.
    few = bench.world.draw_step(small)
    lab.judged_run(bench, small, few)
