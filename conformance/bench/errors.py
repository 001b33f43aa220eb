"""Measures of exactness: canonical cases through the backend, and through FlashInfer beside it.

Outputs are held against golden, by the bound that docs/error-model.md derives for FlashInfer.
"""

from collections import defaultdict
from dataclasses import dataclass

from conformance.bench.machine import Machine
from conformance.bench.results import Results
from conformance.bench.shape import NotServed
from conformance.bench.timer import reason
from golden import Roundings, Verdict, compare
from golden.inputs import draw_inputs
from golden.recipe import Recipe
from golden.standard import recipes

LONGEST = 8192
"""Tokens: longer contexts take golden minutes, and no longer rows."""

_REHEARSED_HEADS = 8
_FORMATS = {"bf16": "BF16", "e4m3": "FP8, one scale", "e4m3_group": "FP8, group scales"}
QUESTION = "canonical cases within their bounds"


@dataclass
class Worst:
    """The worst of some verdicts."""

    cases: int = 0
    refused: int = 0
    error: float = 0.0
    ratio: float = 0.0

    @property
    def figures(self) -> tuple[str, str]:
        """The worst row's relative error, and the worst element's error over its bound."""
        return f"{self.error:.2e}", f"{self.ratio:.2f}"

    def add(self, verdict: Verdict) -> None:
        """Count one more."""
        self.cases += 1
        self.error = max(self.error, verdict.max_error)
        self.ratio = max(self.ratio, verdict.max_ratio)


def chosen(rehearsal: bool) -> list[Recipe]:
    """The canonical cases of contexts up to LONGEST; in a rehearsal those of few heads."""
    return [
        recipe
        for recipe in recipes()
        if max(recipe.contexts) <= LONGEST
        and (not rehearsal or recipe.num_heads <= _REHEARSED_HEADS)
    ]


def measure(machine: Machine, results: Results) -> None:
    """Judge every engine on every case; an output of the backend beyond its bound answers no, and
    where it served no case there is no answer."""
    worst: dict[tuple[str, int, str, str], Worst] = defaultdict(Worst)
    own: list[bool] = []
    engines = machine.engines()
    for recipe in chosen(machine.rehearsal):
        inputs = draw_inputs(recipe)
        golden, kind = inputs.attend(), "plain" if recipe.numerics == "plain" else "hard"
        for name, engine in engines.items():
            told = {
                "case": recipe.name, "fmt": recipe.fmt, "heads": recipe.num_heads,
                "head_dim_kpe": recipe.head_dim_kpe, "numbers": kind, "engine": name,
            }  # fmt: skip
            line = worst[recipe.fmt, recipe.head_dim_kpe, kind, name]
            try:
                out = engine(inputs).cpu()
            except NotServed as problem:
                line.refused += 1
                results.add("error", **told, refused=reason(problem))
                continue
            except Exception as problem:
                results.failed(f"error, {recipe.name}, {name}", reason(problem))
                continue
            verdict = compare(out, golden, Roundings.of(recipe.fmt, recipe.scale))
            if name == machine.own:
                own.append(verdict.ok)
            line.add(verdict)
            results.add(
                "error", **told, error=verdict.max_error, ratio=verdict.max_ratio, ok=verdict.ok
            )
    within = results.answers[QUESTION] = all(own) if own else None
    head = ["cache", "kpe", "numbers", "engine", "cases", "refused", "worst error", "/ bound"]
    rows = [
        [_FORMATS[fmt], kpe, kind, name, one.cases, one.refused, *one.figures]
        for (fmt, kpe, kind, name), one in worst.items()
    ]
    results.table("Canonical cases against dense attention in float64", head, rows)
    results.line(f"{QUESTION}: {'-' if within is None else 'yes' if within else 'no'}")
