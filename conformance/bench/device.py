"""Measures of the device: each kernel of a step as a graph of many launches, timed by events."""

import itertools
from collections.abc import Sequence

from conformance.bench.machine import Machine
from conformance.bench.results import Results, cell, number, ratio, times
from conformance.bench.shape import Shape
from conformance.bench.timer import Timed

PADDED_ROWS = 256
AROUND = ("convert", "pack", "clamp")
LIVE, PADDED = "attention", "attention, padded plan"
_ORDER = ("row map", "clamp", "convert", "pack", "rescale", "forward", LIVE, PADDED)


def measure(machine: Machine, results: Results, heads: Sequence[int]) -> None:
    """Time the kernels for both cache dtypes and each head count."""
    columns: dict[str, dict[str, Timed]] = {}
    for fp8, num_heads in itertools.product((False, True), heads):
        shape = machine.sized(num_heads=num_heads, max_tokens=PADDED_ROWS, fp8=fp8)
        column = f"{shape.cache}, {num_heads}"
        with results.attempt(f"device, {column} heads"):
            columns[column] = _kernels(machine, results, shape)
    rows: list[list[str]] = [
        [name, *(cell(timed.get(name)) for timed in columns.values())] for name in _ORDER
    ]
    rows.append(["padded / live plan"])
    rows[-1] += [times(ratio(t.get(PADDED), t.get(LIVE))) for t in columns.values()]
    rows.append([" + ".join(AROUND), *(_told(around(timed)) for timed in columns.values())])
    title = f"Device, microseconds, {machine.shape.rows} live rows: median (p99, spread)"
    results.table(title, ["kernel", *(f"{column} heads" for column in columns)], rows)


def around(timed: dict[str, Timed]) -> float | None:
    """Microseconds of the kernels around attention in sum; None unless each was timed."""
    timings = [timed[name].timing if name in timed else None for name in AROUND]
    medians = [timing.median for timing in timings if timing is not None]
    return sum(medians) if len(medians) == len(AROUND) else None


def _kernels(machine: Machine, results: Results, shape: Shape) -> dict[str, Timed]:
    parts = machine.construct(shape)
    parts.allocate()
    timed = machine.timer.device(parts.runtime, parts.pieces())
    told = {"cache": shape.cache, "heads": shape.num_heads}
    with results.attempt(f"device, {shape.cache}, {shape.num_heads} heads, attention"):
        timed |= machine.timer.device(parts.runtime, parts.attention(PADDED_ROWS))
    for name, one in timed.items():
        results.add("device", kernel=name, **told, time=one)
        if one.refused is not None:
            results.failed(f"device, {shape.cache}, {shape.num_heads} heads, {name}", one.refused)
    results.add(
        "device", kernel=" + ".join(AROUND), **told, sum_us=around(timed),
        padded_by_live=ratio(timed.get(PADDED), timed.get(LIVE)),
    )  # fmt: skip
    return timed


def _told(value: float | None) -> str:
    return "-" if value is None else number(value)
