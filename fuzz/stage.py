"""The stage of a history: what it needs on the device, and how a frame is put there and queued."""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from conformance.core import bench as benches
from conformance.core.case import Step
from conformance.core.inputs import StepInputs
from conformance.core.lab import Lab
from conformance.core.subject import Unobservable
from fuzz.engine import Frame
from fuzz.history import MOST_PADDING, Fault, Shape
from fuzz.plant import Plant


@dataclass
class Ready:
    """A frame with buffers of its own on the device. table: int32 [requests, blocks], physical.

    metadata: the subject's, None where it was refused as it must be. built: whether the subject
    came to the end of its build. held: whether the device was, meanwhile. dummy: no engine made it.
    """

    frame: Frame
    inputs: StepInputs
    table: Tensor
    buffers: benches.Frame
    graph: bool = False
    plant: Plant | None = None
    metadata: Any = None
    built: bool = False
    held: bool = False
    dummy: bool = False

    @property
    def fault(self) -> str:
        """The kind of fault that is planted in it, empty for none."""
        return self.plant.fault.kind if self.plant else ""


class Stage:
    """A subject on its bench, and the buffers that captured graphs read.

    later: whether the twin's device has a time of its own. graphs: captured so far, by rows. built:
    the frame that was built last. latest: the one before, unless it was refused; the player says.
    unplanted: why faults were left out.
    """

    def __init__(self, lab: Lab, shape: Shape, *, later: bool) -> None:
        self.lab, self.shape = lab, shape
        self.graphs: dict[int, Any] = {}
        self.built: Ready | None = None
        self.latest: Ready | None = None
        self.unplanted: list[str] = []
        if shape.graphs:
            lab.needs("capture")
        slots, longest = shape.slots, shape.longest
        rows = max([shape.budget + MOST_PADDING, *shape.graphs])
        room = Step((1,) * slots, (longest,) * slots, (longest,) * slots, rows)
        self.bench: benches.Bench = lab.bench(room, clock=later)
        self._world = self.bench.world
        self._pool = self._world.block_table.flatten()
        self._width = self._world.block_table.shape[1]
        inputs = self._world.draw_step(room, label="room")
        self._shared = self.bench.frame(room, inputs, self._world.block_table)

    def prepared(self, frame: Frame, fault: Fault | None, *, graph: bool) -> Ready:
        """Draw a frame and put it on the device, ready to be queued."""
        table = self._pool[torch.tensor(frame.table, dtype=torch.int64)].to(torch.int32)
        self._world.block_table = table
        inputs = self._world.draw_step(frame.step, label=f"{frame.turn} {frame.drafting}")
        plant = None
        step, given = frame.step, inputs
        if fault:
            plant = self._planted(fault, frame, inputs)
        if plant:
            step, given = plant.step, plant.inputs
        buffers = self.bench.frame(step, given, table)
        if plant and plant.is_("untold-split"):
            buffers = replace(buffers, batch=replace(buffers.batch, adaptive=False))
        return Ready(frame, inputs, table, buffers, graph, plant)

    def _planted(self, fault: Fault, frame: Frame, inputs: StepInputs) -> Plant | None:
        before = self.latest.frame.step if self.latest else None
        graphs, drafts = tuple(self.graphs), self.shape.drafts
        try:
            return Plant(fault, self.lab, self.bench, frame.step, inputs, graphs, before, drafts)
        except Unobservable as problem:
            self.unplanted.append(f"{fault.kind}: {problem}")
            return None

    def dummy(self, frame: Frame) -> Ready:
        """Make what engines warm up with: requests of one token, all of them in slot 0."""
        count = min(self.shape.slots, len(frame.requests))
        ones = (1,) * count
        step, table = Step(ones, ones, ones, count), torch.zeros_like(self._pool[:count, None])
        table = table.to(torch.int32).expand(-1, self._width).contiguous()
        self._world.block_table = table
        inputs = self._world.draw_step(step, label=f"{frame.turn} warm-up")
        owner = replace(frame, step=step, requests=frame.requests[:count])
        return Ready(owner, inputs, table, self.bench.frame(step, inputs, table), dummy=True)

    def step(self, ready: Ready) -> Any:
        """Build and queue a frame as it stands; return its metadata."""
        buffers, plant = self._copied(ready), ready.plant
        if plant and plant.is_("skipped-plan") and self.latest:
            metadata = self.latest.metadata
        else:
            metadata = self.bench.instance.build(buffers.batch)
        ready.built, ready.metadata, self.built = True, metadata, ready
        if not ready.graph:
            layer = plant.layer if plant else None
            if layer and layer.first:
                layer.bench.launch(layer.buffers, metadata)
            aside = plant is not None and plant.is_("second-stream")
            with self.bench.aside() if aside else nullcontext():
                self.bench.launch(buffers, metadata)
            if layer and not layer.first:
                layer.bench.launch(layer.buffers, metadata)
            return metadata
        size = buffers.step.padded_rows
        size = plant.graph_size(size) if plant else size
        if size not in self.graphs:
            with self.bench.runtime.capture() as recorded:
                self.bench.launch(self._shared_rows(buffers, size), metadata)
            self.graphs[size] = recorded
        self.graphs[size].replay()
        self.bench.later(ready.buffers.out.copy_, buffers.out)
        return metadata

    def _copied(self, ready: Ready) -> benches.Frame:
        """Queue copies into the buffers that graphs read; return the frame as it is to be built.

        Where graphs are captured every build names the block table that they read.
        """
        mine, shared = ready.buffers, self._shared.batch
        if not self.shape.graphs:
            return mine
        names = ["block_table"]
        if ready.graph:
            size = mine.step.padded_rows
            names += ["query_start_loc", "seq_lens"]
            own, mine = mine, self._shared_rows(mine, size)
            for name in ("q_nope", "q_pe", "topk", "out"):
                self.bench.later(getattr(mine, name).copy_, getattr(own, name))
        if ready.plant and ready.plant.is_("moved-table"):
            return mine
        batch = mine.batch
        for name in names:
            source: Tensor = getattr(batch, name)
            target = getattr(shared, name)[: source.shape[0]]
            self.bench.later(target.copy_, source)
            batch = replace(batch, **{name: target})
        return replace(mine, batch=batch)

    def _shared_rows(self, frame: benches.Frame, size: int) -> benches.Frame:
        rows = {n: getattr(self._shared, n)[:size] for n in ("q_nope", "q_pe", "topk", "out")}
        return replace(frame, **rows)
