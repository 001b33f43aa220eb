"""LEN-5, LEN-6, PLAN-2: what the host knows is wrong, too low, or nothing at all."""

from dataclasses import replace

from conformance.core.case import Step, valid_count
from conformance.core.catalogue import PLAN_SLACK
from conformance.core.lab import Lab
from conformance.core.requirement import requirement
from conformance.tests.requirements.test_len import SMALL, last_ends, planned_lengths
from golden import Draw


def adaptive_step(draw: Draw, topk: int, kpool: int) -> Step:
    """Draw verification requests whose rows the device redistributed.

    The host splits the surviving budget evenly; its bounds count every draft ever proposed.
    """
    edges = (1, 70, topk - 1, topk + 1, topk + kpool, 2 * topk + 3)
    requests, even = draw.randint(2, 6), draw.randint(2, 5)
    device = [even] * requests
    while device == [even] * requests:
        device = [1] * requests
        for _ in range(requests * (even - 1)):
            device[draw.randint(0, requests)] += 1
    lengths = [max(draw.choice(edges), count) for count in device]
    bounds = [length + draw.randint(0, 8) for length in lengths]
    host = [even] * requests
    if draw.randint(0, 2):  # a request without query tokens in the middle, for host and device
        place = draw.randint(1, requests)
        for values, value in ((host, 0), (device, 0), (lengths, 40), (bounds, 40)):
            values.insert(place, value)
    bounds = [max(b, n) for b, n in zip(bounds, host, strict=True)]
    rows = sum(host)
    padded = rows + draw.randint(0, 4)
    return Step(tuple(host), tuple(lengths), tuple(bounds), padded, device_q_lens=tuple(device))


@requirement("LEN-5", geo=(*SMALL, "glm"), dtype=("bf16", "fp8"), heads=(16, 128))
def test_each_row_follows_the_devices_split(lab: Lab) -> None:
    geometry = lab.case.geometry
    step = adaptive_step(lab.case.draw.fork("split"), geometry.index_topk, geometry.index_kpool)
    bench = lab.bench(step)
    inputs = bench.world.draw_step(step)
    lab.judged_run(bench, step, inputs)
    seen = bench.observe()
    if seen.contexts is not None:  # without them outputs and ranges say which row is whose
        lab.expect(seen.contexts[: step.rows].tolist(), step.contexts(), "contexts")
    lab.no_flags(bench)
    lab.expect(last_ends(bench, step.rows), bench.valid(step), "end of each row's range")
    # The device may give any row to the longest request: every row must have room for it.
    largest = geometry.index_topk + geometry.index_kpool - 1
    bound = min(max(step.bounds or ()), largest)
    planned = planned_lengths(bench, step.rows)
    lab.check(min(planned) >= bound, "planned lengths", got=planned, expected=f">= {bound}")


@requirement(
    "LEN-6", how=("covered", "beyond"), geo=("flat", "pool", "odd", "wide"), heads=(16, 128)
)
def test_a_valid_count_above_the_plan_is_flagged(lab: Lab) -> None:
    draw, geometry = lab.case.draw.fork("low"), lab.case.geometry
    low = draw.choice((1, 2, PLAN_SLACK)) if lab.case["how"] == "covered" else PLAN_SLACK + 1
    requests = draw.randint(2, 6)
    room = geometry.index_topk + geometry.index_kpool - 1
    lengths = [draw.randint(2, geometry.index_topk + 1) for _ in range(requests)]
    victim = draw.randint(0, requests)
    lengths[victim] = draw.randint(low + 1, geometry.index_topk + 1)
    bounds = list(lengths)
    bounds[victim] = lengths[victim] - low
    step = Step((1,) * requests, tuple(lengths), tuple(bounds), requests)
    bench = lab.bench(step)
    inputs = bench.world.draw_step(step)
    out = bench.run(step, inputs)
    valid = valid_count(lengths[victim], geometry)
    planned = min(min(bounds[victim], room) + PLAN_SLACK, room)
    lab.expect(valid > planned, lab.case["how"] == "beyond", "whether the plan is too short")
    expected = frozenset({"valid_above_plan"} if valid > planned else ())
    lab.expect(bench.observe().need("flags"), expected, "flags")
    golden = bench.golden(step, inputs)
    if expected:  # the row that was cut short is reported, not right; all others are right
        out = out.double()
        out[victim] = golden.out[victim].cpu()
    lab.golden(bench, out, golden)


@requirement("PLAN-2", geo=(*SMALL, "glm"), lens=("mixed", "edge"), dtype=("bf16", "fp8"))
def test_exact_lengths_are_planned_as_they_are(lab: Lab) -> None:
    step = lab.step()
    bench = lab.bench(step)
    inputs = bench.world.draw_step(step)
    plans = bench.observe().need("plans")
    # An exact plan is never reused: the next lengths may be any others, or the same.
    shorter = tuple(max(n - 3, q) for n, q in zip(step.seq_lens, step.q_lens, strict=True))
    for again, now in enumerate((step, replace(step, seq_lens=shorter), step, step), 1):
        drawn = bench.world.draw_step(now)
        lab.judged_run(bench, now, drawn, host_knows=False)
        lab.expect(planned_lengths(bench, now.rows), bench.valid(now), "planned lengths")
        lab.expect(bench.observe().need("plans"), plans + again, "plans made")
    exact = replace(
        step, bounds=tuple(max(n, q) for n, q in zip(step.seq_lens, step.q_lens, strict=True))
    )
    lab.judged_run(bench, exact, inputs)
    lab.expect(bench.observe().need("plans"), plans + 5, "plans made once bounds are known")
