"""Measures of the cache writes: their bandwidth as a share of a plain copy's on the same device."""

from conformance.bench.machine import Machine
from conformance.bench.results import Results, cell, number, ratio, times

TOKENS = 8192
_REHEARSED = 100


def measure(machine: Machine, results: Results) -> None:
    """Time the write of many tokens for each scaling and rope width, beside a copy."""
    tokens = _REHEARSED if machine.rehearsal else TOKENS
    rows: list[list[str]] = []
    for write in machine.writes(tokens):
        name = f"{write.scaling}, {write.head_dim_kpe} rope channels"
        with results.attempt(f"write, {name}"):
            timed = machine.timer.device(write.runtime, {"write": write.write, "copy": write.copy})
            share = ratio(timed["copy"], timed["write"])
            results.add(
                "write", scaling=write.scaling, head_dim_kpe=write.head_dim_kpe, tokens=tokens,
                bytes=write.size, **timed, copy_by_write=share,
            )  # fmt: skip
            for kind, one in timed.items():
                if one.refused is not None:
                    results.failed(f"write, {name}, {kind}", one.refused)
            rows.append(
                [name, number(write.size / 1e6), *(cell(timed[kind]) for kind in timed),
                 times(share)]
            )  # fmt: skip
    head = ["scaling", "MB moved", "write", "copy", "copy / write"]
    title = f"Cache writes, microseconds, {tokens} tokens: median (p99, spread)"
    results.table(title, head, rows)
