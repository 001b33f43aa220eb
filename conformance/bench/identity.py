"""Whether a plan on the device is, byte for byte, what the native planner writes for its rows.

Exact lengths are planned, so that no clamp has rewritten anything. Bytes that the planner leaves
alone are left out.
"""

from collections.abc import Sequence

from conformance.bench.machine import Machine
from conformance.bench.results import Results
from golden import Draw

BATCHES = 12
QUESTION = "int workspace equal"


def measure(machine: Machine, results: Results, heads: Sequence[int]) -> None:
    """Compare the plans of drawn batches; a difference is the answer no."""
    equal, compared, answered = True, 0, False
    for num_heads in heads:
        with results.attempt(f"bytes, {num_heads} heads"):
            same, count = _compare(machine, num_heads)
            results.add("bytes", heads=num_heads, batches=BATCHES, equal=same, bytes=count)
            equal, compared, answered = equal and same, compared + count, True
    if answered:
        results.answers[QUESTION] = equal
        results.line(f"{QUESTION}: {'yes' if equal else 'no'} ({compared} bytes)")


def _compare(machine: Machine, num_heads: int) -> tuple[bool, int]:
    shape = machine.sized(num_heads=num_heads, max_tokens=max(256, machine.shape.rows))
    parts, draw = machine.construct(shape), Draw(f"bench bytes {num_heads}")
    parts.allocate()
    equal, compared = True, 0
    for number in range(BATCHES):
        rows = shape.rows if number == 0 else draw.randint(1, shape.rows + 1)
        most = shape.long if number % 2 == 0 else shape.short
        contexts = [draw.randint(1, most + 1) for _ in range(rows)]
        parts.build(parts.batch(contexts, known=False))
        ours, native = parts.workspace(), parts.native(contexts)
        equal &= bool((ours == native.staging)[native.written].all())
        compared += int(native.written.sum())
    return equal, compared
