"""The planner twin equals FlashInfer's MLAPlan, compiled from the installed headers."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch

from conformance.twin import planner
from conformance.twin.compiled import CompiledPlanner, compiled_planner
from conformance.twin.drawn import CLASSES, FLOAT_BYTES, PlanInput, classes, draw_inputs
from conformance.twin.errors import CompilerMissing, NativeError, TwinDomainError

INPUTS = 600
SEED = 1
LEAST_PER_CLASS = 12
STAGING_BYTES = 1 << 20
BACKGROUND = 0xA5  # what unwritten bytes must keep


@pytest.fixture(scope="module")
def native() -> CompiledPlanner:
    try:
        return compiled_planner()
    except CompilerMissing as reason:
        pytest.skip(str(reason))


def staging() -> torch.Tensor:
    return torch.full((STAGING_BYTES,), BACKGROUND, dtype=torch.uint8)


def differences(given: PlanInput, native: CompiledPlanner) -> list[str]:
    ours, theirs = staging(), staging()
    expected = native.plan(*given.args, theirs, FLOAT_BYTES)
    got = planner.plan(*given.args, ours, FLOAT_BYTES)
    found = [] if got == expected else [f"plan-info and bytes: got {got}, expected {expected}"]
    wrong = (ours != theirs).nonzero().flatten()
    if len(wrong):
        found.append(f"{len(wrong)} bytes differ, the first at {int(wrong[0])}")
    return found


def test_every_byte_equals_the_compiled_planner(native: CompiledPlanner) -> None:
    for number, given in enumerate(draw_inputs(INPUTS, SEED)):
        found = differences(given, native)
        assert not found, f"input {number} of seed {SEED}: {'; '.join(found)}: {given}"


def test_drawn_inputs_reach_every_class() -> None:
    counts: Counter[str] = Counter()
    for given in draw_inputs(INPUTS, SEED):
        target = staging()
        info, _ = planner.plan(*given.args, target, FLOAT_BYTES)
        counts.update(classes(given, info, target))
    short = {name: counts[name] for name in CLASSES if counts[name] < LEAST_PER_CLASS}
    assert not short, f"classes below {LEAST_PER_CLASS} of {INPUTS}: {short}, all: {counts}"


def test_drawn_inputs_repeat_and_seeds_differ() -> None:
    assert draw_inputs(20, 7) == draw_inputs(20, 7) != draw_inputs(20, 8)


@pytest.mark.parametrize("num_heads", range(1, 129))
def test_every_head_count_equals_the_compiled_planner(
    native: CompiledPlanner, num_heads: int
) -> None:
    source = random.Random(num_heads)
    lengths = [source.randint(0, 400) for _ in range(9)]
    given = PlanInput(
        tuple(range(10)), (0, *(400 * i for i in range(1, 10))), tuple(lengths), num_heads, 512, 132
    )
    assert not differences(given, native)


@pytest.mark.parametrize("num_sms", [1, 2, 3, 4, 5, 7, 8, 9, 131, 132, 133])
def test_small_and_odd_devices_equal_the_compiled_planner(
    native: CompiledPlanner, num_sms: int
) -> None:
    given = PlanInput((0, 1, 2, 3), (0, 500, 900, 901), (500, 400, 1), 64, 512, num_sms)
    assert not differences(given, native)


def test_layout_is_the_measured_one() -> None:
    where = planner.layout(132)
    assert where.staged_bytes == 592464
    assert list(where.offsets) == list(planner.INFO_FIELDS[2:16])


def test_tensors_and_sequences_plan_alike() -> None:
    given = draw_inputs(4, 3)[3]
    first, second = staging(), staging()
    starts, kv_starts, lengths = (torch.tensor(x, dtype=torch.int32) for x in given.args[:3])
    a = planner.plan(*given.args, first, FLOAT_BYTES)
    b = planner.plan(starts, kv_starts, lengths, *given.args[3:], second, FLOAT_BYTES)
    assert a == b
    assert torch.equal(first, second)


def plan_rows(
    rows: int, length: int = 1, heads: int = 16, target: torch.Tensor | None = None
) -> None:
    indptr = list(range(rows + 1))
    planner.plan(
        indptr, indptr, [length] * rows, heads, 512, 132,
        staging() if target is None else target, FLOAT_BYTES,
    )  # fmt: skip


def test_the_domain_ends_at_its_capacity() -> None:
    target = staging()
    plan_rows(planner.MAX_WORKS)
    with pytest.raises(TwinDomainError, match="16385 work items"):
        plan_rows(planner.MAX_WORKS + 1, target=target)
    assert bool((target == BACKGROUND).all())


def test_lengths_that_overflow_the_native_int32_are_refused() -> None:
    with pytest.raises(TwinDomainError, match="int32"):
        plan_rows(1, length=1 << 30)


def test_no_rows_are_refused() -> None:
    with pytest.raises(TwinDomainError, match="SIGFPE"):
        plan_rows(0)


def test_falling_indptr_is_refused_as_natively(native: CompiledPlanner) -> None:
    args = ([0, 2, 1], [0, 1, 2], [1, 1], 16, 512, 132)
    for plan in (planner.plan, native.plan):
        with pytest.raises(NativeError):
            plan(*args, staging(), FLOAT_BYTES)


def test_small_float_workspace_is_refused_exactly_as_natively(native: CompiledPlanner) -> None:
    args = ([0, 1], [0, 64], [64], 64, 512, 132)
    least = 2 * 132 * 64 * (2 * 512 + 4)
    for plan in (planner.plan, native.plan):
        plan(*args, staging(), least)
        with pytest.raises(NativeError):
            plan(*args, staging(), least - 1)


def test_small_staging_is_refused() -> None:
    with pytest.raises(TwinDomainError, match="592464"):
        plan_rows(2, target=torch.zeros(592463, dtype=torch.uint8))
