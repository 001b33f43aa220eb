"""The experiments: plant slots where nothing may be touched, then where something is.

Run on the twin they end with what its log says; on a GPU with whether the context survived. Each
probe first shows that nothing faults, and last that the detector is not blind.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from conformance.canary.planting import Planting
from conformance.canary.prediction import touched
from conformance.core.bench import Bench
from conformance.core.case import Case, Step, parse
from conformance.core.inputs import INT32_MIN, StepInputs
from conformance.core.lab import Lab
from conformance.core.schedule import ScheduleReader
from conformance.core.subject import Unobservable

PAGE = 2 << 20
"""Bytes of a page of GPU memory that can be left unmapped."""

ILLEGAL = "illegal memory access"
"""What CUDA says of a touch of unmapped memory (error 700)."""

_FAR = 40
_CROWD = 26
"""Rows enough that pieces of a split are longer than a tile, so that some of it stays untouched."""


@dataclass(frozen=True)
class Sighting:
    """What a probe saw. safe: what went wrong where nothing may fault, empty for nothing.
    alarm: what was raised where a fault must be, empty for nothing (a blind detector).
    """

    safe: str
    alarm: str


class Probe:
    """A subject over guarded memory on a GPU, over plain memory on the twin."""

    def __init__(self, lab: Lab, step: Step, *, hole: bool = False) -> None:
        self.lab, self.step = lab, step
        self.module: Planting | None = None
        self._guard: Any = None
        on_gpu = lab.tier.native is None
        memory: dict[str, Any] = {"storage": self._guarded, "page": PAGE} if on_gpu else {}
        self.bench: Bench = lab.bench(step, wrap=self._wrap, hole=hole, **memory)
        self.inputs: StepInputs = self.bench.world.draw_step(step)
        self.bench.build(step)
        seen = self.bench.observe()
        self.offsets: list[int] = seen.need("kv_indptr").tolist()
        self.schedule: ScheduleReader = self.bench.schedule(seen)
        self.valid = self.bench.valid(step)
        rows = self.bench.world.num_blocks * self.bench.world.stride_rows
        # The first slot of the unmapped page behind the cache, and the one before the cache.
        self.behind, self.before = rows, -1

    def _wrap(self, module: Any) -> Planting:
        self.module = Planting(module)
        return self.module

    def _guarded(self, nbytes: int, hole: int) -> Any:
        from conformance.canary.guarded import GuardedMemory

        self._guard = GuardedMemory(nbytes, hole=hole)
        return self._guard.tensor

    def touched_with_kv_end_only(self) -> list[set[int]]:
        """Return what the twin says is touched, per row, when only kv_end was clamped."""
        assert self.module is not None
        seen, config = self.bench.observe(), self.bench.config
        workspace = seen.need("int_workspace").clone()
        self.module.restore_kv_len(workspace, seen.need("plan_info"))
        return touched(
            seen.need("plan_info"),
            workspace,
            rows=self.step.rows,
            num_heads=config.num_heads,
            num_sms=self.bench.runtime.num_sms,
            indices=seen.need("kv_indices").numel(),
        )

    def planned(self, row: int) -> range:
        """Return the positions that were planned for a row."""
        return range(self.offsets[row + 1] - self.offsets[row])

    def run(
        self, planted: dict[tuple[int, int], int], *, kv_end_only: bool = False
    ) -> torch.Tensor:
        """Run the step with slots planted at (row, position); raise what the device raises."""
        assert self.module is not None
        self.module.entries = {
            self.offsets[row] + position: slot for (row, position), slot in planted.items()
        }
        self.module.kv_end_only = kv_end_only
        return self.bench.run(self.step, self.inputs)

    def alarm(self, row: int, position: int, slot: int, *, kv_end_only: bool = False) -> str:
        """Plant one slot that must be touched, and run; return how that showed, empty for not."""
        fault = self.fault({(row, position): slot}, kv_end_only=kv_end_only)
        log = self.lab.tier.log
        if log is None:
            return fault
        found = any(t.position == position and t.slot == slot for t in log.touches(row))
        return fault if found else ""

    def fault(self, planted: dict[tuple[int, int], int], *, kv_end_only: bool = False) -> str:
        """Run; return which touch of unmapped memory showed, empty for none."""
        try:
            self.run(planted, kv_end_only=kv_end_only)
            self.bench.runtime.synchronize()
        except RuntimeError as problem:
            if self.lab.tier.log is not None or ILLEGAL not in str(problem):
                raise  # whatever it is, it is no touch of unmapped memory
            return str(problem).splitlines()[0]
        log = self.lab.tier.log
        if log is None:
            return ""
        world = self.bench.world
        hole = range(world.hole_blocks * world.stride_rows)
        bad = [*log.foreign_slots(), *(slot for slot in log.touched_slots() if slot in hole)]
        return f"touched {bad[0]}" if bad else ""


def a_step(lab: Lab) -> Step:
    """Draw a few rows, most of them shorter than planned."""
    draw, geometry = lab.case.draw.fork("probe"), lab.case.geometry
    rows = draw.randint(1, 7)
    longest = geometry.index_topk + geometry.index_kpool
    lengths = tuple(draw.randint(1, longest) for _ in range(rows))
    bounds = tuple(length + draw.randint(0, draw.choice((4, longest))) for length in lengths)
    return Step((1,) * rows, lengths, bounds, rows)


def behind_the_valid_prefix(lab: Lab) -> Sighting:
    """READ-C: all planned entries behind the valid ones point into an unmapped page."""
    probe = Probe(lab, a_step(lab))
    slots = (probe.behind, probe.before, probe.behind + _FAR)
    planted = {
        (row, position): slots[(row + position) % 3]
        for row, valid in enumerate(probe.valid)
        for position in probe.planned(row)[valid:]
    }
    safe = _judged(lab, probe, planted)
    row = lab.case.draw.fork("victim").randint(0, len(probe.valid))
    slot = slots[row % 3]
    return Sighting(safe, "" if safe else probe.alarm(row, probe.valid[row] - 1, slot))


def negative_slots(lab: Lab) -> Sighting:
    """READ-A: selections full of negatives, with nothing mapped before the cache."""
    probe = Probe(lab, a_step(lab))
    topk, width = probe.inputs.topk, probe.inputs.topk.shape[1]
    for row, valid in enumerate(probe.valid):
        topk[row, valid:] = torch.where(torch.arange(width - valid) % 2 == 0, -1, INT32_MIN)
    safe = _judged(lab, probe, {})
    row = lab.case.draw.fork("victim").randint(0, len(probe.valid))
    return Sighting(safe, "" if safe else probe.alarm(row, probe.valid[row] - 1, probe.before))


def an_unmapped_null_block(lab: Lab) -> Sighting:
    """READ-D: nothing is mapped where slot 0 and its neighbours are, which nobody selects."""
    probe = Probe(lab, a_step(lab), hole=True)
    safe = _judged(lab, probe, {})
    row = lab.case.draw.fork("victim").randint(0, len(probe.valid))
    return Sighting(safe, "" if safe else probe.alarm(row, probe.valid[row] - 1, 0))


def a_crowd(lab: Lab) -> Step:
    """Draw many rows planned in full, most of them short."""
    draw, geometry = lab.case.draw.fork("crowd"), lab.case.geometry
    longest = geometry.index_topk + geometry.index_kpool - 1
    lengths = tuple(
        draw.randint(1, draw.choice((60, 60, longest + 1)))
        for _ in range(draw.randint(0, 4) + _CROWD)
    )
    far = 2 * geometry.index_topk + geometry.index_kpool
    return Step((1,) * len(lengths), lengths, (far,) * len(lengths), len(lengths))


def untouched_by_the_twin(lab: Lab) -> Sighting:
    """CANARY-1: for a clamp of kv_end alone, what the twin says is untouched, and one before.

    The one before is a masked position: loaded by the kernel, and given probability 0.
    """
    probe = Probe(lab, a_crowd(lab))
    seen = probe.touched_with_kv_end_only()
    planted: dict[tuple[int, int], int] = {}
    edges = []
    for row, valid in enumerate(probe.valid):
        free = [position for position in probe.planned(row) if position not in seen[row]]
        planted |= {(row, position): probe.behind for position in free}
        if free and free[0] > valid:
            edges.append((row, free[0]))
    if not edges:
        return Sighting("no row has an untouched position behind a masked one", "")
    fault = probe.fault(planted, kv_end_only=True)
    if fault:
        return Sighting(f"untouched positions: {fault}", "")
    row, first = lab.case.draw.fork("edge").choice(edges)
    return Sighting("", probe.alarm(row, first - 1, probe.behind, kv_end_only=True))


def _judged(lab: Lab, probe: Probe, planted: dict[tuple[int, int], int]) -> str:
    """Return what is wrong with a run that must be safe and right."""
    fault = probe.fault(planted)
    if fault:
        return fault
    out = probe.bench.output(probe.step.rows)
    verdict = probe.bench.judge(out, probe.bench.golden(probe.step, probe.inputs))
    lab.error, lab.ratio = verdict.max_error, verdict.max_ratio
    return "" if verdict.ok else verdict.message


UNMAPPED = "unmapped"
"""What a READ-D case says that is to be probed."""


def probe_of(case: Case) -> Callable[[Lab], Sighting] | None:
    """Return the probe of a case, None where it has none."""
    if case.requirement == "READ-D":
        return an_unmapped_null_block if case["how"] == UNMAPPED else None
    probes = {
        "READ-A": negative_slots,
        "READ-C": behind_the_valid_prefix,
        "CANARY-1": untouched_by_the_twin,
    }
    return probes.get(case.requirement)


def in_child(payload: dict[str, Any]) -> dict[str, Any]:
    """Run one probe on the GPU in this process, which is its own; payload and result for JSON.

    payload: case (an id) and subject (package.module:factory). The result says what was seen, or
    in `unobservable` what the subject does not show.
    """
    from conformance.core.worker import load_subject
    from conformance.tiers import tier

    case = parse(payload["case"])
    lab = Lab(case, load_subject(payload["subject"]), tier("hopper"), "torch")
    probe = probe_of(case)
    if probe is None:
        raise ValueError(f"{case.id}: no probe for it")
    try:
        sighting = probe(lab)
    except Unobservable as problem:
        return {"unobservable": str(problem)}
    return {"safe": sighting.safe, "alarm": sighting.alarm, "error": lab.error, "ratio": lab.ratio}
