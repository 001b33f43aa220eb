"""Measures of planning: the host's time for a step's whole build, beside the wrapper's plan.

The wrapper's time is that of plan() alone, its metadata being ready; the backend's is that of all
that build() does, the device's own work on lengths included.
"""

import gc
import itertools
from collections.abc import Sequence
from typing import Any

import torch

from conformance.bench.machine import Machine
from conformance.bench.results import Results, cell, ratio, times
from conformance.bench.shape import Call, Parts, Shape
from conformance.bench.stats import summarize
from conformance.bench.timer import REPEATS, SYNCHRONIZE_EVERY, Timed, reason

_SPLIT_STEPS = 200


def measure(
    machine: Machine, results: Results, heads: Sequence[int], max_tokens: Sequence[int]
) -> None:
    """Time builds and plans at each head count and capacity, then where a replan's time goes."""
    rows: list[list[object]] = []
    refused: dict[str, list[str]] = {}
    for num_heads, capacity in itertools.product(heads, max_tokens):
        name = f"plan, {num_heads} heads, max_tokens {capacity}"
        with results.attempt(name):
            shape = machine.sized(num_heads=num_heads, max_tokens=max(capacity, machine.shape.rows))
            timed = _plans(machine, shape)
            ratios = {kind: ratio(timed["wrapper"], timed[kind]) for kind in ("replan", "reuse")}
            results.add(
                "plan", heads=num_heads, max_tokens=shape.max_tokens, **timed,
                wrapper_by_replan=ratios["replan"], wrapper_by_reuse=ratios["reuse"],
            )  # fmt: skip
            rows.append([
                num_heads, shape.max_tokens, *(cell(timed[kind]) for kind in timed),
                times(ratios["replan"]), times(ratios["reuse"]),
            ])  # fmt: skip
            if why := timed["wrapper"].refused:
                refused.setdefault(why, []).append(f"{num_heads} heads x {capacity}")
            for kind in ("replan", "reuse"):
                if why := timed[kind].refused:
                    results.failed(f"{name}, {kind}", why)
        _tidy()
    head = ["heads", "max_tokens", "replan", "reuse", "wrapper", "wrapper / replan", "/ reuse"]
    live = machine.shape.rows
    results.table(f"Host, microseconds, {live} live rows: median (p99, spread)", head, rows)
    for why, where in refused.items():
        results.line(f"refused: wrapper at {', '.join(where)} rows: {why}")
    name = f"split, {heads[0]} heads"
    with results.attempt(name):
        # The capacity of a usual server, where it is among those asked for.
        capacity = 8192 if 8192 in max_tokens else max(max_tokens)
        _split(machine, results, machine.sized(num_heads=heads[0], max_tokens=max(capacity, live)))
    _tidy()


def _plans(machine: Machine, shape: Shape) -> dict[str, Timed]:
    parts = machine.construct(shape)
    parts.allocate()
    known = parts.batch([shape.long] * shape.rows)
    calls: dict[str, Call] = {
        "replan": replanning(parts, shape),
        "reuse": lambda: parts.build(known),  # from the second in a row on
    }
    reuses = parts.plans()[1]
    refusal = ""
    try:
        wrapper = machine.wrapper(shape, parts.runtime.device)
        calls["wrapper"] = _alternating(
            [wrapper.planning([n] * shape.rows) for n in (shape.long, shape.short)]
        )
    except Exception as problem:
        refusal = reason(problem)
    timed = machine.timer.host(parts.runtime, calls)
    if refusal:
        timed["wrapper"] = Timed(refused=refusal)
    if parts.plans()[1] == reuses:
        timed["reuse"] = Timed(refused="no plan was reused")
    return timed


def replanning(parts: Parts, shape: Shape) -> Call:
    """A build of bounds that no plan before covers, each time."""
    batches = [parts.batch([n] * shape.rows) for n in (shape.long, shape.short)]

    def build(batch: Any) -> Call:
        return lambda: parts.build(batch)

    return _alternating([build(batch) for batch in batches])


def _alternating(calls: Sequence[Call]) -> Call:
    turns = itertools.cycle(calls)
    return lambda: next(turns)()


def _split(machine: Machine, results: Results, shape: Shape) -> None:
    parts = machine.construct(shape)
    parts.allocate()
    build = replanning(parts, shape)
    for _ in range(4):
        build()
    steps = 2 if machine.rehearsal else _SPLIT_STEPS
    repeats: list[dict[str, list[float]]] = []
    calls = {"all of it": 1}
    with parts.watched() as spent:
        for _ in range(REPEATS):
            samples: dict[str, list[float]] = {}
            for step in range(steps):
                if step % SYNCHRONIZE_EVERY == 0:
                    parts.runtime.synchronize()
                spent.clear()
                spent.timed("the rest in Python", build)()
                samples.setdefault("all of it", []).append(sum(spent.seconds.values()))
                for name, seconds in spent.seconds.items():
                    samples.setdefault(name, []).append(seconds)
                    calls[name] = spent.calls[name]
            repeats.append(samples)
    parts.runtime.synchronize()
    rows = []
    for name in calls:
        taken = [samples[name] for samples in repeats if name in samples]
        timed = Timed(None if machine.rehearsal else summarize(taken))
        results.add("split", part=name, calls=calls[name], time=timed, max_tokens=shape.max_tokens)
        rows.append([name, calls[name], cell(timed)])
    title = f"A replan's host time, {shape.num_heads} heads, max_tokens {shape.max_tokens}"
    results.table(title, ["part", "calls", "microseconds"], rows)


def _tidy() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
