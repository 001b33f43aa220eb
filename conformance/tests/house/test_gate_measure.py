"""The benchmark asks both sides in turn, outlives its children, and finds waits and refusals."""

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conformance.core import gpus
from conformance.core.request import ROOT
from conformance.gate import bare, measure, waiting
from conformance.gate.alternate import SIDES, alternate, figure
from conformance.gate.errors import ResultsError
from conformance.gate.load import Shape
from conformance.gate.measure import REHEARSED, MeasureError, Place
from conformance.gate.measured import Measured, Refusal, Seen, findings
from conformance.gate.model import Change, Finding, Side, Weight
from conformance.gate.talk import ChildDied, Talk
from conformance.twin.clock import Clock

# A child that answers from a script: for each question the next of its answers, the last for ever.
# "die" ends it, "hang" says nothing.
CHILD = """
import json, os, sys, time
script = json.loads(os.environ["SCRIPT"])
log, side = open(os.environ["LOG"], "a"), os.environ["SIDE"]
for line in sys.stdin:
    do = json.loads(line)["do"]
    print(side, do, file=log, flush=True)
    answers = script[do]
    answer = answers.pop(0) if len(answers) > 1 else answers[0]
    if answer == "die":
        sys.stderr.write("a kernel went astray\\n")
        sys.stderr.flush()
        os._exit(9)
    if answer == "hang":
        time.sleep(600)
    print(json.dumps(answer), flush=True)
"""
QUIET = {"waits": False, "cause": ""}
GOOD: dict[str, list[Any]] = {
    "hello": [{"subject": "s", "version": "1", "flashinfer": "x", "folder": "", "gpu": "H200"}],
    "prepare": [{"calls": ["replan", "launch", "kernel"]}],
    "waits": [{"waits": {"replan": QUIET, "launch": QUIET}}],
    "time": [{"us": {"replan": 10.0, "launch": 4.0, "kernel": 50.0}}],
    "drop": [{}],
}
REFUSED = {
    "refused": "build", "what": "ValueError: no", "cause": "flashinfer/a.py: f", "dead": False
}  # fmt: skip
SHAPE = REHEARSED[0]


class Run:
    """A benchmark whose children follow scripts."""

    def __init__(self, tmp_path: Path) -> None:
        self.scratch, self.log = tmp_path, tmp_path / "asked.txt"
        self.log.touch()

    def places(self, scripts: Mapping[str, Mapping[str, Any]]) -> dict[str, Place]:
        return {
            side: Place(
                Side(side, side, side),
                {
                    "SIDE": side,
                    "LOG": str(self.log),
                    "SCRIPT": json.dumps({**GOOD, **scripts.get(side, {})}),
                },
            )
            for side in SIDES
        }

    def __call__(
        self, shapes: tuple[Shape, ...] = (SHAPE,), rounds: int = 3, **scripts: Mapping[str, Any]
    ) -> Measured:
        return measure.measure(
            "m:f",
            self.places(scripts),
            self.scratch,
            shapes=shapes,
            rounds=rounds,
            command=(sys.executable, "-c", CHILD),
        )

    def asked(self, do: str) -> list[str]:
        lines = [line.split() for line in self.log.read_text().splitlines()]
        return [side for side, what in lines if what == do]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def by_key(measured: Measured) -> dict[str, Finding]:
    return {finding.key: finding for finding in measured.findings}


def times(*us: float) -> list[dict[str, Any]]:
    return [{"us": {"replan": value}} for value in us]


def test_the_order_turns_around_each_round_and_a_first_one_does_not_count(run: Run) -> None:
    warm = 1e6
    measured = run(
        rounds=4,
        baseline={"time": times(warm, 10, 10, 20, 10)},
        candidate={"time": times(warm, 20, 30, 30, 11)},
    )
    b, c = SIDES
    assert run.asked("time") == [c, b, b, c, c, b, b, c, c, b]
    (plan,) = measured.figures
    assert plan.name == f"host time of a plan, {SHAPE.label}" and plan.kind == "plan"
    assert (plan.baseline_us, plan.candidate_us) == (10, 25) and plan.rounds == 4
    assert plan.ratio == pytest.approx(1.75) and plan.spread == pytest.approx(3 - 1.1)
    assert plan.where == "H200"


def test_each_call_that_both_sides_have_becomes_a_figure_of_its_kind(run: Run) -> None:
    measured = run(candidate={"time": [{"us": {"launch": 8.0, "kernel": 50.0}}]})
    told = {figure.kind: figure.ratio for figure in measured.figures}
    assert told == {"launch": 2.0, "kernel": 1.0}
    assert all(finding.weight is Weight.NOTE for finding in measured.findings)


def test_waits_of_the_candidate_alone_are_an_objection_with_their_place(run: Run) -> None:
    waits = {"waits": True, "cause": "flashinfer/mla/a.py: W.plan"}
    measured = run(candidate={"waits": [{"waits": {"replan": waits, "launch": QUIET}}]})
    found = by_key(measured)
    assert found["hopper/waits/replan"].weight is Weight.OBJECTION
    assert found["hopper/waits/replan"].cause == "flashinfer/mla/a.py: W.plan"
    assert SHAPE.label in found["hopper/waits/replan"].what
    assert found["hopper/waits/launch"].change is Change.UNCHANGED
    assert "hopper/waits/reuse" not in found, "nobody reused a plan"


@pytest.mark.parametrize(
    ("before", "after", "weight", "change"),
    [
        (False, False, Weight.NOTE, Change.UNCHANGED),
        (True, True, Weight.REVIEW, Change.UNCHANGED),
        (True, False, Weight.NOTE, Change.DELETED),
        (False, True, Weight.OBJECTION, Change.ADDED),
    ],
)
def test_waits_compared(before: bool, after: bool, weight: Weight, change: Change) -> None:
    def one(waits: bool | None) -> dict[str, Any]:
        return {"replan": {"waits": waits, "cause": ""}}

    seen = [
        Seen("a", {"baseline": one(before), "candidate": one(after)}),
        Seen("b", {"baseline": one(None), "candidate": one(True)}),
        Seen("c", {"baseline": one(False)}),
    ]
    (found,) = findings(seen)
    assert (found.weight, found.change) == (weight, change)
    assert found.after.endswith("of 1 shapes"), "what one side did not tell is not compared"


def test_a_wait_at_another_shape_is_a_new_one() -> None:
    yes, no = {"replan": {"waits": True, "cause": ""}}, {"replan": QUIET}
    seen = [
        Seen("large", {"baseline": yes, "candidate": yes}),
        Seen("small", {"baseline": no, "candidate": yes}),
    ]
    (found,) = findings(seen)
    assert found.weight is Weight.OBJECTION and "small" in found.what and "large" not in found.what


def test_a_refusal_on_one_side_and_on_both(run: Run) -> None:
    second = replace(SHAPE, rows=2)
    measured = run(
        shapes=(SHAPE, second),
        baseline={"prepare": [GOOD["prepare"][0], REFUSED]},
        candidate={"prepare": [REFUSED]},
    )
    first, both = (f for key, f in by_key(measured).items() if "/refused/" in key)
    assert first.weight is Weight.OBJECTION and "ValueError: no" in first.what
    assert first.cause == "flashinfer/a.py: f" and first.before == "works"
    assert first.key == "hopper/refused/3-rows-64-heads-bf16-8-reserved"
    assert both.weight is Weight.REVIEW and both.change is Change.UNCHANGED
    assert not measured.figures and run.asked("time") == []


def test_what_works_again_is_no_objection(run: Run) -> None:
    measured = run(baseline={"prepare": [REFUSED]})
    (found,) = (f for key, f in by_key(measured).items() if "/refused/" in key)
    assert found.weight is Weight.NOTE and found.change is Change.DELETED


@pytest.mark.parametrize("do", ["prepare", "waits", "time", "drop"])
def test_a_child_that_dies_is_told_and_the_next_shape_has_a_new_one(run: Run, do: str) -> None:
    second = replace(SHAPE, rows=2)
    once = [*(["die"] if do != "time" else [GOOD["time"][0], "die"]), GOOD[do][0]]
    # A child that is started again begins its script anew, so the second shape dies, too.
    measured = run(shapes=(SHAPE, second), candidate={do: once})
    died = [f for key, f in by_key(measured).items() if "/died/" in key]
    assert [f.key.split("/")[2] for f in died] == [
        "3-rows-64-heads-bf16-8-reserved",
        "2-rows-64-heads-bf16-8-reserved",
    ]
    for found in died:
        assert found.weight is Weight.OBJECTION and "a kernel went astray" in found.what
        assert "exit status 9" in found.what and repr(do) in found.what


def test_a_side_that_dies_thrice_is_asked_no_more(run: Run) -> None:
    shapes = tuple(replace(SHAPE, rows=rows) for rows in range(1, 8))
    measured = run(shapes=shapes, candidate={"prepare": ["die"]})
    assert len(measured.shapes) == 3 and run.asked("prepare").count("candidate") == 3


def test_a_dead_cuda_context_costs_a_child_and_not_the_benchmark(run: Run) -> None:
    dead = {**REFUSED, "what": "AcceleratorError: illegal", "dead": True}
    measured = run(
        shapes=(SHAPE, replace(SHAPE, rows=2)), candidate={"prepare": [dead, GOOD["prepare"][0]]}
    )
    refused = [key for key in by_key(measured) if "/refused/" in key]
    assert len(refused) == 2, "the process that was started anew has its whole script before it"
    assert run.asked("drop") == ["baseline", "baseline"]


def test_a_child_that_says_nothing_is_ended(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_PREPARE_S", 0.5)
    measured = run(candidate={"prepare": ["hang"]})
    (found,) = (f for key, f in by_key(measured).items() if "/died/" in key)
    assert "no answer to 'prepare' within 0.5 s" in found.what


def test_a_child_that_cannot_start_says_why(run: Run) -> None:
    with pytest.raises(MeasureError, match=r"candidate.*went astray.*to fix"):
        run(candidate={"hello": ["die"]})


def test_two_subjects_are_not_compared(run: Run) -> None:
    other = [{**GOOD["hello"][0], "version": "2"}]
    with pytest.raises(MeasureError, match="one subject on both"):
        run(candidate={"hello": other})


def test_another_flashinfer_than_the_one_asked_for_is_not_measured(run: Run) -> None:
    places = run.places({"candidate": {"hello": [{**GOOD["hello"][0], "folder": "/somewhere"}]}})
    places["candidate"] = replace(places["candidate"], folder=run.scratch)
    with pytest.raises(MeasureError, match="found FlashInfer in /somewhere"):
        measure.measure(
            "m:f", places, run.scratch, shapes=(SHAPE,), command=(sys.executable, "-c", CHILD)
        )


def test_alternation_needs_a_round() -> None:
    with pytest.raises(ValueError, match="found 0"):
        alternate(lambda side: side, 0)


def test_one_round_has_no_spread() -> None:
    told = figure("x", "plan", "cpu", [{"baseline": 2.0, "candidate": 3.0}])
    assert (told.ratio, told.spread, told.low) == (1.5, 0.0, 1.5)


def test_one_odd_round_of_seven_does_not_move_the_quartile() -> None:
    rounds = [{"baseline": 1.0, "candidate": ratio} for ratio in (2, 2, 0.1, 2, 2, 2, 9)]
    told = figure("x", "kernel", "gpu", rounds)
    assert (told.ratio, told.low, told.spread) == (2.0, 2.0, 8.9)


def test_what_a_child_prints_is_no_answer(tmp_path: Path) -> None:
    child = (
        "import os, json\n"
        "from conformance.gate.talk import answering\n"
        "with answering() as (questions, answers):\n"
        "    for question in questions:\n"
        "        print('{}')\n"
        "        os.write(1, b'{}\\n')\n"
        "        answers.write(json.dumps({'got': question['do']}) + '\\n')\n"
    )
    with Talk("child", (sys.executable, "-c", child), os.environ, tmp_path) as talk:
        assert talk.ask({"do": "a"}, 120) == {"got": "a"}
        assert talk.ask({"do": "b"}, 120) == {"got": "b"}
        assert "{}" in talk.last_words()


@pytest.mark.parametrize(
    ("ending", "blameless"),
    [("SIGKILL", True), ("SIGSEGV", False), ("SIGABRT", False), ("", True)],
)
def test_who_is_to_blame_for_a_child_that_ends(
    ending: str, blameless: bool, tmp_path: Path
) -> None:
    last = f"os.kill(os.getpid(), signal.{ending})" if ending else "time.sleep(3600)"
    child = f"import os, signal, sys, time\nsys.stdin.readline()\n{last}"
    with Talk("child", (sys.executable, "-c", child), os.environ, tmp_path) as talk:
        with pytest.raises(ChildDied, match=ending or "no answer") as died:
            talk.ask({"do": "a"}, 120 if ending else 1)
        assert died.value.blameless is blameless
        with pytest.raises(ChildDied):  # and whoever asks again learns it at once
            talk.ask({"do": "b"}, 120)


def test_an_answer_that_is_none(tmp_path: Path) -> None:
    child = "import sys; sys.stdin.readline(); print('[1]', flush=True)"
    with (
        Talk("child", (sys.executable, "-c", child), os.environ, tmp_path) as talk,
        pytest.raises(ChildDied, match="in place of an answer"),
    ):
        talk.ask({"do": "a"}, 120)


def test_a_benchmark_is_written_and_read_again(run: Run) -> None:
    measured = run(candidate={"prepare": [REFUSED]})
    again = Measured.of_json(json.loads(measured.text()), "x")
    assert again == measured
    timed = run()
    assert Measured.of_json(json.loads(timed.text()), "x") == timed and timed.figures


@pytest.mark.parametrize("change", [{"schema": "smla-measured/9"}, {"figures": [{}]}, {"more": 1}])
def test_a_file_of_another_form_is_refused(run: Run, change: dict[str, Any]) -> None:
    value = {**json.loads(run().text()), **change}
    with pytest.raises(ResultsError, match="x: found"):
        Measured.of_json(value, "x")
    with pytest.raises(ResultsError, match="x: found schema None"):
        Measured.of_json([value], "x")


def held(act: Callable[[Clock, torch.Tensor], object]) -> dict[str, Any]:
    clock = Clock()
    there = clock.zeros((4,), torch.int32)
    load: Any = SimpleNamespace(runtime=clock, waits=lambda: None)
    return waiting.waited(load, lambda: act(clock, there), "", gpu=False)


def test_a_call_that_waits_is_told_from_one_that_queues() -> None:
    assert held(lambda clock, there: clock.fill(there, 1))["waits"] is False
    assert held(lambda clock, there: clock.read(there))["waits"] is True
    large = torch.zeros(1 << 16, dtype=torch.int32)
    assert held(lambda clock, _: clock.upload(clock.zeros((1 << 16,), torch.int32), large))["waits"]


def test_waits_that_are_counted_and_waits_that_nobody_can_see() -> None:
    counts = iter((3, 3, 3, 4))
    load: Any = SimpleNamespace(
        runtime=SimpleNamespace(synchronize=lambda: None), waits=lambda: next(counts)
    )
    assert waiting.waited(load, lambda: None, "", gpu=False)["waits"] is False
    assert waiting.waited(load, lambda: None, "", gpu=False)["waits"] is True
    load.waits = lambda: None
    assert waiting.waited(load, lambda: None, "", gpu=False)["waits"] is None


def test_a_place_is_one_in_the_package(tmp_path: Path) -> None:
    module = tmp_path / "flashinfer" / "mla.py"
    module.parent.mkdir()
    module.write_text("class W:\n    def plan(self, do):\n        return do()\n")
    space: dict[str, Any] = {}
    exec(compile(module.read_text(), str(module), "exec"), space)  # as an import would
    frames: list[Any] = []

    def look() -> None:
        frame = sys._getframe()
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back  # type: ignore[assignment]

    space["W"]().plan(look)
    assert waiting.place_of(frames, str(tmp_path)) == "flashinfer/mla.py: W.plan"
    assert waiting.place_of(frames, str(tmp_path / "flashinfer")) == "", "nothing of ours is it"
    assert waiting.place_of(frames, "") == ""


def test_the_watch_sees_where_a_thread_stands(tmp_path: Path) -> None:
    module = tmp_path / "flashinfer" / "mla.py"
    module.parent.mkdir()
    module.write_text("def plan(seen):\n    seen.wait(60)\n")
    space: dict[str, Any] = {}
    exec(compile(module.read_text(), str(module), "exec"), space)
    looked = threading.Event()

    with waiting._Watch(str(tmp_path)) as watch:
        threading.Timer(0.5, looked.set).start()
        space["plan"](looked)
    assert watch.place() == "flashinfer/mla.py: plan"


def test_a_child_gets_no_secret_and_finds_its_package_first(tmp_path: Path) -> None:
    caller = {
        "PATH": "/bin",
        "CUDA_VISIBLE_DEVICES": "1",
        "PYTHONPATH": os.pathsep.join(["/subjects", "/other/flashinfer"]),
        "HF_TOKEN": "hunter2",
        "https_proxy": "http://user:hunter2@host",
        "SMLA_TORCH_INDEX": "http://user:hunter2@host",
        "HOME": "/home/somebody",
        "FLASHINFER_WORKSPACE_BASE": "/home/somebody",
    }
    made = bare.environment(tmp_path / "package", tmp_path / "home", caller, {"MORE": "1"})
    assert "hunter2" not in json.dumps(made) and made["HOME"] == str(tmp_path / "home")
    assert made["CUDA_VISIBLE_DEVICES"] == "1" and made["MORE"] == "1" and made["PATH"] == "/bin"
    path = made["PYTHONPATH"].split(os.pathsep)
    assert path[1] == str(tmp_path / "package") and path[2:] == ["/subjects", "/other/flashinfer"]
    other = bare.environment(tmp_path / "package", tmp_path / "home2", caller)
    for name in ("HOME", "XDG_CACHE_HOME", "FLASHINFER_WORKSPACE_BASE"):
        assert made[name] != other[name], "two packages must not share what they build"


SUBJECT = """
import os
from conformance.subjects.smla import SmlaSubject

class Subject(SmlaSubject):
    def construct(self, config, tier, **more):
        if config.fp8 and "NO_FP8" in os.environ:
            raise ValueError("FP8 is not served")
        instance = super().construct(config, tier, **more)
        build = instance.build
        def waiting(batch):
            if "WAITS" in os.environ:
                instance.runtime.read(batch.seq_lens)
            return build(batch)
        instance.build = waiting
        return instance
"""


def test_a_rehearsal_end_to_end_finds_what_one_side_does_alone(tmp_path: Path) -> None:
    (tmp_path / "a_subject.py").write_text(SUBJECT)
    caller = {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(tmp_path)}
    base = bare.environment(tmp_path / "none", tmp_path / "home", caller, {"TRITON_INTERPRET": "1"})
    more = {"WAITS": "1", "NO_FP8": "1"}
    measured = measure.measure(
        "a_subject:Subject",
        {
            "baseline": Place(Side("a", "0.7.2.post1", "a"), base),
            "candidate": Place(Side("b", "0.7.4", "b"), {**base, **more}),
        },
        tmp_path,
        rounds=1,
        rehearse=True,
    )
    found = by_key(measured)
    assert not measured.figures and measured.gpu == "" and measured.subject == "smla"
    assert measured.shapes == tuple(shape.label for shape in REHEARSED)
    assert {key: one.weight for key, one in found.items()} == {
        "hopper/waits/replan": Weight.OBJECTION,
        "hopper/waits/reuse": Weight.OBJECTION,
        "hopper/waits/launch": Weight.NOTE,
        "hopper/refused/3-rows-64-heads-fp8-8-reserved": Weight.OBJECTION,
    }
    refused = found["hopper/refused/3-rows-64-heads-fp8-8-reserved"]
    assert "construct refused: ValueError: FP8 is not served" in refused.after


def test_on_a_gpu_a_package_is_measured_against_itself(tmp_path: Path) -> None:
    if (9, 0) not in gpus.visible_capabilities():
        pytest.skip("no GPU of compute capability 9.0 is visible")
    pytest.importorskip("flashinfer", reason="FlashInfer is not installed")
    folder = Path(import_module("flashinfer").__file__ or "").parents[1]
    variable = os.environ.get(gpus.VARIABLE)
    gpu = {gpus.VARIABLE: gpus.names(variable, gpus.visible_capabilities())[0]}
    place = Place(Side("a", "a", "a"), {**os.environ, "PYTHONPATH": str(ROOT), **gpu}, folder)
    shapes = tuple(s for s in measure.SHAPES if (s.rows, s.heads, s.max_tokens) == (8, 64, 1024))
    smla = "conformance.subjects.smla:SmlaSubject"
    places = dict.fromkeys(SIDES, place)
    measured = measure.measure(smla, places, tmp_path, shapes=shapes, rounds=2)
    assert {one.key: one.weight for one in measured.findings} == dict.fromkeys(
        ("hopper/waits/replan", "hopper/waits/reuse", "hopper/waits/launch"), Weight.NOTE
    )
    kinds = [one.kind for one in measured.figures]
    assert kinds == ["plan", "plan", "launch", "kernel"] * len(shapes)
    assert all(one.baseline_us > 0 and one.candidate_us > 0 for one in measured.figures)


def test_the_shapes_of_a_gpu_are_those_that_serve() -> None:
    shapes = measure.SHAPES
    assert {s.rows for s in shapes} == {8, 64, 256}
    sides = [(s.heads, s.fp8, s.max_tokens) for s in shapes]
    assert {pair[:2] for pair in sides} == {(h, f) for h in (64, 128) for f in (False, True)}
    assert {pair[1:] for pair in sides} == {(f, m) for f in (False, True) for m in (1024, 16384)}
    assert {pair[::2] for pair in sides} == {(h, m) for h in (64, 128) for m in (1024, 16384)}
    assert len({shape.label for shape in shapes}) == len(shapes)


def test_a_refusal_and_a_death_at_one_shape_are_one_finding() -> None:
    seen = Seen("x", refused={"baseline": Refusal("build", "no", "")}, died={"candidate": "gone"})
    (found,) = findings([seen])
    assert found.key == "hopper/died/x" and found.weight is Weight.REVIEW
