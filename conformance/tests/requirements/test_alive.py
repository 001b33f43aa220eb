"""SMOKE: the plain case runs, which a mutant must still do to count as one. Run first."""

from dataclasses import replace

import torch

from conformance.core.lab import Lab
from conformance.core.requirement import requirement

ALIVE = 0.25
"""Relative error below which a subject counts as alive: far from right, far from noise (1.4)."""


@requirement("SMOKE", dtype=("bf16", "fp8"), geo=("odd", "v32"), lens=("full",), loss=("none",))
def test_the_plain_case_runs(lab: Lab) -> None:
    step = lab.step()
    step = replace(step, padded_rows=step.rows)
    bench = lab.bench(step)
    inputs = bench.world.draw_step(step)
    out = bench.run(step, inputs).double()
    expected = bench.golden(step, inputs).out.cpu()
    error = float(torch.linalg.norm(out - expected) / torch.linalg.norm(expected))
    lab.check(error < ALIVE, "relative error", got=error, expected=f"below {ALIVE}")
