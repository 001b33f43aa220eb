"""Plays a history: the subject on a tier, frame after frame, every live row held against golden.

Frames are queued one behind the other and read later, so that a device that runs behind the host
meets the plans of other frames. A flush waits, reads what is open and judges it.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from conformance.core.case import parse
from conformance.core.lab import CheckFailed, Lab
from conformance.core.subject import Subject, Tier, Unobservable
from fuzz import engine, failure, judge
from fuzz.failure import Finding
from fuzz.faults import FAULTS
from fuzz.history import DEVICES, History, HistoryError
from fuzz.reach import values
from fuzz.stage import Ready, Stage

BUNDLE = 6
"""Frames that are queued before the first of them is read, at most."""


@dataclass
class Played:
    """What was seen of a history. plans: made; ratio: the worst error over its bound.

    unplanted: why faults were left out: what the subject does not offer to notice.
    """

    frames: int = 0
    rows: int = 0
    requests: int = 0
    plans: int = 0
    ratio: float = 0.0
    finding: Finding | None = None
    reached: list[dict[str, str]] = field(default_factory=list)
    unplanted: list[str] = field(default_factory=list)


class _Lab(Lab):
    """A lab whose case is a history. again: the command that plays it again."""

    again = ""

    @property
    def repro(self) -> str:
        return self.again


def play(
    history: History, subject: Subject, tier: Tier, again: str = "", kernels: str = "torch"
) -> Played:
    """Play a history to its end, or to the first finding. again: the command that does it.

    kernels: how the twin runs the subject's, torch or interpret.
    Raises HistoryError for one that no engine can make, and Unobservable where the subject lacks
    what it needs.
    """
    history.check()
    player = _Player(history, tier)
    try:
        player.construct(subject, tier, again, kernels)
        try:
            player.run()
        except Exception:
            player.settle()  # frames before the one that raised: what is wrong there comes first
            raise
        player.settle()
    except CheckFailed as problem:
        player.found(problem)
    except (HistoryError, Unobservable):
        raise
    except Exception as problem:
        player.found(problem)
    return player.seen


class _Player:
    stage: Stage

    def __init__(self, history: History, tier: Tier) -> None:
        self.history, self.shape = history, history.shape
        self.seen = Played()
        self._engine = engine.Engine(self.shape)
        self._bundle: list[Ready] = []
        self._at_hand: Ready | None = None
        self._kept: list[int] = []
        self._where, self._fault = "construction", ""
        self._device = self.shape.device
        self._loaded = tier.native is not None

    def construct(self, subject: Subject, tier: Tier, again: str, kernels: str) -> None:
        """Construct the subject and what the history needs on the device."""
        self.lab = _Lab(parse(self.history.case), subject, tier, kernels)
        self.lab.again = again or f"python -m fuzz replay FILE, seed {self.history.seed}"
        self.stage = Stage(self.lab, self.shape, later=self._device != DEVICES[0])
        self.bench = self.stage.bench
        self.seen.unplanted = self.stage.unplanted
        if self._device != DEVICES[0] and not self.bench.can_block:
            self.seen.unplanted.append(f"device {self._device}: capability clock")
            self._device = DEVICES[0]
        # What is read at once is looked at frame by frame.
        self._most = 1 if self._device == DEVICES[0] else BUNDLE
        self._waiting = judge.Judge(self.lab, self.bench)

    def run(self) -> None:
        """Play every turn."""
        for turn in self.history.turns:
            for frame in self._engine.take(turn):
                fault = None if frame.drafting else turn.fault
                alone = fault is not None and not FAULTS[fault.kind].among
                if alone:
                    self._flush()
                self._where, self._fault = _where(frame), fault.kind if fault else ""
                if fault and fault.kind == "warm-up":
                    self._bundle.append(self.stage.dummy(frame))
                self._bundle.append(
                    self.stage.prepared(frame, fault, graph=turn.graph and not frame.drafting)
                )
                if alone or len(self._bundle) >= self._most:
                    self._flush()
        self._flush()
        self._cache_is_whole()

    def _cache_is_whole(self) -> None:
        same = self.bench.cache_bytes().equal(self.bench.given_cache.cpu())
        self.lab.expect(same, True, "whether the cache is as it was")

    def settle(self) -> None:
        """Judge what was played and waits for it; raise CheckFailed for the first wrong frame."""
        try:
            self._waiting.settle()
        finally:
            self._blame()
        self.seen.ratio = self.lab.ratio or 0.0

    def found(self, problem: Exception) -> None:
        """Note what went wrong, and the schedule as it stands."""
        at = self._at_hand
        at = at if at and _where(at.frame) == self._where else None
        scene = failure.Scene(
            self._where, self._fault, at.frame if at else None, bool(at and at.graph), self._kept,
            at.plant.spared if at and at.plant else frozenset(),
            self.shape.dtype == "fp8", self.lab.again,
        )  # fmt: skip
        finding, stage = failure.of(problem, scene), getattr(self, "stage", None)
        built = stage.built if stage else None  # none while it is constructed
        if built is not None:
            rows = built.metadata.num_rows if built.metadata else built.frame.step.rows
            log = None if self._device != DEVICES[0] else self.lab.tier.log
            where = _where(built.frame)
            shown = failure.seen(self.bench, built.frame, where, rows, finding.row, log)
            finding = replace(finding, schedule=shown)
        self.seen.finding = finding

    def _flush(self) -> None:
        """Queue all frames that are ready, wait for them, and judge them."""
        if not self._bundle:
            return
        bundle, self._bundle = self._bundle, []
        plant = bundle[-1].plant  # what reaches further than its frame is in a bundle of its own
        if plant and plant.replaces_cache:
            self._cache_is_whole()
        if plant:
            plant.before()
        before = self.bench.observe() if plant and plant.kind.error else None
        held = self._may_hold(bundle)
        with self.bench.held() if held else nullcontext():
            for ready in bundle:
                self._turn_to(ready)
                ready.metadata, ready.held = self._watched(ready), held
        for ready in bundle:
            self._turn_to(ready)
            if ready.metadata is not None:
                self._judge(ready)
            else:
                written = int(self.bench.written(self.bench.read(ready.buffers.out)).sum())
                self.lab.expect(written, 0, f"elements written by the refused {self._where}")
            if not ready.dummy:
                self._count(ready)
        self.stage.latest = bundle[-1] if bundle[-1].metadata is not None else None
        seen = self.bench.observe()
        expected = plant.flags if plant else []
        if expected or seen.flags is not None:
            self.lab.expect(sorted(seen.need("flags")), expected, f"flags after {self._where}")
        if before is not None and not bundle[-1].built:
            self.lab.unchanged(before, seen, f"the refused {self._where}")
        if plant and plant.replaces_cache:
            self._cache_is_whole()
        if plant:
            plant.after()
        self.seen.plans = seen.plans or 0

    def _turn_to(self, ready: Ready) -> None:
        self._where, self._fault, self._at_hand = _where(ready.frame), ready.fault, ready

    def _may_hold(self, bundle: Sequence[Ready]) -> bool:
        """Whether nothing in a bundle waits for the device: no capture, and bounds for each."""
        if self._device != DEVICES[2]:
            return False
        fresh = any(r.graph and r.buffers.step.padded_rows not in self.stage.graphs for r in bundle)
        if fresh or any(r.buffers.step.bounds is None for r in bundle):
            return False
        if not self._loaded:
            self._loaded = True
            self.lab.load_kernels(bundle[0].buffers.step)
        return True

    def _watched(self, ready: Ready) -> Any:
        """Queue a frame and look at what shows at once: waits, and what the twin's kernel reads."""
        log, clock = self.lab.tier.log if self._most == 1 else None, self.bench.clock
        if log is not None:
            log.clear()
        waits = clock.waits if clock is not None else 0
        captured = len(self.stage.graphs)
        metadata = self._queue(ready)
        bounded = ready.buffers.step.bounds is not None and len(self.stage.graphs) == captured
        if clock is not None and bounded:
            self.lab.expect(clock.waits - waits, 0, f"waits for the device in {self._where}")
        if log is not None and metadata is not None:
            valid = ready.plant.valid() if ready.plant else self.bench.valid(ready.frame.step)
            valid = valid[: metadata.num_rows]
            self.lab.expect(log.behind(valid), [], f"reads behind the valid entries, {self._where}")
            self.lab.expect(log.foreign_slots(), [], f"reads outside of the cache, {self._where}")
        return metadata

    def _queue(self, ready: Ready) -> Any:
        """Build and queue a frame; return its metadata, None where it was refused as it must be."""
        said = ready.plant.kind.error if ready.plant else ""
        try:
            metadata = self.stage.step(ready)
        except Unobservable as problem:
            if ready.plant and ready.plant.is_("second-stream"):
                raise
            raise RuntimeError(f"unobservable in the middle of a history: {problem}") from problem
        except ValueError as problem:  # what happens to go wrong deeper down is no refusal
            if not said or said not in str(problem):
                raise
            return None
        if ready.plant and said:
            kind = ready.plant.kind
            self.lab.check(False, kind.sentence, got="no error", expected=f"one of {said}")
        return metadata

    def _judge(self, ready: Ready) -> None:
        step, plant = ready.buffers.step, ready.plant
        self._routing(ready)
        out = self.bench.read(ready.buffers.out)
        rows = min(step.rows, ready.metadata.num_rows, plant.rows if plant else step.rows)
        kept = [row for row in range(rows) if not (plant and row in plant.spared)]
        if kept:
            self._keep(ready, kept, out[kept])
        layer = plant.layer if plant else None
        if layer and kept:
            self._kept, layer.bench.world.block_table = kept, ready.table
            second = self.bench.read(layer.buffers.out)[kept]
            exact = layer.bench.world.golden(ready.frame.step, layer.inputs, split=None, rows=kept)
            self.lab.golden(layer.bench, second, exact, f"{self._where}, second layer")
        if layer:
            more = int(self.bench.written(self.bench.read(layer.buffers.out))[rows:].sum())
            self.lab.expect(more, 0, f"elements written behind the rows of {self._where}, layer 2")
        behind = int(self.bench.written(out)[rows:].sum())
        self.lab.expect(behind, 0, f"elements written behind the rows of {self._where}")

    def _keep(self, ready: Ready, rows: list[int], out: Tensor) -> None:
        """Let rows of a frame wait for golden."""
        places = ready.frame.step.row_requests
        owners = [ready.frame.requests[i] for i in places]
        told = ", ".join(f"row {row} of request {owners[row]}" for row in rows[:8])
        played = judge.Played(
            self._where, self._fault, f"{self._where} ({told}, ...)", ready.inputs, ready.table,
            rows, [places[row] for row in rows], out, ready,
        )  # fmt: skip
        try:
            self._waiting.add(played)
        finally:
            self._blame()

    def _blame(self) -> None:
        """Where a frame was judged wrong, make it the one at hand."""
        if self._waiting.wrong is not None:
            self._turn_to(self._waiting.wrong.origin)
            self._kept = list(self._waiting.wrong.rows)

    def _routing(self, ready: Ready) -> None:
        """Hold the rows that the subject says it computes against the turn's.

        Left to dense attention may be prefills behind, all of them or from one on, if each of those
        attends to all it has.
        """
        step, told = ready.buffers.step, ready.metadata.num_rows
        if not ready.metadata.prefill_to_mha:
            self.lab.expect(told, step.rows, f"rows to compute in {self._where}")
            return
        self.lab.expect(self.shape.force_mqa, False, f"force_mqa, prefills routed, {self._where}")
        frame, topk = ready.frame, self.bench.config.geometry.index_topk
        ends = [sum(step.q_lens[:count]) for count in range(len(step.q_lens) + 1)]
        lengths = step.seq_lens
        allowed = [
            end
            for count, end in enumerate(ends)
            if count >= frame.decodes and end < step.rows and max(lengths[count:]) <= topk
        ]
        self.lab.check(told in allowed, f"rows to compute in {self._where}, prefills routed",
                       got=told, expected=f"one of {allowed}")  # fmt: skip
        if ready.plant and ready.plant.kind.flag:
            raise HistoryError(
                f"fault {ready.fault}", found="a turn whose prefills are left to dense attention",
                allowed="one whose rows are all computed", remedy="take the fault out",
            )  # fmt: skip

    def _count(self, ready: Ready) -> None:
        step, seen = ready.frame.step, self.seen
        seen.frames += 1
        seen.rows += step.rows
        seen.requests += len(ready.frame.requests)
        fault = ready.fault or "none"
        device = self._device if ready.held or self._device != DEVICES[2] else DEVICES[1]
        shape = replace(self.shape, device=device)
        seen.reached.append(values(shape, ready.frame, graph=ready.graph, fault=fault))


def _where(frame: engine.Frame) -> str:
    return f"turn {frame.turn}" + (f", draft step {frame.drafting}" if frame.drafting else "")
