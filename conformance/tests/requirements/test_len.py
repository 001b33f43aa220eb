"""LEN: contexts, valid counts, and bounds, as the plan and the device see them."""

from dataclasses import replace

from torch import Tensor

from conformance.core.bench import Bench
from conformance.core.case import Step, valid_count
from conformance.core.inputs import INT32_MAX, INT32_MIN, StepInputs
from conformance.core.lab import Lab
from conformance.core.requirement import requirement

SMALL = ("tiny", "flat", "pool", "odd", "wide")


def last_ends(bench: Bench, rows: int) -> list[int]:
    """Return where each row's attended range ends, from its work items."""
    ends = [0] * rows
    for work in bench.schedule().works():
        if work.end > work.start:
            ends[work.row] = max(ends[work.row], work.end)
    return ends


def planned_lengths(bench: Bench, rows: int) -> list[int]:
    """Return each row's planned length from the packed offsets."""
    offsets = bench.observe().need("kv_indptr")[: rows + 1]
    lengths: list[int] = (offsets[1:] - offsets[:-1]).tolist()
    return lengths


@requirement("LEN-1", geo=SMALL, lens=("mixed", "edge", "dead"), loss=("draft", "far"))
def test_a_row_sees_its_requests_tokens_up_to_its_own(lab: Lab) -> None:
    step = lab.step()
    bench = lab.bench(step)
    bench.build(step)
    contexts = bench.observe().need("contexts").tolist()
    lab.expect(contexts[: step.rows], step.contexts(), "contexts of the live rows")
    behind = contexts[step.rows :]
    lab.expect(behind, [0] * len(behind), "contexts behind the live rows")


@requirement(
    "LEN-2", geo=(*SMALL, "glm"), lens=("edge", "long", "full", "vast"), loss=("draft", "none")
)
def test_the_attended_range_ends_at_the_valid_count(lab: Lab) -> None:
    step = lab.step()
    bench = lab.bench(step)
    bench.build(step)
    lab.expect(last_ends(bench, step.rows), bench.valid(step), "end of each row's attended range")


@requirement(
    "LEN-3", how=("agree", "garbage-among", "garbage-behind"), geo=SMALL, lens=("mixed", "edge")
)
def test_host_device_and_count_agree_or_a_flag_says_so(lab: Lab) -> None:
    step = lab.step()
    bench = lab.bench(step)
    inputs = bench.world.draw_step(step)
    valid = bench.valid(step)
    if lab.case["how"] == "agree":
        bench.build(step, host_knows=False)
        lab.expect(planned_lengths(bench, step.rows), valid, "host lengths on the exact path")
        bench.run(step, inputs)
        lab.expect(last_ends(bench, step.rows), valid, "device lengths")
        seen = bench.observe()
        lab.expect(seen.need("counts")[: step.rows].tolist(), valid, "counted entries")
        lab.expect(seen.need("flags"), frozenset(), "flags")
        return
    topk, row = inputs.topk.clone(), _a_row_with_context(step)
    width = topk.shape[1]
    if lab.case["how"] == "garbage-among":
        topk[row, lab.case.draw.randint(0, valid[row])] = lab.case.draw.choice(
            (INT32_MIN, INT32_MAX, -1, 1 << 30)
        )
        out = bench.run(step, inputs, topk=topk)
        flags = bench.observe().need("flags")
        lab.expect(flags, frozenset({"count_below_formula"}), "flags")
        # The broken row's output is unspecified; no other row may change.
        _judge_rows(lab, bench, step, inputs, out, row)
        return
    row = min(range(step.rows), key=lambda row: (valid[row] == 0, valid[row]))
    if valid[row] < width:
        topk[row, valid[row]] = 0  # looks valid, stands behind the valid entries
    out = bench.run(step, inputs, topk=topk)
    expected = frozenset({"count_above_formula"} if valid[row] < width else ())
    lab.expect(bench.observe().need("flags"), expected, "flags")
    lab.golden(bench, out, bench.golden(step, inputs))


def _a_row_with_context(step: Step) -> int:
    contexts = step.contexts()
    return max(range(step.rows), key=lambda row: contexts[row])


def _judge_rows(
    lab: Lab, bench: Bench, step: Step, inputs: StepInputs, out: Tensor, broken: int
) -> None:
    """Hold all rows but `broken` against golden, by giving that one golden's own value."""
    golden = bench.golden(step, inputs)
    mended = out.double()
    mended[broken] = golden.out[broken].cpu()
    lab.golden(bench, mended, golden, "rows beside the broken one")


@requirement(
    "LEN-4", geo=SMALL, lens=("edge", "mixed"), loss=("draft", "far", "none"), heads=(16, 128)
)
def test_a_planned_length_covers_every_context_up_to_the_bound(lab: Lab) -> None:
    step = lab.step()
    bench = lab.bench(step)
    bench.build(step)
    geometry = bench.config.geometry
    largest = geometry.index_topk + geometry.index_kpool - 1
    planned = planned_lengths(bench, step.rows)
    bounds = [min(context, largest) for context in step.contexts(step.bounds)]
    uncovered = [(p, b) for p, b in zip(planned, bounds, strict=True) if not b <= p <= largest]
    lab.expect(uncovered, [], f"(planned, bound) pairs outside bound <= planned <= {largest}")
    # The device may turn out to hold any length up to the bound; the worst one is looked for.
    worst = [
        max(
            valid_count(c, geometry)
            for c in range(max(context - geometry.index_kpool, 0), context + 1)
        )
        for context in step.contexts(step.bounds)
    ]
    lab.expect(
        [max(w - p, 0) for w, p in zip(worst, planned, strict=True)], [0] * step.rows, "loss"
    )
    grown = replace(step, seq_lens=step.bounds or ())
    bench.build(grown)
    lab.expect("valid_above_plan" in bench.observe().need("flags"), False, "flag at the bound")
