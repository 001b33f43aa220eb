"""GRAPH: a captured forward follows every later plan, and nothing else."""

import itertools
from dataclasses import replace
from typing import Any

import torch

from conformance.core.bench import Bench
from conformance.core.case import Step
from conformance.core.inputs import StepInputs
from conformance.core.lab import Lab
from conformance.core.requirement import requirement
from conformance.core.subject import Unobservable
from conformance.tests.requirements.test_len import SMALL


def capture(lab: Lab, bench: Bench, metadata: Any, rows: int) -> Any:
    """Capture a forward over the first `rows` rows of the bench's buffers."""
    if "capture" not in lab.subject.capabilities:
        raise Unobservable("capability capture")
    with bench.runtime.capture() as graph:
        bench.forward(metadata, rows)
    return graph


def replay(
    lab: Lab, bench: Bench, graph: Any, step: Step, inputs: StepInputs, what: str
) -> torch.Tensor:
    """Replay a graph for a step that has been built; hold its rows against golden, return them."""
    bench.clear_output()
    bench.load(inputs)
    graph.replay()
    out = bench.output()
    lab.golden(bench, out[: step.rows], bench.golden(step, inputs), what)
    behind = int(bench.written(out)[step.rows :].sum())
    lab.expect(behind, 0, f"elements written behind the live rows by {what}")
    return out[: step.rows]


def decodes(lab: Lab, rows: int, padded: int, label: str, *, near: int | None = None) -> Step:
    """Draw a step of `rows` one-token requests. near: bounds within a plan's window of this."""
    draw, geometry = lab.case.draw.fork(label), lab.case.geometry
    longest = 2 * geometry.index_topk + geometry.index_kpool
    lengths = tuple(draw.randint(1, near if near else longest) for _ in range(rows))
    bounds = (near,) * rows if near else tuple(n + draw.randint(0, 9) for n in lengths)
    return Step((1,) * rows, lengths, bounds, padded)


@requirement("GRAPH-1", geo=(*SMALL, "glm"), dtype=("bf16", "fp8"), kpe=(0, 64), heads=(16, 128))
def test_a_replay_equals_the_eager_forward_bit_by_bit(lab: Lab) -> None:
    step = lab.step()
    bench = lab.bench(step, clock=True)
    inputs = bench.world.draw_step(step)
    eager = lab.judged_run(bench, step, inputs)
    metadata = bench.build(step)
    graph = capture(lab, bench, metadata, step.padded_rows)
    for number in (1, 2):
        out = replay(lab, bench, graph, step, inputs, f"replay {number}")
        same = torch.equal(out.view(torch.int16), eager.view(torch.int16))
        lab.check(same, f"bits of replay {number}", got="others", expected="the eager forward's")


@requirement(
    "GRAPH-2", geo=("flat", "pool", "odd", "wide"), dtype=("bf16", "fp8"), heads=(16, 65, 128)
)
def test_one_capture_serves_replans_and_reuses(lab: Lab) -> None:
    draw = lab.case.draw.fork("replays")
    rows = draw.randint(2, 9)
    low, high = 20, 3 * lab.case.geometry.index_topk
    steps = [
        decodes(lab, rows, rows, f"step {i}", near=near)
        for i, near in enumerate((low, low + 5, high, high, low, low + 30))
    ]
    bench = lab.bench(*steps, clock=True)
    graph, plans = None, []
    for number, step in enumerate(steps):
        metadata = bench.build(step)
        graph = graph or capture(lab, bench, metadata, rows)
        inputs = bench.world.draw_step(step, label=str(number))
        replay(lab, bench, graph, step, inputs, f"replay {number}")
        plans.append(bench.observe().need("plans"))
    made = [after > before for before, after in itertools.pairwise(plans)]
    lab.check(True in made and False in made, "plans and reuses", got=made, expected="both")


def rows_of(lab: Lab, padded: int) -> list[int]:
    """Draw live row counts on both sides of half of `padded`, its edges among them."""
    draw = lab.case.draw.fork("rows")
    counts = [1, padded, padded // 2, padded // 2 + 1, draw.randint(1, padded + 1)]
    return list(draw.shuffle(counts))


@requirement(
    "GRAPH-3",
    heads=(65, 128, 100, 16),
    geo=("tiny", "flat", "wide"),
    rows=("few", "many"),
    dtype=("bf16", "fp8"),
)
def test_a_padded_capture_serves_every_number_of_live_rows(lab: Lab) -> None:
    padded = lab.case.draw.fork("padded").randint(6, 20 if lab.case["rows"] == "few" else 60)
    counts = rows_of(lab, padded)
    steps = [decodes(lab, rows, padded, f"{i}") for i, rows in enumerate(counts)]
    bench = lab.bench(*steps, clock=True)
    graph = None
    for number, step in enumerate(steps):
        metadata = bench.build(step)
        graph = graph or capture(lab, bench, metadata, padded)
        inputs = bench.world.draw_step(step, label=str(number))
        what = f"replay {number}, captured at {counts[0]} of {padded} rows, {step.rows} live"
        replay(lab, bench, graph, step, inputs, what)


@requirement("PLAN-6", heads=(65, 128, 100, 16), geo=("tiny", "flat", "wide"), how=("", "exact"))
def test_no_plan_changes_what_a_captured_graph_launches(lab: Lab) -> None:
    padded = lab.case.draw.fork("padded").randint(6, 60)
    steps = [decodes(lab, rows, padded, f"{i}") for i, rows in enumerate(rows_of(lab, padded))]
    bench = lab.bench(*steps, clock=True)
    capture(lab, bench, bench.build(steps[0]), padded)
    info = bench.observe().need("plan_info")
    for step in steps[1:]:
        bench.build(step, host_knows=lab.case["how"] != "exact")
        got = bench.observe().need("plan_info")
        lab.expect(got, info, f"plan-info at {step.rows} of {padded} rows")


@requirement("GRAPH-4", geo=SMALL, dtype=("bf16", "fp8"), heads=(16, 128))
def test_several_graphs_share_one_state(lab: Lab) -> None:
    draw = lab.case.draw.fork("graphs")
    sizes = [draw.randint(1, 5), draw.randint(6, 12), draw.randint(13, 30)]
    steps = [decodes(lab, draw.randint(1, size + 1), size, f"{size}") for size in sizes]
    turns = []
    for number in range(6):
        chosen = draw.randint(0, len(sizes))
        live = draw.randint(1, sizes[chosen] + 1)
        turns.append((chosen, decodes(lab, live, sizes[chosen], f"turn {number}")))
    bench = lab.bench(*steps, *(step for _, step in turns), clock=True)
    graphs = [capture(lab, bench, bench.build(step), step.padded_rows) for step in steps]
    for number, (chosen, step) in enumerate(turns):
        bench.build(step)
        inputs = bench.world.draw_step(step, label=str(number))
        replay(lab, bench, graphs[chosen], step, inputs, f"graph of {sizes[chosen]} rows")
    lab.no_flags(bench)


@requirement("GRAPH-5", geo=("wide",), dtype=("bf16", "fp8"), heads=(1, 16))
def test_a_replay_follows_rows_that_leave_for_dense_attention_and_return(lab: Lab) -> None:
    draw, topk = lab.case.draw.fork("routes"), lab.case.geometry.index_topk
    queries = draw.randint(129, 140)
    lengths = tuple(draw.randint(1, 2 * topk) for _ in range(draw.randint(1, 5)))
    q_lens, rows = (*(1 for _ in lengths), queries), len(lengths) + queries
    steps = []
    for prefill in (topk + 9, topk - 3, topk + 1, topk, 2 * topk):
        all_lengths = (*lengths, prefill)
        steps.append(Step(q_lens, all_lengths, all_lengths, rows + 3))
    bench = lab.bench(*steps, clock=True)
    graph = None
    for number, step in enumerate(steps):
        metadata = bench.build(step)
        routed = "mha" in lab.subject.capabilities and step.seq_lens[-1] <= topk
        lab.expect(metadata.num_rows, len(lengths) if routed else rows, "rows to compute")
        graph = graph or capture(lab, bench, metadata, step.padded_rows)
        inputs = bench.world.draw_step(step, label=str(number))
        bench.clear_output()
        bench.load(inputs)
        graph.replay()
        out, live = bench.output(), metadata.num_rows
        golden = bench.golden(step, inputs, rows=range(live))
        lab.golden(bench, out[:live], golden, f"replay {number}")
        lab.expect(int(bench.written(out)[live:].sum()), 0, "elements written behind those rows")


@requirement("GRAPH-6", how=("lengths", "selection", "queries", "table", "nothing"), geo=SMALL)
def test_what_changes_before_a_replay_changes_its_output(lab: Lab) -> None:
    how, draw = lab.case["how"], lab.case.draw.fork("control")
    rows, far = draw.randint(2, 7), 2 * lab.case.geometry.index_topk
    step = replace(decodes(lab, rows, rows, "first", near=far), seq_lens=(far,) * rows)
    other = replace(step, seq_lens=(max(far // 3, 1),) * rows)
    bench = lab.bench(step, other, clock=True)
    inputs = bench.world.draw_step(step)
    graph = capture(lab, bench, bench.build(step), rows)
    before = replay(lab, bench, graph, step, inputs, "the first replay")
    if how == "lengths":
        step, inputs = other, bench.world.draw_step(other)
        bench.build(step)
    elif how == "selection":
        inputs = replace(inputs, topk=inputs.topk.roll(1, 0), tokens=roll(inputs.tokens))
    elif how == "queries":
        inputs = bench.world.draw_step(step, label="other queries")
        inputs = replace(inputs, q_nope=inputs.q_nope + 1)
    elif how == "table":
        bench.world.block_table = bench.world.block_table.roll(1, 0)
        bench.set_table(bench.world.block_table)
        bench.build(step)
    after = replay(lab, bench, graph, step, inputs, f"the replay after {how} changed")
    same = torch.equal(before, after)
    lab.expect(same, how == "nothing", "that the output stayed the same")


@requirement("GRAPH-7", geo=SMALL, dtype=("bf16", "fp8"), heads=(16, 128))
def test_a_replay_for_too_many_rows_is_flagged_and_harms_nothing(lab: Lab) -> None:
    draw = lab.case.draw.fork("too many")
    size = draw.randint(1, 9)
    small = decodes(lab, draw.randint(1, size + 1), size, "small")
    live = size + draw.randint(1, 9)
    large = decodes(lab, live, live, "large", near=20)
    again = decodes(lab, live, live, "again", near=20 - draw.randint(0, 5))
    bench = lab.bench(small, large, again, clock=True)
    graph = capture(lab, bench, bench.build(small), size)
    bench.build(large)
    bench.clear_output()
    bench.load(bench.world.draw_step(large))
    what = f"a replay of {size} rows for {live} live ones"
    try:
        graph.replay()
        written = bench.written(bench.output())
    except Exception as problem:  # the twin knows where a tensor ends
        lab.check(False, what, got=str(problem), expected="no access behind its tensors")
    lab.expect(int(written[size:].sum()), 0, f"elements written by {what} behind its own")
    lab.expect(int(written[:size].sum()), 0, f"elements of its own written by {what}")
    lab.expect(sorted(bench.observe().need("flags")), ["rows_beyond_forward"], f"flags of {what}")
    # Within the window of the same plan: nothing is copied to the device anew.
    inputs = bench.world.draw_step(again, label="again")
    bench.clear_output()
    metadata = bench.build(again)
    bench.load(inputs)
    bench.forward(metadata, live)
    lab.golden(bench, bench.output(live), bench.golden(again, inputs), "the step after it")


def roll(tokens: list[torch.Tensor]) -> list[torch.Tensor]:
    """Give each row the selection of the row before it."""
    return [tokens[-1], *tokens[:-1]]


@requirement(
    "PLAN-12", how=("addresses", "table", "width", "capture-large"), geo=SMALL, heads=(16, 128)
)
def test_no_address_that_a_graph_reads_changes_unnoticed(lab: Lab) -> None:
    how, draw = lab.case["how"], lab.case.draw.fork("addresses")
    rows = draw.randint(2, 8)
    step = decodes(lab, rows, rows, "first")
    if how == "capture-large":
        capture_of_too_many_rows_is_refused(lab, step)
        return
    if how == "width":
        a_table_that_grows_is_refused_or_followed(lab, rows)
        return
    far = tuple(bound + 70 for bound in step.bounds or ())
    bench = lab.bench(step, clock=True)
    inputs = bench.world.draw_step(step)
    graph = capture(lab, bench, bench.build(step), rows)
    if how == "addresses":
        first = bench.observe().need("addresses")
        idle = Step((0,) * rows, step.seq_lens, step.bounds, rows)
        for other in (replace(step, bounds=far), step, idle, step):
            bench.build(other)
            lab.expect(bench.observe().need("addresses"), first, "addresses of buffers")
        bench.build(step, host_knows=False)
        lab.expect(bench.observe().need("addresses"), first, "addresses of buffers, exact lengths")
        return
    # The table moves: the captured forward must not go on reading the old one.
    batch = bench.batch(step)
    moved = bench.runtime.empty(tuple(batch.block_table.shape), torch.int32)
    bench.write(moved, bench.world.block_table)
    bench.set_table(torch.zeros_like(bench.world.block_table))
    try:
        bench.instance.build(replace(batch, block_table=moved))
    except Exception as problem:  # any class: the subject's own
        named = "block_table" in str(problem)
        lab.check(named, "the refusal", got=str(problem), expected="one that names block_table")
        bench.set_table(bench.world.block_table)
        bench.build(step)
    replay(lab, bench, graph, step, inputs, "the replay after the block table moved")


def a_table_that_grows_is_refused_or_followed(lab: Lab, rows: int) -> None:
    """Capture over one column of a table; build over all of it, at the same address."""
    short = Step((1,) * rows, (9,) * rows, (9,) * rows, rows)
    long = Step((1,) * rows, (150,) * rows, (150,) * rows, rows)
    bench = lab.bench(short, long, clock=True)
    batch = bench.batch(short)
    narrow = replace(batch, block_table=batch.block_table[:, :1])
    graph = capture(lab, bench, bench.instance.build(narrow), rows)
    try:
        bench.build(long)
    except Exception as problem:  # any class: the subject's own
        named = "block_table" in str(problem)
        lab.check(named, "the refusal", got=str(problem), expected="one that names block_table")
        return
    inputs = bench.world.draw_step(long)
    replay(lab, bench, graph, long, inputs, "the replay after the block table grew")


def capture_of_too_many_rows_is_refused(lab: Lab, step: Step) -> None:
    """A graph runs one schedule; a capture that might need two must be refused, with the number."""
    rows = 16384 + lab.case.draw.fork("rows").randint(1, 99)
    step = replace(step, padded_rows=rows)
    bench = lab.bench(step, changes={} if lab.tier.full_width else {"head_dim_ckv": 16})
    metadata, refused = bench.build(step), ""
    try:
        capture(lab, bench, metadata, rows)
    except Exception as problem:  # any class: the subject's own
        refused = str(problem)
    named = str(rows) in refused and "16384" in refused
    lab.check(named, f"a capture of {rows} rows", got=refused, expected="a refusal naming both")
