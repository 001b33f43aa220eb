"""DRAFT: speculative decoding on one plan state, a few steps at a time.

Where the device can be held, the host queues every step before the device has begun the first, as
an engine that schedules asynchronously does; outputs are read at the end.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from conformance.core.bench import Bench, Frame
from conformance.core.case import Step
from conformance.core.catalogue import PLAN_SLACK
from conformance.core.inputs import StepInputs
from conformance.core.lab import Lab
from conformance.core.requirement import requirement
from conformance.tests.requirements.test_len import planned_lengths
from golden import Draw, Golden

GEOMETRIES = ("flat", "pool", "odd", "wide")


def judge_queued(lab: Lab, bench: Bench, frames: Sequence[Frame], golden: Sequence[Golden]) -> None:
    """Queue frames behind a held device, then hold each one's rows against golden."""
    with bench.held():
        for frame in frames:
            bench.queue(frame)
    for number, (frame, exact) in enumerate(zip(frames, golden, strict=True)):
        out = bench.read(frame.out)
        lab.golden(bench, out[: frame.step.rows], exact, f"step {number} of {len(frames)}")
        behind = int(bench.written(out)[frame.step.rows :].sum())
        lab.expect(behind, 0, f"elements written behind the live rows by step {number}")
    lab.no_flags(bench)


def exact_answers(
    bench: Bench, steps: Sequence[Step], inputs: Sequence[StepInputs]
) -> list[Golden]:
    """Return golden's answers; the schedules will be gone, so for splits that are not known."""
    pairs = zip(steps, inputs, strict=True)
    return [bench.world.golden(step, given, split=None) for step, given in pairs]


def drawn(bench: Bench, steps: Sequence[Step]) -> list[StepInputs]:
    """Draw each step's queries and selections."""
    return [bench.world.draw_step(step, label=str(i)) for i, step in enumerate(steps)]


@requirement(
    "DRAFT-1", how=("1", "3", "5", "7"), geo=GEOMETRIES, dtype=("bf16", "fp8"), heads=(16, 128)
)
def test_draft_steps_share_one_state(lab: Lab) -> None:
    drafts, draw = int(lab.case["how"]), lab.case.draw.fork("drafts")
    requests, topk = draw.randint(1, 5), lab.case.geometry.index_topk
    lengths = [draw.choice((2, topk - 2, topk + 1, 2 * topk)) + drafts for _ in range(requests)]
    # The target's step first, which verifies the drafts of the last round; then the new ones.
    counts = [drafts + 1] + [1] * drafts
    steps = []
    for number, count in enumerate(counts):
        now = tuple(length + number for length in lengths)
        bounds = tuple(length + draw.randint(0, drafts + 1) for length in now)
        padded = count * requests + draw.randint(0, 3)
        steps.append(Step((count,) * requests, now, bounds, padded))
    lab.load_kernels(*steps)
    bench = lab.bench(*steps, clock=True)
    inputs = drawn(bench, steps)
    frames = [bench.frame(step, given) for step, given in zip(steps, inputs, strict=True)]
    # One pair of buffers for all steps, as in a draft loop: they are moved on by queued work.
    shared = bench.own_batch(steps[0])
    bench.write(shared.seq_lens, torch.full((requests,), 1, dtype=torch.int32))
    bench.write(shared.query_start_loc, torch.arange(requests + 1, dtype=torch.int32))
    golden = exact_answers(bench, steps, inputs)
    with bench.held():
        for frame in frames:
            bench.later(shared.seq_lens.copy_, frame.batch.seq_lens)
            bench.later(shared.query_start_loc.copy_, frame.batch.query_start_loc)
            moved = replace(frame.batch, query_start_loc=shared.query_start_loc)
            moved = replace(moved, seq_lens=shared.seq_lens)
            bench.queue(replace(frame, batch=moved))
    for number, (frame, exact) in enumerate(zip(frames, golden, strict=True)):
        out = bench.read(frame.out[: frame.step.rows])
        lab.golden(bench, out, exact, f"step {number} of a loop of {drafts} drafts")
    lab.no_flags(bench)


def composition(draw: Draw, total: int, parts: int) -> list[int]:
    """Draw `parts` counts of at least 1 that sum to `total`."""
    counts = [1] * parts
    for _ in range(total - parts):
        counts[draw.randint(0, parts)] += 1
    return counts


@requirement(
    "DRAFT-2",
    how=("none", "all", "drawn"),
    geo=GEOMETRIES,
    lens=("short", "long"),
    dtype=("bf16", "fp8"),
    heads=(16, 128),
)
def test_any_pattern_of_accepted_drafts(lab: Lab) -> None:
    how, draw, geometry = lab.case["how"], lab.case.draw.fork("accepted"), lab.case.geometry
    requests = draw.randint(2, 5)
    rows = draw.randint(requests + 1, 4 * requests)
    start = 2 if lab.case["lens"] == "short" else geometry.index_topk + geometry.index_kpool
    committed = [start + draw.randint(0, 4) for _ in range(requests)]
    hoped = list(committed)  # what the host believes: every draft so far was accepted
    steps = []
    for _ in range(5):
        # As many rows each time, so that plans are reused, but other ones.
        counts = composition(draw, rows, requests)
        lengths = [done + count for done, count in zip(committed, counts, strict=True)]
        bounds = [done + count for done, count in zip(hoped, counts, strict=True)]
        padded = rows + draw.randint(0, 2)
        steps.append(Step(tuple(counts), tuple(lengths), tuple(bounds), padded))
        known = list(committed)  # one step late the host learns what became of the last drafts
        for i, count in enumerate(counts):
            accepted = {"none": 0, "all": count - 1}.get(how, draw.randint(0, count))
            committed[i] += accepted + 1
            hoped[i] = known[i] + count
    # Only those bounds that a late host can have: never below the truth.
    for step in steps:
        assert all(b >= n for b, n in zip(step.bounds or (), step.seq_lens, strict=True))
    lab.load_kernels(*steps)
    bench = lab.bench(*steps, clock=True)
    inputs = drawn(bench, steps)
    golden = exact_answers(bench, steps, inputs)
    frames = [bench.frame(step, given) for step, given in zip(steps, inputs, strict=True)]
    judge_queued(lab, bench, frames, golden)


@requirement(
    "DRAFT-3", geo=GEOMETRIES, dtype=("bf16", "fp8"), heads=(16, 128), lens=("short", "edge")
)
def test_splits_move_from_step_to_step(lab: Lab) -> None:
    draw, topk = lab.case.draw.fork("splits"), lab.case.geometry.index_topk
    requests, even = draw.randint(2, 5), draw.randint(2, 5)
    edges = (20, 30) if lab.case["lens"] == "short" else (20, topk - 1, topk + 3)
    longest = draw.randint(0, requests)
    steps = []
    for number in range(5):
        # The longest request changes place, and its bound leaves the window now and then.
        lengths = [draw.randint(even * requests, even * requests + 4) for _ in range(requests)]
        longest = (longest + draw.randint(1, requests)) % requests
        lengths[longest] = even * requests + draw.choice(edges) + 20 * (number % 2)
        bounds = [length + draw.randint(0, even + 1) for length in lengths]
        padded = even * requests + draw.randint(0, 2)
        device = tuple(composition(draw, even * requests, requests))
        host = (even,) * requests
        steps.append(Step(host, tuple(lengths), tuple(bounds), padded, device_q_lens=device))
    lab.load_kernels(*steps)
    bench = lab.bench(*steps, clock=True)
    inputs = drawn(bench, steps)
    golden = exact_answers(bench, steps, inputs)
    frames = [bench.frame(step, given) for step, given in zip(steps, inputs, strict=True)]
    judge_queued(lab, bench, frames, golden)


def other_blocks(draw: Draw, table: Tensor, request: int) -> Tensor:
    """Return the table with one request's blocks and another's exchanged, in another order."""
    moved = table.clone()
    other = (request + 1 + draw.randint(0, table.shape[0] - 1)) % table.shape[0]
    both = torch.cat([table[request], table[other]])
    mixed = both[draw.permutation(both.numel())]
    moved[request], moved[other] = mixed[: table.shape[1]], mixed[table.shape[1] :]
    return moved


@requirement("DRAFT-4", geo=GEOMETRIES, dtype=("bf16", "fp8"), heads=(16, 128))
def test_a_preempted_request_resumes_with_other_blocks(lab: Lab) -> None:
    draw, topk = lab.case.draw.fork("preempted"), lab.case.geometry.index_topk
    requests = draw.randint(3, 6)
    victim, waiting = draw.permutation(requests)[:2].tolist()
    lengths = [draw.choice((30, topk, topk + 5, 2 * topk)) + i for i in range(requests)]

    def step(now: dict[int, int], grown: int) -> Step:
        counts = [now.get(i, 1) for i in range(requests)]
        held = [length + grown for length in lengths]
        rows = sum(counts)
        return Step(
            tuple(counts), tuple(held), tuple(n + 2 for n in held), rows + draw.randint(0, 2)
        )

    steps = [
        step({waiting: 0}, 0),
        step({victim: 0}, 1),  # preempted; the one that waited takes its row
        step({victim: 0}, 2),
        step({victim: draw.randint(5, 20)}, 3),  # resumed: what was dropped is computed again
        step({}, 4),
        step({waiting: 0}, 5),
    ]
    lab.load_kernels(*steps)
    bench = lab.bench(*steps, clock=True)
    inputs = drawn(bench, steps)
    tables = [bench.world.block_table] * 2
    resumed = other_blocks(draw, tables[0], victim)
    tables += [other_blocks(draw, tables[0], waiting), resumed, resumed, resumed]
    frames, golden = [], []
    for now, given, table in zip(steps, inputs, tables, strict=True):
        bench.world.block_table = table
        golden.append(bench.world.golden(now, given, split=None))
        frames.append(bench.frame(now, given, table))
    judge_queued(lab, bench, frames, golden)


@requirement("DRAFT-5", how=("one", "drafts"), geo=GEOMETRIES, heads=(16, 128))
def test_growing_steps_are_planned_exactly_when_the_window_is_left(lab: Lab) -> None:
    draw, geometry = lab.case.draw.fork("growth"), lab.case.geometry
    most = geometry.index_topk + geometry.index_kpool - 1
    requests, each = draw.randint(1, 4), 1 if lab.case["how"] == "one" else draw.randint(2, 5)
    bounds = [each + draw.randint(0, 6) for _ in range(requests)]
    steps: list[Step] = []
    while len(steps) < 2 * PLAN_SLACK + 8 and min(bounds) < most + 2 * each:
        lengths = tuple(max(each, bound - draw.randint(0, each)) for bound in bounds)
        steps.append(Step((each,) * requests, lengths, tuple(bounds), each * requests))
        grown = 1 if each == 1 else None
        bounds = [bound + (grown or draw.randint(1, each + 1)) for bound in bounds]
    bench = lab.bench(*steps)
    plans, planned = bench.observe().need("plans"), [0] * (each * requests)
    for number, step in enumerate(steps):
        rows = [min(context, most) for context in step.contexts(step.bounds)]
        if not all(r <= p <= r + PLAN_SLACK for r, p in zip(rows, planned, strict=True)):
            planned = [min(r + PLAN_SLACK, most) for r in rows]
            plans += 1
        bench.build(step)
        lab.expect(bench.observe().need("plans"), plans, f"plans made by step {number}")
        lab.expect(planned_lengths(bench, step.rows), planned, f"planned lengths at step {number}")
    last = steps[-1]
    lab.judged_run(bench, last, bench.world.draw_step(last))
