"""The canonical cases for whoever has a kernel: inputs, stored outputs, and a verdict.

Needs safetensors, which no other module of golden's library part does.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from golden import check, manifest, store
from golden.inputs import Inputs, draw_inputs
from golden.manifest import TOLERANCE, BrokenSet, Entry
from golden.recipe import Recipe
from golden.tolerance import Roundings, Verdict, compare


@dataclass(frozen=True, eq=False)
class Stored:
    """The set's outputs of a case, float64: out [pairs, ckv] of the (row, head) pairs in `kept`,
    lse [rows, heads], natural log."""

    kept: tuple[tuple[int, int], ...]
    out: torch.Tensor
    lse: torch.Tensor


@dataclass(frozen=True, eq=False)
class Case:
    """A canonical case of the set in `folder`."""

    folder: Path
    entry: Entry

    @property
    def recipe(self) -> Recipe:
        """Geometry, lengths, cache format, sm_scale."""
        return self.entry.recipe

    @property
    def name(self) -> str:
        """The case's name in the set."""
        return self.recipe.name

    @property
    def roundings(self) -> Roundings:
        """Those of FlashInfer on SM90 for this cache."""
        return Roundings.of(self.recipe.fmt, self.recipe.scale)

    @cached_property
    def inputs(self) -> Inputs:
        """The step's inputs, drawn. Raises BrokenSet where they are not the manifest's."""
        inputs = draw_inputs(self.recipe)
        if problem := check.different_inputs(inputs, self.entry):
            what = f"{self.name}, {problem.what}"
            raise BrokenSet(what, problem.found, problem.allowed, problem.fix)
        return inputs

    @cached_property
    def stored(self) -> Stored:
        """The stored outputs. Raises BrokenSet where the file is not the manifest's."""
        outputs = store.read(self.folder, self.entry)
        return Stored(self.entry.kept, outputs["out"], outputs["lse"])

    def judge(
        self, out: torch.Tensor, *, roundings: Roundings | None = None, split: int | None = None
    ) -> Verdict:
        """The verdict on `out` [rows, heads, ckv], any float type and device.

        roundings: the engine's; FlashInfer's on SM90 where None. split: as in
        `golden.oracle.attend`. Raises BrokenSet where golden no longer computes what is stored,
        ValueError for another shape.
        """
        golden = self.inputs.attend(split=split)
        rows, heads = (list(part) for part in zip(*self.stored.kept, strict=True))
        apart = (golden.out[rows, heads] - self.stored.out).abs()
        if not bool((apart <= TOLERANCE * golden.value_sq[rows, heads].sqrt()).all()):
            raise BrokenSet(
                self.name,
                f"outputs up to {float(apart.max()):.3g} from the stored ones",
                f"{TOLERANCE} of sqrt(sum p v^2)",
                "see what `python -m golden check` says, and undo what changed golden",
            )
        return compare(out, golden, roundings or self.roundings)


def cases(folder: Path = store.DATA) -> Iterator[Case]:
    """The cases of a golden set, in its order. Raises BrokenSet."""
    for entry in manifest.load(folder):
        yield Case(folder, entry)
