"""Subjects that are right but for one thing, for the player to find."""

from dataclasses import replace
from typing import Any

import torch

from conformance.core.subject import Observation, Unobservable
from conformance.core.worker import load_subject

REAL = "conformance.subjects.smla:SmlaSubject"


class Faulty:
    """The real subject behind an instance with a fault; `wrong` makes it of the real one."""

    def __init__(self, wrong: Any) -> None:
        self._real, self._wrong = load_subject(REAL), wrong
        self.name, self.capabilities = f"faulty {wrong.__name__}", self._real.capabilities

    def refusals(self, config: Any, capability: tuple[int, int]) -> list[str]:
        return self._real.refusals(config, capability)

    def construct(self, *args: Any, **options: Any) -> Any:
        return self._wrong(self._real.construct(*args, **options))


def faulty(name: str) -> Faulty:
    """Return the subject with the fault of this name; on a command line
    `--subject fuzz.tests.blind:faulty@NAME`."""
    return Faulty(globals()[name])


class Instance:
    """Passes everything on."""

    def __init__(self, real: Any) -> None:
        self.real, self.runtime = real, real.runtime

    def build(self, batch: Any) -> Any:
        return self.real.build(batch)

    def forward(self, *args: Any, **options: Any) -> None:
        self.real.forward(*args, **options)

    def observe(self) -> Observation:
        seen: Observation = self.real.observe()
        return seen


class WithoutFlags(Instance):
    """Its device notices nothing."""

    def observe(self) -> Observation:
        return replace(super().observe(), flags=frozenset())


class ForgetsNothing(Instance):
    """Keeps its first block table, whatever it is given."""

    table: Any = None

    def build(self, batch: Any) -> Any:
        self.table = batch.block_table.clone() if self.table is None else self.table
        count = batch.block_table.shape[0]
        known = self.table[:count] if self.table.shape[0] >= count else batch.block_table
        return super().build(replace(batch, block_table=known))


class SplitsAsTheHost(Instance):
    """Takes the host's split of the rows for the device's."""

    def build(self, batch: Any) -> Any:
        return super().build(replace(batch, query_start_loc=batch.query_start_loc_cpu.clone()))


class TrustsBounds(Instance):
    """Takes the host's bounds for the lengths on the device."""

    def build(self, batch: Any) -> Any:
        bounds = batch.seq_lens_cpu_upper_bound
        return super().build(batch if bounds is None else replace(batch, seq_lens=bounds.clone()))


class ComputesNothing(Instance):
    """Says that there is nothing to compute, and computes nothing."""

    def build(self, batch: Any) -> Any:
        return replace(super().build(batch), num_rows=0)

    def forward(self, *args: Any, **options: Any) -> None:
        """Leave everything as it is."""


class ShowsNoFlags(Instance):
    """Its flags cannot be seen."""

    def observe(self) -> Observation:
        return replace(super().observe(), flags=None)


class TouchesAll(Instance):
    """Adds nothing, but computes it from every row of the cache."""

    def forward(self, *args: Any, **options: Any) -> None:
        super().forward(*args, **options)
        cache, out = args[2], args[6]
        typed = cache.view(torch.float8_e4m3fn) if cache.dtype == torch.uint8 else cache
        worst = typed.float().abs().max()  # NaN where one is; too large for BF16's sum where huge
        extra = torch.where(worst.isfinite() & (worst < 400), 0.0, float("nan"))
        out[: args[4].num_rows] += extra.to(out.dtype)


class CountsTails(Instance):
    """Refuses selections whose tail is anything but -1."""

    def forward(self, *args: Any, **options: Any) -> None:
        topk = args[3]
        if bool((topk < -1).any()):
            raise ValueError("a tail of another kind")
        super().forward(*args, **options)


class RefusesLooseBounds(Instance):
    """Takes no bound that is more than a few tokens above the truth."""

    def build(self, batch: Any) -> Any:
        bounds = batch.seq_lens_cpu_upper_bound
        if bounds is not None and bool((bounds - batch.seq_lens.cpu() > 4).any()):
            raise ValueError("a loose bound")
        return super().build(batch)


class WritesSlotZero(Instance):
    """Writes the cache's first row where the block table is all zeros, as a warm-up may."""

    def forward(self, *args: Any, **options: Any) -> None:
        super().forward(*args, **options)
        if not bool(args[4].block_table.any()):
            args[2][0, 0] = 0


class OneScale(Instance):
    """Keeps the first scale of a build, and the first queries, for all its layers."""

    first: Any = None

    def build(self, batch: Any) -> Any:
        self.first = None
        return super().build(batch)

    def forward(self, *args: Any, **options: Any) -> None:
        self.first = self.first or args[5]
        options.pop("device_k_scale", None)
        super().forward(*args[:5], self.first, *args[6:], **options)


class AnyStream(Instance):
    """Takes a forward on any stream for one on the build's."""

    def forward(self, *args: Any, **options: Any) -> None:
        state = args[4].state
        state.stream = self.runtime.stream()
        super().forward(*args, **options)


class ForgetsToPlan(Instance):
    """Builds only when the number of rows is another one than before."""

    rows, metadata = -1, None

    def build(self, batch: Any) -> Any:
        rows = int(batch.query_start_loc_cpu[-1])
        if rows != self.rows:
            self.rows, self.metadata = rows, super().build(batch)
        return self.metadata


class SplitsAsTheHostWhenItReads(Instance):
    """Reads lengths back where the host has none, but keeps the host's split of the rows."""

    def build(self, batch: Any) -> Any:
        if batch.seq_lens_cpu_upper_bound is None:
            starts = batch.query_start_loc_cpu.to(batch.query_start_loc.device)
            batch = replace(batch, query_start_loc=starts)
        return super().build(batch)


class LengthsOfTheStepBefore(Instance):
    """Keeps the lengths on the device as long as the batch looks the same."""

    looks: Any = None
    lengths: Any = None

    def build(self, batch: Any) -> Any:
        looks = batch.query_start_loc_cpu.tolist()
        if looks != self.looks:
            self.looks, self.lengths = looks, batch.seq_lens.clone()
        return super().build(replace(batch, seq_lens=self.lengths))


class SkipsEmptySteps(Instance):
    """Plans nothing for a step without rows, so that the schedule before stays."""

    last: Any = None

    def build(self, batch: Any) -> Any:
        if self.last is not None and not int(batch.query_start_loc_cpu[-1]):
            return replace(self.last, num_rows=0)
        self.last = super().build(batch)
        return self.last


class ClearsPadding(Instance):
    """Writes zeros into the rows behind the live ones."""

    def forward(self, *args: Any, **options: Any) -> None:
        super().forward(*args, **options)
        self.runtime.native_run(args[6][args[4].num_rows :].zero_)


class SpoilsSome(Instance):
    """Spoils the last row of some forwards, counted from 0, and breaks down in another."""

    spoiled: tuple[int, ...] = ()
    breaks: int | None = None
    forwards = 0

    def forward(self, *args: Any, **options: Any) -> None:
        number, self.forwards = self.forwards, self.forwards + 1
        if number == self.breaks:
            raise RuntimeError("broken down")
        super().forward(*args, **options)
        if number in self.spoiled:
            args[6][args[4].num_rows - 1, 0, 0] += 1


def spoiling(*spoiled: int, breaks: int | None = None) -> Faulty:
    """Return a subject whose instances spoil some forwards, and break down in another."""
    return Faulty(type("Spoils", (SpoilsSome,), {"spoiled": spoiled, "breaks": breaks}))


class WritesTheCache(Instance):
    """Changes the cache's last element in each forward."""

    def forward(self, *args: Any, **options: Any) -> None:
        super().forward(*args, **options)
        self.runtime.native_run(args[2].view(torch.uint8)[-1, -1].add_, 1)


class ReadsTails(Instance):
    """Clamps nothing once it has planned, so that the kernel reads what stands behind."""

    def build(self, batch: Any) -> Any:
        metadata = super().build(batch)
        for schedule in metadata.state.active:
            schedule.words.view(torch.int32)
            layout = metadata.state.layout
            at, count = layout.at("kv_len"), layout.capacity
            self.runtime.native_run(_restore, schedule.words[at : at + count], metadata.num_rows)
        return metadata


def _restore(lengths: Any, rows: int) -> None:
    lengths[:rows] += 1


def stumbling(word: str) -> type:
    """Return an instance that breaks where it should refuse, and says the word while it does."""

    class Stumbles(Instance):
        def build(self, batch: Any) -> Any:
            return self._either(lambda: super(Stumbles, self).build(batch))

        def forward(self, *args: Any, **options: Any) -> None:
            self._either(lambda: super(Stumbles, self).forward(*args, **options))

        def _either(self, call: Any) -> Any:
            try:
                return call()
            except ValueError:
                raise KeyError(word) from None

    return Stumbles


class OptsOut(Instance):
    """Says in its third build that it cannot be judged."""

    builds = 0

    def build(self, batch: Any) -> Any:
        self.builds += 1
        if self.builds == 3:
            raise Unobservable("the third step")
        return super().build(batch)


class ClearsPaddingLater(Instance):
    """Writes zeros behind the rows of a second forward of one build."""

    forwards = 0

    def build(self, batch: Any) -> Any:
        self.forwards = 0
        return super().build(batch)

    def forward(self, *args: Any, **options: Any) -> None:
        super().forward(*args, **options)
        self.forwards += 1
        if self.forwards == 2:
            self.runtime.native_run(args[6][args[4].num_rows :].zero_)


class RefusesCompany(Instance):
    """Breaks from its fifth build on, where work of steps before is still queued."""

    builds = 0

    def build(self, batch: Any) -> Any:
        self.builds += 1
        if self.builds >= 5 and getattr(self.runtime, "pending", 0) > 12:
            raise RuntimeError("in company")
        return super().build(batch)
