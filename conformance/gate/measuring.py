"""The child of `measure`: constructs one package's subject, times it and watches for waits.

python -m conformance.gate.measuring SUBJECT [VERSION]

SUBJECT is package.module:factory. VERSION: of the FlashInfer that the twin simulates, for a
rehearsal. Questions and answers are JSON lines, see `_Child`.
"""

import dataclasses
import faulthandler
import gc
import importlib
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from conformance import tiers
from conformance.bench.timer import SYNCHRONIZE_EVERY, reason
from conformance.core.blocking import warm_up
from conformance.core.case import Geometry
from conformance.core.worker import load_subject
from conformance.gate.load import Load, Shape
from conformance.gate.talk import answering
from conformance.gate.waiting import PACKAGE, place_of, waited

_MICROSECONDS = 1e6
_LAUNCHES = 20
_REPLAYS = 8


class _Refused(Exception):
    """A step raised; its cause is what the subject or the package said."""

    def __init__(self, stage: str) -> None:
        super().__init__(stage)
        self.stage = stage


class _Child:
    """Answers questions by their `do`; times are asked for on a GPU alone.

    hello: who is here. prepare (shape): construct, run and capture a load, or say what was refused.
    waits: for each call, whether the host waits for the device in it. time (samples): each call's
    median in microseconds. drop: forget the load.
    """

    def __init__(self, subject: str, simulates: str) -> None:
        self.subject = load_subject(subject)
        self.rehearsal = bool(simulates)
        self.tier = tiers.tier("twin", simulates) if simulates else tiers.tier("hopper")
        self.folder = "" if self.rehearsal else _folder()
        self.load: Load | None = None
        self.calls: dict[str, Callable[[], object]] = {}
        self.graph: Any = None
        self.known: dict[str, str] = {}  # calls that wait, and where

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Do what is asked; where the subject or the package raises, the answer is `refused`."""
        does: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "hello": self.hello,
            "prepare": self.prepare,
            "waits": self.waits,
            "time": self.time,
            "drop": self.drop,
        }
        try:
            return does[question["do"]](question)
        except _Refused as refused:
            problem = refused.__cause__
            assert isinstance(problem, Exception)
            frames = [frame for frame, _ in traceback.walk_tb(problem.__traceback__)]
            self.drop(question)
            return {
                "refused": refused.stage,
                "what": reason(problem),
                "cause": place_of(frames[::-1], self.folder),
                "dead": not self.rehearsal and _context_is_dead(),
            }

    def hello(self, _: Mapping[str, Any]) -> dict[str, Any]:
        gpu = "" if self.rehearsal else torch.cuda.get_device_name()
        return {
            "subject": self.subject.name,
            "version": getattr(self.subject, "version", ""),
            "flashinfer": _version(),
            "folder": self.folder,
            "gpu": gpu,
        }

    def prepare(self, question: Mapping[str, Any]) -> dict[str, Any]:
        self.drop(question)
        given = dict(question["shape"])
        shape = Shape(**{**given, "geometry": Geometry(**given["geometry"])})
        clock = None
        if self.tier.clock is not None and "clock" in self.subject.capabilities:
            clock = self.tier.clock(None, "torch")
        self.load = load = _step("construct", lambda: Load(self.subject, self.tier, shape, clock))
        for _ in range(2):
            _step("build", load.replan)
            _step("forward", load.forward)
        _step("forward", load.runtime.synchronize)
        self.calls = {"replan": load.replan}
        _step("build", load.reuse)
        before = load.plans()
        _step("build", load.reuse)
        if before is not None and load.plans() == before:
            self.calls["reuse"] = load.reuse
        self.calls["launch"] = load.forward
        if "capture" in self.subject.capabilities:
            launches = 2 if self.rehearsal else _LAUNCHES
            self.graph = _step("capture", lambda: load.graph(launches))
            _step("capture", self.graph.replay)
            _step("capture", load.runtime.synchronize)
        return {"calls": [*self.calls, *(["kernel"] if self.graph is not None else [])]}

    def waits(self, _: Mapping[str, Any]) -> dict[str, Any]:
        if not self.rehearsal:
            warm_up()
        load, found = self._load(), {}
        for name, call in self.calls.items():
            _step("build", load.reuse)
            known = self.known.get(name)
            look = partial(waited, load, call, self.folder, gpu=not self.rehearsal, known=known)
            found[name] = _step(name, look)
            if found[name]["waits"]:
                self.known[name] = str(found[name]["cause"])
        return {"waits": found}

    def time(self, question: Mapping[str, Any]) -> dict[str, Any]:
        load, taken = self._load(), {}
        for name, call in self.calls.items():
            _step("build", load.reuse)
            samples = 1 if self.rehearsal else int(question["samples"])
            taken[name] = _step(name, partial(_host, load.runtime, call, samples))
        if self.graph is not None:
            _step("build", load.reuse)
            replay = self.graph.replay if self.rehearsal else partial(_device, load, self.graph)
            taken["kernel"] = _step("kernel", replay)
            _step("kernel", load.runtime.synchronize)
        return {"us": {} if self.rehearsal else taken}

    def _load(self) -> Load:
        assert self.load is not None, "prepare comes first"
        return self.load

    def drop(self, _: Mapping[str, Any]) -> dict[str, Any]:
        self.load, self.graph, self.calls = None, None, {}
        gc.collect()
        if not self.rehearsal:
            torch.cuda.empty_cache()
        return {}


def _step(stage: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as problem:  # a stranger's code raises anything
        raise _Refused(stage) from problem


def _host(runtime: Any, call: Callable[[], object], samples: int) -> float:
    call()
    taken = []
    for number in range(samples):
        if number % SYNCHRONIZE_EVERY == 0:
            runtime.synchronize()
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    runtime.synchronize()
    return _MICROSECONDS * statistics.median(taken)


def _device(load: Load, graph: Any) -> float:
    taken: list[float] = []
    for _ in range(_REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _each in range(2))
        begin.record()
        graph.replay()
        end.record()
        load.runtime.synchronize()
        taken.append(float(begin.elapsed_time(end)) * 1e3 / _LAUNCHES)
    return statistics.median(taken)


def _folder() -> str:
    """Where the package is that this process runs."""
    file = importlib.import_module(PACKAGE).__file__
    return str(Path(file or "").resolve().parents[1])


def _version() -> str:
    try:
        return version("flashinfer-python")
    except PackageNotFoundError:
        return ""


def _context_is_dead() -> bool:
    try:
        torch.cuda.synchronize()
    except Exception:
        return True
    return False


def main(subject: str, simulates: str = "") -> None:
    """Answer until no more is asked."""
    faulthandler.enable()
    with answering() as (questions, answers):
        child = _Child(subject, simulates)
        for question in questions:
            answers.write(json.dumps(child.answer(question)) + "\n")


def as_question(shape: Shape) -> dict[str, Any]:
    """A shape as `prepare` takes it."""
    return dataclasses.asdict(shape)


if __name__ == "__main__":
    main(*sys.argv[1:])
