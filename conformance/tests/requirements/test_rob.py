"""ROB: malformed calls are refused with a message that helps, and change nothing."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from conformance.core.bench import Bench
from conformance.core.case import Config, Geometry, Step
from conformance.core.inputs import StepInputs
from conformance.core.lab import Lab
from conformance.core.requirement import requirement
from conformance.core.subject import HostBatch

Edit = Callable[[HostBatch], HostBatch]


def _starts(batch: HostBatch, change: Callable[[Tensor], Tensor]) -> HostBatch:
    return replace(batch, query_start_loc_cpu=change(batch.query_start_loc_cpu.clone()))


def _swapped(starts: Tensor) -> Tensor:
    starts[1], starts[2] = int(starts[2]) + 1, int(starts[1])
    return starts


LAYOUTS: Mapping[str, Edit] = {
    "starts-fall": lambda b: _starts(b, _swapped),
    "starts-from-one": lambda b: _starts(b, lambda s: s + 1),
    "starts-int64": lambda b: _starts(b, lambda s: s.to(torch.int64)),
    "starts-empty": lambda b: _starts(b, lambda s: s[:0]),
    "starts-square": lambda b: _starts(b, lambda s: s.view(1, -1)),
    "device-starts-short": lambda b: replace(b, query_start_loc=b.query_start_loc[:-1]),
    "device-starts-float": lambda b: replace(b, query_start_loc=b.query_start_loc.float()),
    "lengths-short": lambda b: replace(b, seq_lens=b.seq_lens[:-1]),
    "lengths-int64": lambda b: replace(b, seq_lens=b.seq_lens.to(torch.int64)),
    "lengths-elsewhere": lambda b: replace(b, seq_lens=b.seq_lens.to("meta")),
    "too-many-rows": lambda b: replace(b, num_padded_tokens=10**6),
    "padded-below-live": lambda b: replace(b, num_padded_tokens=1),
}
LENGTHS: Mapping[str, Edit] = {
    "bound-below-queries": lambda b: replace(b, seq_lens_cpu_upper_bound=_edited(b, 0, 1)),
    "bound-negative": lambda b: replace(b, seq_lens_cpu_upper_bound=_edited(b, 1, -5)),
    "bounds-short": lambda b: replace(b, seq_lens_cpu_upper_bound=_edited(b, 0, 99)[:-1]),
}
TABLES: Mapping[str, Edit] = {
    "table-flat": lambda b: replace(b, block_table=b.block_table.flatten()),
    "table-short": lambda b: replace(b, block_table=b.block_table[:-1]),
    "table-int64": lambda b: replace(b, block_table=b.block_table.to(torch.int64)),
}
SELECTIONS = ("topk-int64", "topk-narrow", "topk-short")


def _edited(batch: HostBatch, request: int, value: int) -> Tensor:
    bounds = batch.seq_lens_cpu_upper_bound
    assert bounds is not None
    bounds = bounds.clone()
    bounds[request] = value
    return bounds


def a_step() -> Step:
    return Step((2, 1, 3), (70, 40, 90), (72, 41, 90), 7)


NAMES: Mapping[str, str] = {
    "starts": "query_start_loc",
    "device": "query_start_loc",
    "lengths": "length|seq_lens",
    "bound": "length|seq_lens",
    "bounds": "length|seq_lens",
    "too": "rows",
    "padded": "rows",
    "table": "block_table",
    "topk": "topk",
    "scale": "scale",
    "stale": "metadata",
    "fewer": "q_nope|out",
    "other": "q_nope",
    "aside": "stream",
}
"""What a refusal must name, by the first word of the case's `how`: one of the words between '|'."""


class Refusals:
    """A subject that has done one good step; `refuse` sees a bad call change nothing."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.step = lab, a_step()
        # The bad calls are of another step and other inputs, so that any part that is done shows.
        self.other = replace(self.step, seq_lens=(60, 31, 77), bounds=(172, 141, 190))
        self.bench: Bench = lab.bench(self.step, self.other)
        self.inputs: StepInputs = self.bench.world.draw_step(self.step)
        self.others: StepInputs = self.bench.world.draw_step(self.step, "others")
        lab.judged_run(self.bench, self.step, self.inputs)

    def refuse(self, call: Callable[[], Any], what: str) -> None:
        """Assert that `call` raises an error that says something, and that nothing changed."""
        lab, bench = self.lab, self.bench
        bench.clear_output()
        before, seen = bench.observe(), "no error"
        try:
            call()
        except ValueError as problem:
            seen = str(problem)
        except Exception as problem:  # what happens to go wrong deeper down is no refusal
            seen = f"a stray {type(problem).__name__}"
        words = NAMES.get(what.split("-")[0], "cache")
        refused = not seen.startswith("a stray") and any(w in seen for w in words.split("|"))
        lab.check(refused, what, got=seen, expected=f"a ValueError that names {words}")
        lab.unchanged(before, bench.observe(), what)
        written = int(bench.written(bench.output()).sum())
        lab.expect(written, 0, f"output elements written by {what}")
        lab.judged_run(bench, self.step, self.inputs)

    def refuse_batch(self, edit: Edit, what: str) -> None:
        """Assert that a batch, once edited, is refused."""
        batch = edit(self.bench.batch(self.other))
        self.refuse(lambda: self.bench.instance.build(batch), what)


@requirement("ROB-1", how=tuple(LAYOUTS))
def test_a_malformed_layout_changes_nothing(lab: Lab) -> None:
    Refusals(lab).refuse_batch(LAYOUTS[lab.case["how"]], lab.case["how"])


@requirement("ROB-2", how=tuple(LENGTHS))
def test_impossible_lengths_change_nothing(lab: Lab) -> None:
    Refusals(lab).refuse_batch(LENGTHS[lab.case["how"]], lab.case["how"])


@requirement("ROB-3", how=(*TABLES, *SELECTIONS))
def test_malformed_selections_and_tables_change_nothing(lab: Lab) -> None:
    how, refusals = lab.case["how"], Refusals(lab)
    if how in TABLES:
        refusals.refuse_batch(TABLES[how], how)
        return
    topk = refusals.others.topk.to(refusals.bench.runtime.device)
    bad = {"topk-int64": topk.long(), "topk-narrow": topk[:, :-1], "topk-short": topk[:-1]}[how]
    metadata = refusals.bench.build(refusals.step)
    refusals.refuse(lambda: forward(refusals, metadata, topk=bad), how)


def forward(refusals: Refusals, metadata: Any, **changes: Any) -> None:
    """Call the subject's forward with the good step's arguments, some changed."""
    bench, inputs = refusals.bench, refusals.others
    device = bench.runtime.device
    arguments: dict[str, Any] = {
        "q_nope": inputs.q_nope.to(device),
        "q_pe": inputs.q_pe.to(device),
        "cache": bench.world.cache(bench.world.raw.clone()),
        "topk": inputs.topk.to(device),
        "k_scale": bench.config.k_scale if bench.config.fp8 else None,
    }
    if bench.world.scales is not None:
        arguments["ckv_scale_arr"] = bench.world.flat(bench.world.scales)
    arguments |= changes
    rows = refusals.step.padded_rows
    bench.instance.forward(
        arguments["q_nope"],
        arguments["q_pe"],
        arguments["cache"],
        arguments["topk"],
        metadata,
        arguments["k_scale"],
        bench.output_buffer(rows),
        **{name: value for name, value in arguments.items() if name == "ckv_scale_arr"},
    )


CACHES = ("flat", "block-size", "dtype", "elsewhere", "row-stride", "half-row-stride")
SCALES: Mapping[str, float | None] = {
    "scale-none": None,
    "scale-zero": 0.0,
    "scale-negative": -0.5,
    "scale-nan": math.nan,
    "scale-inf": math.inf,
    "scale-beyond": 2.0**41,
    "scale-below": 2.0**-41,
}


@requirement("ROB-4", how=(*CACHES, *SCALES, "scale-for-bf16"), dtype=("bf16", "fp8"))
def test_malformed_caches_and_scales_change_nothing(lab: Lab) -> None:
    how, refusals = lab.case["how"], Refusals(lab)
    bench = refusals.bench
    metadata = bench.build(refusals.step)
    if how.startswith("scale"):
        # A BF16 cache has no scale: any is refused there; an FP8 one needs a sound one.
        scale = 0.5 if not bench.config.fp8 else SCALES.get(how, math.nan)
        refusals.refuse(lambda: forward(refusals, metadata, k_scale=scale), how)
        return
    good = bench.world.cache(bench.world.raw)
    blocks, size, row = good.shape
    spread = torch.zeros(blocks, size, 2 * row, dtype=good.dtype, device=good.device)
    loose = torch.zeros(blocks * (size * row + 8), dtype=good.dtype, device=good.device)
    bad = {
        "flat": good.reshape(-1, row),
        "block-size": good[:, :-1],
        "dtype": good.to(torch.float32),
        "elsewhere": good.to("meta"),
        "row-stride": spread[..., :row],
        "half-row-stride": loose.as_strided((blocks, size, row), (size * row + 8, row, 1)),
    }[how]
    refusals.refuse(lambda: forward(refusals, metadata, cache=bad), how)


CONFIGS: Mapping[str, dict[str, Any]] = {
    "narrow": {"geometry": Geometry(16, 4, 18)},
    "no-heads": {"num_heads": 0},
    "many-heads": {"num_heads": 129},
    "block-48": {"geometry": Geometry(16, 4, 24, block_size=48)},
    "no-tokens": {"max_tokens": 0},
    "scale-zero": {"sm_scale": 0.0},
    "scale-nan": {"sm_scale": math.nan},
    "kpe-32": {"head_dim_kpe": 32},
}


@requirement("ROB-5", how=tuple(CONFIGS))
def test_a_configuration_that_cannot_work_is_refused(lab: Lab) -> None:
    bench = lab.bench(a_step())
    config: Config = replace(bench.config, **CONFIGS[lab.case["how"]])
    message = ""
    try:
        lab.subject.construct(config, lab.tier, interpret=lab.interpret)
    except Exception as problem:  # any class: the subject's own
        message = str(problem)
    found = {"narrow": "18", "block-48": "48"}.get(lab.case["how"], "")
    found = found or str(next(iter(CONFIGS[lab.case["how"]].values())))
    lab.check(found in message, "refusal", got=message or "none", expected=f"one naming {found}")


@requirement("ROB-6", how=("stale-metadata", "fewer-rows", "other-heads", "aside"))
def test_calls_out_of_order_change_nothing(lab: Lab) -> None:
    how, refusals = lab.case["how"], Refusals(lab)
    bench, inputs = refusals.bench, refusals.inputs
    stale = bench.build(refusals.step)
    if how == "stale-metadata":
        bench.build(replace(refusals.step, bounds=(150, 150, 150)))
        refusals.refuse(lambda: forward(refusals, stale), how)
        return
    if how == "aside":
        lab.needs("one-stream")
        with bench.aside():
            refusals.refuse(lambda: forward(refusals, stale), how)
        return
    device = bench.runtime.device
    q_nope, q_pe = inputs.q_nope.to(device), inputs.q_pe.to(device)
    if how == "fewer-rows":
        changes = {"q_nope": q_nope[:2], "q_pe": q_pe[:2], "topk": inputs.topk[:2].to(device)}
    else:
        changes = {"q_nope": q_nope[:, :-1].contiguous(), "q_pe": q_pe[:, :-1].contiguous()}
    refusals.refuse(lambda: forward(refusals, stale, **changes), how)
