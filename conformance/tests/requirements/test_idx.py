"""IDX: from selected tokens to packed slots."""

from collections.abc import Callable
from dataclasses import replace

import torch

from conformance.core.bench import Bench
from conformance.core.case import Step
from conformance.core.inputs import INT32_MAX, INT32_MIN, StepInputs
from conformance.core.lab import Lab
from conformance.core.requirement import requirement
from conformance.tests.requirements.test_len import SMALL


def check_packed(lab: Lab, bench: Bench, step: Step, inputs: StepInputs) -> None:
    """Assert that each row's slots stand in order at the row's offset."""
    seen = bench.observe()
    offsets, indices = seen.need("kv_indptr").tolist(), seen.need("kv_indices")
    for row, (request, tokens) in enumerate(zip(step.row_requests, inputs.tokens, strict=True)):
        slots = [bench.world.slot(request, token) for token in tokens.tolist()]
        start = offsets[row]
        packed = indices[start : start + len(slots)].tolist()
        lab.expect(packed, slots, f"packed slots of row {row}")
    lab.expect(seen.need("counts")[: step.rows].tolist(), bench.valid(step), "counted entries")
    lab.expect(seen.need("flags"), frozenset(), "flags")


def check_shown(lab: Lab, bench: Bench, step: Step, inputs: StepInputs) -> None:
    """Like `check_packed`, where outputs alone can judge: what the subject shows is right."""
    seen = bench.observe()
    if seen.kv_indices is None or seen.counts is None or seen.flags is None:
        lab.no_flags(bench)
    else:
        check_packed(lab, bench, step, inputs)


def with_holes(lab: Lab, inputs: StepInputs, fillers: Callable[[int], list[int]]) -> torch.Tensor:
    """Spread each row's entries over the width, in order, a row's fillers between and behind."""
    draw = lab.case.draw.fork("holes")
    topk = inputs.topk.clone()
    width = topk.shape[1]
    for row, tokens in enumerate(inputs.tokens):
        choices = torch.tensor(fillers(row), dtype=torch.int32)
        places, _ = draw.permutation(width)[: tokens.numel()].sort()
        topk[row] = choices[draw.ints((width,), 0, choices.numel())]
        topk[row, places] = tokens.to(torch.int32)
    return topk


@requirement("IDX-1", geo=(*SMALL, "glm"), lens=("mixed", "edge", "short"), dtype=("bf16", "fp8"))
def test_valid_entries_are_compacted_in_order(lab: Lab) -> None:
    step = lab.step()
    bench = lab.bench(step)
    inputs = bench.world.draw_step(step)
    out = bench.run(step, inputs, topk=with_holes(lab, inputs, lambda _: [-1]))
    check_packed(lab, bench, step, inputs)
    lab.golden(bench, out, bench.golden(step, inputs))


@requirement("IDX-2", geo=(*SMALL, "glm"), lens=("mixed", "edge", "dead"), loss=("draft", "far"))
def test_ids_that_are_no_tokens_of_the_row_select_nothing(lab: Lab) -> None:
    step = lab.step()
    bench = lab.bench(step)
    inputs = bench.world.draw_step(step)
    table_end = bench.world.block_table.shape[1] * bench.config.geometry.block_size
    contexts = step.contexts()
    lengths = [step.seq_lens[request] for request in step.row_requests]

    def fillers(row: int) -> list[int]:
        # 'Foreign' ids are positions that this row does not see yet, though a later row of its
        # request or another request may, or that no table covers.
        foreign = [contexts[row], contexts[row] + 1, lengths[row] - 1, max(contexts), max(lengths)]
        foreign += [table_end - 1, table_end, table_end + 1, 1 << 30, 0x7F7F7F7F, INT32_MAX]
        return [-1, INT32_MIN, INT32_MIN + 1, *(id for id in foreign if id >= contexts[row])]

    out = bench.run(step, inputs, topk=with_holes(lab, inputs, fillers))
    check_shown(lab, bench, step, inputs)
    lab.golden(bench, out, bench.golden(step, inputs))


@requirement("IDX-5", geo=SMALL, lens=("short", "mixed", "dead"), loss=("far", "draft"))
def test_no_negative_stands_inside_a_planned_row(lab: Lab) -> None:
    step = lab.step()
    bench = lab.bench(step)
    inputs = bench.world.draw_step(step)
    lab.judged_run(bench, step, inputs)
    seen = bench.observe()
    offsets, indices = seen.need("kv_indptr").tolist(), seen.need("kv_indices")
    valid = bench.valid(step)
    for row, request in enumerate(step.row_requests):
        planned = indices[offsets[row] : offsets[row + 1]].tolist()
        lab.expect([slot for slot in planned if slot < 0], [], f"negatives planned for row {row}")
        own = {bench.world.slot(request, token) for token in inputs.tokens[row].tolist()}
        strange = {slot for slot in planned[valid[row] :] if own and slot not in own}
        lab.expect(strange, set(), f"slots behind row {row}'s valid ones that are not its own")


@requirement(
    "IDX-3", how=("unused", "used"), geo=("flat", "odd", "pool", "wide"), lens=("mixed", "long")
)
def test_block_numbers_outside_of_the_cache_select_nothing(lab: Lab) -> None:
    step = lab.step()
    bench = lab.bench(step)
    inputs = bench.world.draw_step(step)
    draw, table = lab.case.draw.fork("table"), bench.world.block_table.clone()
    blocks, size = bench.world.num_blocks, bench.config.geometry.block_size
    strange = (-1, INT32_MIN, INT32_MAX, blocks, blocks + 1, 1 << 24)
    used = {
        (request, token // size)
        for request, tokens in zip(step.row_requests, inputs.tokens, strict=True)
        for token in tokens.tolist()
    }
    for request in range(table.shape[0]):
        for block in range(table.shape[1]):
            if (request, block) not in used:
                table[request, block] = draw.choice(strange)
    victim = -1
    if lab.case["how"] == "used":
        victim, block = draw.choice(sorted(used))
        table[victim, block] = draw.choice(strange)
    bench.set_table(table)
    out = bench.run(step, inputs)
    golden = bench.golden(step, inputs)
    expected = frozenset({"count_below_formula"} if victim >= 0 else ())
    seen = bench.observe()
    if seen.flags is not None:
        lab.expect(seen.flags, expected, "flags")
    spared = [row for row, request in enumerate(step.row_requests) if request != victim]
    if spared:  # the victim's rows are unspecified, but memory-safe
        mended = out.double()
        broken = [row for row in range(step.rows) if row not in spared]
        mended[broken] = golden.out[broken].cpu()
        lab.golden(bench, mended, golden)
    if seen.kv_indices is not None:
        rows = blocks * bench.world.stride_rows
        wild = seen.kv_indices[(seen.kv_indices < 0) | (seen.kv_indices >= rows)].tolist()
        lab.expect(wild, [], "packed slots outside of the cache")
    if lab.tier.log is not None:
        lab.expect(lab.tier.log.foreign_slots(), [], "touches outside of the cache")


@requirement(
    "IDX-4",
    how=("near", "interleaved"),
    geo=("flat", "wide"),
    lens=("mixed", "long", "edge"),
    dtype=("bf16", "fp8"),
    kpe=(0, 64),
)
def test_strided_blocks_are_served_and_gaps_are_foreign(lab: Lab) -> None:
    step, geometry = lab.step(), lab.case.geometry
    if lab.case["how"] == "interleaved":  # blocks of other layers stand between those of one
        layers = lab.case.draw.fork("layers").randint(3, 40)
        geometry = replace(geometry, gap_rows=layers * geometry.block_size + geometry.gap_rows)
    bench = lab.bench(step, changes={"geometry": geometry})
    inputs = bench.world.draw_step(step)
    size, stride = bench.config.geometry.block_size, bench.world.stride_rows
    lab.check(stride > size, "block stride", got=stride, expected=f"above {size}")
    foreign = [
        slot
        for block in range(bench.world.num_blocks)
        for slot in range(block * stride + size, (block + 1) * stride)
    ]
    bench.set_cache(bench.world.poisoned(foreign, "nan"))
    try:
        out = bench.run(step, inputs)
    except ValueError as problem:
        lab.expect(str(problem), "", f"a refusal of blocks that start {stride} rows apart")
        raise
    check_shown(lab, bench, step, inputs)
    lab.golden(bench, out, bench.golden(step, inputs))


@requirement("IDX-6", geo=SMALL, lens=("mixed", "short"), loss=("draft", "far"))
def test_pack_writes_its_rows_planned_entries_and_nothing_else(lab: Lab) -> None:
    small = lab.step()
    # A larger step first, so that room behind the small one's entries holds known values.
    large = Step((1,) * 24, (300,) * 24, (300,) * 24, 24)
    bench = lab.bench(small, large)
    bench.run(large, bench.world.draw_step(large, "large"))
    before = bench.observe().need("kv_indices")
    inputs = bench.world.draw_step(small)
    lab.judged_run(bench, small, inputs)
    seen = bench.observe()
    total = int(seen.need("kv_indptr")[small.rows])
    behind = torch.nonzero(seen.need("kv_indices")[total:] != before[total:]).flatten()
    lab.expect((behind + total).tolist()[:5], [], "entries changed behind the planned ones")
    check_packed(lab, bench, small, inputs)
