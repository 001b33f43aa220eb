"""NUM-11: caches in which rows, elements and bytes have numbers beyond 32 bits."""

from dataclasses import replace

import torch

from conformance.core.bench import Bench
from conformance.core.case import Step
from conformance.core.inputs import StepInputs
from conformance.core.lab import Lab
from conformance.core.requirement import requirement
from conformance.core.vast import Vast, borders, places, vast
from conformance.tests.requirements import vast_write

BLOCKS = 4
"""Of a request: the three about its border, and one at the start of the cache."""


def whole_requests(lab: Lab) -> Step:
    """Return a request for each border, whose rows select every token of all its blocks."""
    geometry, draw = lab.case.geometry, lab.case.draw.fork("requests")
    count = len(borders(lab.config(Step((1,), (1,), (1,), 1))))
    length = BLOCKS * geometry.block_size
    assert length <= geometry.index_topk, "the first token would not be selected"
    q_lens = tuple(draw.randint(1, 4) for _ in range(count))
    lengths = (length,) * count
    bounds = tuple(length + draw.randint(0, 4) for _ in range(count))
    return Step(q_lens, lengths, bounds, sum(q_lens))


def gap_rows(lab: Lab) -> int:
    """Draw how many rows lie between blocks: none, some, or the blocks of other layers."""
    geometry, draw = lab.case.geometry, lab.case.draw.fork("gap")
    how, some = lab.case["how"], draw.randint(1, 71)
    if how == "interleaved":
        return draw.randint(2, 40) * geometry.block_size + draw.choice((0, some))
    return {"dense": 0, "gaps": some}[how]


def row_padding(lab: Lab) -> int:
    """Draw how many elements lie between a row's end and the next row, for subjects that can."""
    draw, unit = lab.case.draw.fork("row padding"), 16 if lab.case["dtype"] != "bf16" else 8
    units = draw.choice((0, 0, 1, draw.randint(2, 9)))
    return units * unit if "padded-rows" in lab.subject.capabilities else 0


def check_slots(lab: Lab, bench: Bench, place: Vast, step: Step, inputs: StepInputs) -> None:
    """Assert that rows' slots are those of the vast cache, where the subject shows them."""
    seen = bench.observe()
    if seen.kv_indptr is None or seen.kv_indices is None:
        return
    offsets = seen.kv_indptr.tolist()
    for row, (request, tokens) in enumerate(zip(step.row_requests, inputs.tokens, strict=True)):
        packed = seen.kv_indices[offsets[row] : offsets[row] + tokens.numel()].tolist()
        lab.expect(packed, place.slots(request, tokens).tolist(), f"packed slots of row {row}")


@requirement(
    "NUM-11",
    how=("dense", "gaps", "interleaved"),
    dtype=("bf16", "fp8", "fp8g"),
    kpe=(0, 64),
    geo=("wide", "v32"),
    width=("full",),
)
def test_caches_beyond_32_bits_are_addressed_right(lab: Lab) -> None:
    step = whole_requests(lab)
    bench = lab.bench(step, changes={"geometry": replace(lab.case.geometry, gap_rows=0)})
    draw, gap, padding = lab.case.draw.fork("places"), gap_rows(lab), row_padding(lab)
    config, world = bench.config, bench.world
    near = places(config, gap, padding)
    blocks = [draw.shuffle([*about, first]) for first, about in enumerate(near)]
    inputs = world.draw_step(step)
    writes = config.fp8 and "cache-write" in lab.subject.capabilities
    tokens = vast_write.tokens_of(lab, bench, blocks, gap, padding) if writes else None
    with vast(bench, blocks, gap, padding) as place:
        try:
            if tokens is not None:
                vast_write.write(bench, place, tokens)
            out = bench.run(step, inputs)
        except ValueError as problem:
            lab.expect(str(problem), "", f"a refusal of a cache of {tuple(place.cache.shape)}")
            raise
        check_slots(lab, bench, place, step, inputs)
        lab.no_flags(bench)
        lab.golden(bench, out, bench.golden(step, inputs))
        # The suite's own reads of such a cache, and that no other row of it has been written to.
        every = torch.arange(BLOCKS * config.geometry.block_size)
        for request in range(len(blocks)):
            far = place.gather(place.slots(request, every).to(world.device))
            here = [world.slot(request, token) for token in every.tolist()]
            own = world.paged().gather(torch.tensor(here, device=world.device))
            lab.check(
                torch.equal(far, own), f"cache of request {request}", got="changed",
                expected="as written",
            )  # fmt: skip
