"""Planning a set of inputs with a compiled planner in processes of its own, which may die."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from conformance.gate.bare import plain
from conformance.gate.planner_child import Plan, erase, fresh, read_plans, written
from conformance.gate.planner_inputs import Asked
from conformance.isolation.group import end_group
from conformance.twin import planner
from conformance.twin.errors import NativeError

SECONDS = 60.0
"""For all inputs of a process; a plan takes about a millisecond."""

DEATHS = 3
"""Processes that may die over an input before the rest is left alone."""


def plans_of(library: Path, asked: Sequence[Asked], seconds: float = SECONDS) -> dict[int, Plan]:
    """What a library plans, by index of the input; those left alone after DEATHS are missing."""
    plans: dict[int, Plan] = {}
    for _ in range(DEATHS):
        left = [index for index in range(len(asked)) if index not in plans]
        if not left:
            break
        with tempfile.TemporaryDirectory(prefix="planner-") as folder:
            plans |= _once(Path(folder), library, asked, left, seconds)
    return plans


def _once(
    folder: Path, library: Path, asked: Sequence[Asked], left: Sequence[int], seconds: float
) -> dict[int, Plan]:
    inputs, results = folder / "inputs.json", folder / "results"
    inputs.write_text(
        json.dumps(
            [
                (index, args[:3], args[3:], asked[index].float_bytes)
                for index in left
                for args in [asked[index].given.args]
            ]
        )
    )
    results.touch()
    child = subprocess.Popen(
        [sys.executable, "-m", f"{__package__}.planner_child", library, inputs, results],
        env=plain((), folder / "home"),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    hung = False
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        hung = True
    finally:
        end_group(child)
    plans, at = read_plans(results)
    if hung:
        died = f"did not end within {seconds:g} s"
    elif child.returncode:
        died = f"ended its process ({_how(child.returncode)})"
    else:
        return plans
    # Between two inputs the one before is to blame: it left something behind.
    blamed = at if at is not None else max(plans, default=left[0])
    return {**plans, blamed: Plan(died=died)}


def _how(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def plans_of_twin(asked: Sequence[Asked]) -> dict[int, Plan]:
    """What the twin plans, by index of the input."""
    plans: dict[int, Plan] = {}
    memory = fresh()
    staging = torch.from_numpy(memory).view(torch.uint8)
    for index, one in enumerate(asked):
        try:
            info, staged = planner.plan(*one.given.args, staging, one.float_bytes)
        except NativeError as problem:
            plans[index] = Plan(refused=str(problem))
        else:
            plans[index] = written(tuple(info), staged, memory)
            erase(plans[index], memory)
    return plans
