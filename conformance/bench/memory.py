"""Measures of memory: what a plan state takes beside its estimate, and that no step adds to it."""

from conformance.bench.machine import Machine, Memory
from conformance.bench.results import Results
from conformance.bench.shape import Parts, Shape
from conformance.bench.timer import SYNCHRONIZE_EVERY
from golden import Draw

MAX_TOKENS = 8192
QUESTION = "nothing grows"
_SEQUENCES, _LENGTH = 48, 4
_WARM_UP = 200
_REHEARSED = 20


def measure(machine: Machine, results: Results, steps: int) -> None:
    """Make a plan state, then run so many steps on it; growth is the answer no."""
    parts: Parts | None = None
    shape = machine.sized(max_tokens=MAX_TOKENS)
    with results.attempt("memory, estimate"):
        parts = machine.construct(shape)
        before = machine.memory()
        parts.allocate()
        after, told = machine.memory(), parts.estimate()
        taken = after.allocated - before.allocated if before and after else None
        results.add("memory", measure="estimate", estimate=told[0], taken=taken,
                    pinned_per_plan=told[1])  # fmt: skip
        rows = [["plan state, device", _mb(told[0]), _mb(taken)]]
        rows.append(["each plan in flight, pinned", _mb(told[1]), "-"])
        title = f"Memory, MB, max_tokens {MAX_TOKENS}, width {shape.topk_width}"
        results.table(title, ["what", "estimate", "taken"], rows)
    if parts is not None:
        with results.attempt("memory, steps"):
            _steps(machine, results, parts, shape, _REHEARSED if machine.rehearsal else steps)


def grown(before: Memory, after: Memory, pinned_per_plan: int) -> bool:
    """Whether more is in use than before.

    Pinned memory is held for as many plans as were ever in flight at once, which varies with what
    the device is doing, but not beyond those between two waits; blocks are powers of two.
    """
    block = 1 << max(pinned_per_plan - 1, 1).bit_length()
    in_flight = SYNCHRONIZE_EVERY * block
    pinned = (after.pinned or 0) - (before.pinned or 0)
    return after.allocated > before.allocated or pinned > in_flight


def _steps(machine: Machine, results: Results, parts: Parts, shape: Shape, steps: int) -> None:
    draw, batches = Draw("bench memory"), []
    for _ in range(_SEQUENCES):  # each as it decodes: its plan is made once and then reused
        rows = draw.randint(1, shape.rows + 1)
        first = [draw.randint(1, shape.long - _LENGTH + 1) for _ in range(rows)]
        batches += [parts.batch([n + step for n in first]) for step in range(_LENGTH)]

    def run(count: int) -> None:
        for step in range(count):
            parts.forward(parts.build(batches[step % len(batches)]))
            if step % SYNCHRONIZE_EVERY == SYNCHRONIZE_EVERY - 1:
                parts.runtime.synchronize()
        parts.runtime.synchronize()

    run(min(_WARM_UP, steps))
    before, (plans, reuses) = machine.memory(), parts.plans()
    run(steps)
    after, made = machine.memory(), parts.plans()
    counts = {"steps": steps, "plans": made[0] - plans, "reuses": made[1] - reuses}
    answer = None
    if before is not None and after is not None:
        answer = not grown(before, after, parts.estimate()[1])
    results.add("memory", measure="steps", **counts, before=_json(before), after=_json(after))
    results.answers[QUESTION] = answer
    table = [
        [name, _mb(getattr(before, name, None)), _mb(getattr(after, name, None))]
        for name in ("allocated", "reserved", "pinned")
    ]
    results.table(f"Memory, MB, {steps} steps", ["bytes", "before", "after"], table)
    said = "-" if answer is None else "yes" if answer else "no"
    results.line(
        f"{QUESTION}: {said} ({steps} steps, {counts['plans']} plans, {counts['reuses']} reuses)"
    )


def _mb(size: int | None) -> str:
    return "-" if size is None else f"{size / 1e6:.2f}"


def _json(memory: Memory | None) -> dict[str, int | None] | None:
    if memory is None:
        return None
    return {
        "allocated": memory.allocated, "reserved": memory.reserved, "pinned": memory.pinned
    }  # fmt: skip
