"""The benchmark's statistics, a rehearsal end to end, and its ways out; nothing is timed."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from rich.console import Console

from conformance import cli
from conformance.bench import errors, identity, machine, memory, planning
from conformance.bench.cli import bench_command
from conformance.bench.device import around
from conformance.bench.machine import Machine, Memory
from conformance.bench.results import SCHEMA, Results, cell, ratio
from conformance.bench.shape import TINY, NotServed, Shape
from conformance.bench.stats import percentile, summarize
from conformance.bench.timer import NoTimer, Timed
from conformance.bench.watch import watch
from conformance.bench.wrapper import Wrapper
from conformance.core.run import SuiteError
from conformance.subjects.measured import MeasuredSmla

US = 1e-6
SMALL = ("--max-tokens", "8,256", "--heads", "64", "--steps", "8")


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(bench_command, list(arguments))


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(Console(), tmp_path / "bench.json", True, {}, {})


@pytest.fixture
def where() -> Machine:
    return machine.rehearsal()


def test_medians_p99_and_spread() -> None:
    repeats = [[k * US for k in (1, 2, 3)], [k * US for k in (4, 5, 90)], [k * US for k in (3, 3)]]
    timing = summarize(repeats)
    assert timing.median == pytest.approx(3) and timing.p99 == pytest.approx(90)
    assert [r.median for r in timing.repeats] == pytest.approx([2, 5, 3])
    assert [r.count for r in timing.repeats] == [3, 3, 2]
    assert timing.spread == pytest.approx((5 - 2) / 3)
    told = timing.as_json()
    assert set(told) == {"median_us", "p99_us", "spread", "repeats"}
    assert told["repeats"][1] == {
        "median_us": pytest.approx(5), "p99_us": pytest.approx(90), "count": 3
    }  # fmt: skip
    assert cell(Timed(timing)) == "3.00 (90.0, 100 %)"


@pytest.mark.parametrize(
    ("count", "expected"), [(1, 1), (2, 2), (99, 99), (100, 99), (200, 198), (1000, 990)]
)
def test_percentile_is_a_sample(count: int, expected: int) -> None:
    assert percentile(list(range(count, 0, -1)), 0.99) == expected


def test_ratios_and_sums_need_timings() -> None:
    one, two = Timed(summarize([[1 * US]])), Timed(summarize([[2 * US]]))
    assert ratio(two, one) == pytest.approx(2)
    assert ratio(two, Timed(refused="so")) is None and ratio(None, one) is None
    assert around({"convert": one, "pack": two, "clamp": two}) == pytest.approx(5)
    assert around({"convert": one, "pack": Timed(), "clamp": two}) is None
    assert (cell(None), cell(Timed()), cell(Timed(refused="so"))) == ("", "-", "refused")


def test_a_watched_call_inside_another_counts_once() -> None:
    class Inner:
        def work(self) -> int:
            return 3

    class Outer:
        def __init__(self) -> None:
            self.inner = Inner()

        def work(self) -> int:
            return self.inner.work() + self.inner.work()

    outer = Outer()
    with watch([(outer, "work", "around"), (outer.inner, "work", "inside")]) as spent:
        assert outer.work() == 6
        assert spent.calls == {"around": 1, "inside": 2}
        assert all(seconds >= 0 for seconds in spent.seconds.values())
    assert "work" not in vars(outer) and outer.work() == 6 and spent.calls["around"] == 1


def test_a_rehearsal_runs_everything(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "bench.json"
    result = bench("--rehearse", *SMALL, "--out", str(out))
    assert result.exit_code == 0, result.output
    for part in ("replan", "convert + pack + clamp", "refused: wrapper", "nothing grows: -",
                 "int workspace equal: yes", f"rehearsed; all of it: {out}"):  # fmt: skip
        assert part in result.output, result.output
    told = json.loads(out.read_text())
    assert set(told) == {
        *("schema", "rehearsal", "environment", "options", "sections", "answers", "failures"),
        "exit",
    }
    assert (told["schema"], told["rehearsal"], told["exit"]) == (SCHEMA, True, 0)
    assert told["failures"] == [] and told["environment"]["torch"] == torch.__version__
    assert told["options"]["max_tokens"] == [8, 256]
    answers = told["answers"]
    assert answers.pop(errors.QUESTION) is True
    assert answers == {"int workspace equal": True, "nothing grows": None}
    sections = told["sections"]
    assert set(sections) == {"plan", "split", "device", "write", "memory", "bytes", "error"}
    assert [row["max_tokens"] for row in sections["plan"]] == [8, 256]
    for row in sections["plan"]:
        assert row["replan"] is None and "GPU" in row["wrapper"]["refused"], row
    parts = {row["part"] for row in sections["split"]}
    assert {"native planner", "staging", "upload", "launches", "all of it"} <= parts
    kernels = {(row["cache"], row["kernel"]) for row in sections["device"]}
    assert {("BF16", "attention, padded plan"), ("FP8", "rescale"), ("FP8", "clamp")} <= kernels
    assert sections["bytes"][0]["equal"] is True and sections["bytes"][0]["bytes"] > 1000
    writes = [(row["scaling"], row["head_dim_kpe"]) for row in sections["write"]]
    assert writes == [("tensor", 0), ("group", 0), ("tensor", 64), ("group", 64)]
    for row in sections["write"]:  # read as BF16 and a slot, written as FP8 and its scales
        scales = 16 if row["scaling"] == "group" else 0
        assert row["bytes"] == row["tokens"] * (3 * (512 + row["head_dim_kpe"]) + 8 + scales)
        assert (row["write"], row["copy"], row["copy_by_write"]) == (None, None, None)
    steps = sections["memory"][1]
    assert (steps["plans"], steps["reuses"], steps["before"]) == (5, 15, None)


def test_the_measured_writes_write_every_token_and_the_copy_moves_as_many_bytes(
    where: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for write in where.writes(100):
        launched: list[tuple[str, object]] = []
        launch = write.runtime.launch

        def note(kernel: Any, grid: object, args: tuple[Any, ...], meta: object) -> None:
            launched.append((kernel.name, args[4]))  # noqa: B023 (used in this turn alone)
            launch(kernel, grid, args, meta)  # noqa: B023

        monkeypatch.setattr(write.runtime, "launch", note)
        write.write()
        monkeypatch.undo()
        ((name, cache),) = launched
        assert name == f"write_per_{write.scaling}"
        assert isinstance(cache, torch.Tensor)
        assert cache.shape[2] == 512 + write.head_dim_kpe
        assert int((cache != 0).any(-1).sum()) == 100
        copied = write.copy()
        assert isinstance(copied, torch.Tensor) and copied.nbytes == write.size // 2


def test_only_what_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMLA_REPORT", str(tmp_path / "report"))
    result = bench("--rehearse", "--only", "bytes", "--heads", "16,128")
    assert result.exit_code == 0, result.output
    told = json.loads((tmp_path / "report" / "bench.json").read_text())
    assert [row["heads"] for row in told["sections"].pop("bytes")] == [16, 128]
    assert told["sections"] == {}


@pytest.mark.parametrize("fp8", [False, True])
def test_what_is_measured_is_a_sound_step(where: Machine, fp8: bool) -> None:
    parts = where.construct(where.sized(max_tokens=8, fp8=fp8))
    assert isinstance(parts, MeasuredSmla)
    for calls in (parts.pieces, lambda: parts.attention(8)):
        for call in calls().values():
            call()
    assert parts.state.read_flags() == 0
    native = parts.native([TINY.long] * TINY.rows)
    parts.state.clear_flags()
    for context in (1, TINY.short, TINY.index_topk + 3, TINY.long):
        parts.forward(parts.build(parts.batch([context] * TINY.rows)))
    assert {flag.name for flag in parts.state.read_flags()} <= {"COUNT_ABOVE_FORMULA"}
    assert 0 < int(native.written.sum()) < native.staging.numel()


def test_the_padded_plan_computes_the_same(where: Machine) -> None:
    parts = where.construct(where.sized(max_tokens=8))
    assert isinstance(parts, MeasuredSmla)
    outputs = []
    for call in parts.attention(8).values():
        parts._world.out.fill_(torch.nan)
        call()
        outputs.append(parts._world.out.clone())
    torch.testing.assert_close(outputs[0], outputs[1], rtol=2e-2, atol=2e-2)


def test_without_a_hopper_gpu_it_ends_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine.gpus, "visible_capabilities", lambda: [(8, 0)])
    out = tmp_path / "bench.json"
    result = bench("--out", str(out))
    assert result.exit_code == 2 and not out.exists()
    assert "capability 9.0" in result.output and "8.0" in result.output, result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("--only", "speed"),
        ("--only", "plan,,bytes"),
        ("--heads", "129"),
        ("--heads", "0"),
        ("--max-tokens", "many"),
        ("--max-tokens", "0"),
        ("--steps", "0"),
        ("--repeats", "3"),
    ],
    ids=" ".join,
)
def test_what_is_asked_wrongly_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    result = bench("--rehearse", *arguments)
    assert result.exit_code == 2 and "Usage" in result.output, "click's 2; the command line's is 3"


def test_the_command_line_ends_with_3_on_a_wrong_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["conformance", "bench", "--rehearse", "--only", "speed"])
    with pytest.raises(SystemExit) as stop:
        cli.entry()
    assert stop.value.code == 3


def test_a_difference_ends_with_1(
    results: Results, where: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = MeasuredSmla.workspace

    def off_by_one(self: MeasuredSmla) -> torch.Tensor:
        read = workspace(self)
        read[self.state.layout.offsets["kv_end"]] += 1
        return read

    monkeypatch.setattr(MeasuredSmla, "workspace", off_by_one)
    identity.measure(where, results, (64,))
    assert results.answers == {identity.QUESTION: False} and results.exit == 1


def test_bytes_that_the_planner_leaves_alone_do_not_count(
    results: Results, where: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = MeasuredSmla.workspace

    def garbage_behind(self: MeasuredSmla) -> torch.Tensor:
        read = workspace(self)
        read[self.state.layout.offsets["kv_end"] + 4 * 16000] += 1
        return read

    monkeypatch.setattr(MeasuredSmla, "workspace", garbage_behind)
    identity.measure(where, results, (64,))
    assert results.answers == {identity.QUESTION: True} and results.exit == 0


def now(*states: Memory) -> Callable[[], Memory]:
    return iter(states).__next__


@pytest.mark.parametrize(
    ("after", "code"),
    [
        (Memory(50, 90, 70), 0),
        (Memory(40, 99, None), 0),
        (Memory(51, 90, 70), 1),
        (Memory(50, 90, 70 + 20 * (1 << 20)), 0),
        (Memory(50, 90, 71 + 20 * (1 << 20)), 1),
    ],
)
def test_growth_ends_with_1(results: Results, where: Machine, after: Memory, code: int) -> None:
    states = [Memory(10, 90, 70), Memory(50, 90, 70), Memory(50, 90, 70), after]
    memory.measure(replace(where, memory=now(*states)), results, 4)
    assert results.answers == {memory.QUESTION: code == 0} and results.exit == code
    assert results.sections["memory"][0]["taken"] == 40


def test_a_measure_that_fails_is_told_and_ends_with_2(tmp_path: Path, monkeypatch: Any) -> None:
    def refuse(self: MeasuredSmla, padded_rows: int) -> None:
        raise RuntimeError("no\n  such kernel")

    monkeypatch.setattr(MeasuredSmla, "attention", refuse)
    out = tmp_path / "bench.json"
    result = bench("--rehearse", *SMALL, "--only", "device,bytes", "--out", str(out))
    assert result.exit_code == 2, result.output
    assert "failed: device, FP8, 64 heads, attention: RuntimeError: no such kernel" in result.output
    told = json.loads(out.read_text())
    assert len(told["failures"]) == 2 and told["exit"] == 2
    assert {row["kernel"] for row in told["sections"]["device"]} >= {"clamp", "convert"}
    assert told["answers"] == {identity.QUESTION: True}, "what comes after is measured"


def test_a_call_that_raises_is_refused_and_the_others_go_on() -> None:
    ran: list[str] = []

    def refuse() -> None:
        raise ValueError("rows and\nheads")

    calls: dict[str, Callable[[], object]] = {"bad": refuse, "good": lambda: ran.append("good")}
    timed = NoTimer().host(SimpleNamespace(), calls)
    assert timed == {"bad": Timed(refused="ValueError: rows and heads"), "good": Timed()}
    assert ran == ["good", "good"]


def test_a_wrapper_that_refuses_a_size_ends_nothing(results: Results, where: Machine) -> None:
    def wrapper(shape: Shape, device: torch.device) -> Any:
        def planning(contexts: list[int]) -> Callable[[], None]:
            def plan() -> None:
                if shape.max_tokens > 100:
                    raise ValueError("too many rows")

            return plan

        return SimpleNamespace(planning=planning)

    planning.measure(replace(where, wrapper=wrapper), results, (64,), (64, 128))
    rows = results.sections["plan"]
    assert [row["wrapper"] for row in rows] == [None, {"refused": "ValueError: too many rows"}]
    assert results.failures == [] and results.exit == 0


def test_an_unwritable_file_is_told(where: Machine, results: Results, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    results.out = tmp_path / "file" / "bench.json"
    with pytest.raises(SuiteError, match="file"):
        results.write()


class OldWrapper:
    """FlashInfer's wrapper as it was before its metadata had a type of its own."""

    def __init__(self, floats: torch.Tensor, **buffers: Any) -> None:
        self.buffers, self.planned = buffers, list[dict[str, Any]]()

    def plan(self, **given: Any) -> None:
        self.planned.append(given)


class Csr:
    """FlashInfer's type of metadata."""

    @classmethod
    def csr(cls, **given: torch.Tensor) -> dict[str, torch.Tensor]:
        return given


@pytest.mark.parametrize("metadata", [None, Csr])
def test_the_wrapper_is_planned_with_all_padded_rows(metadata: Any) -> None:
    mla = SimpleNamespace(BatchMLAPagedAttentionWrapper=OldWrapper)
    if metadata is not None:
        mla.MLAPlanMetadata = metadata
    shape = replace(TINY, max_tokens=6)
    wrapper = Wrapper(shape, torch.device("cpu"), mla)
    wrapper.planning([20, 150, 127])()
    (given,) = wrapper._wrapper.planned
    assert ("query_layout" in given) is (metadata is not None)
    csr = given if metadata is None else given["metadata"]
    assert csr["qo_indptr"].tolist() == [0, 1, 2, 3, 3, 3, 3]
    assert csr["kv_len_arr"].tolist() == [20, 130, 127, 0, 0, 0]
    assert csr["kv_indptr"].tolist() == [0, 20, 150, 277, 277, 277, 277]
    assert csr["kv_indices"].numel() == 277
    assert {csr[name].dtype for name in csr if name.startswith(("kv_", "qo_")) and
            isinstance(csr[name], torch.Tensor)} == {torch.int32}  # fmt: skip
    buffers = wrapper._wrapper.buffers
    assert buffers["kv_indptr"].shape == csr["kv_indptr"].shape
    assert csr["kv_indices"].data_ptr() == buffers["kv_indices"].data_ptr()
    assert (buffers["use_cuda_graph"], buffers["backend"]) == (True, "fa3")
    assert (given["num_heads"], given["head_dim_kpe"], given["causal"]) == (64, 0, False)


@pytest.mark.parametrize(
    ("wrong", "code"),
    [(None, 0), ("scaled", 1), ("refused", 0), ("broken", 2), ("invalid", 2)],
)
def test_outputs_beyond_their_bound_end_with_1(
    results: Results, where: Machine, wrong: str | None, code: int
) -> None:
    sound = where.engines()[where.own]

    def engine(inputs: Any) -> torch.Tensor:
        if wrong == "refused" and inputs.recipe.fmt == "e4m3_group":
            raise NotServed("not served")
        if wrong == "invalid":
            raise ValueError("a bug of its own")
        if wrong == "broken":
            raise RuntimeError("no module")
        return sound(inputs) * (1.05 if wrong == "scaled" else 1.0)

    errors.measure(replace(where, engines=lambda: {where.own: engine, "beside": sound}), results)
    assert results.exit == code
    assert results.answers[errors.QUESTION] is {0: True, 1: False, 2: None}[code]
    rows = [row for row in results.sections["error"] if row["engine"] == where.own]
    few = [recipe for recipe in errors.chosen(rehearsal=True)]
    assert {row["case"] for row in rows} == (
        {r.name for r in few} if wrong not in ("broken", "invalid") else set()
    )
    assert sum("refused" in row for row in rows) == (2 if wrong == "refused" else 0)
    beside = [row for row in results.sections["error"] if row["engine"] == "beside"]
    assert len(beside) == len(few) == 6 and all(row["ok"] for row in beside)


def test_every_format_and_all_hard_numbers_are_measured_on_a_gpu() -> None:
    chosen = errors.chosen(rehearsal=False)
    assert {(r.fmt, r.head_dim_kpe) for r in chosen} == {
        (fmt, kpe) for fmt in ("bf16", "e4m3", "e4m3_group") for kpe in (0, 64)
    }
    assert {r.numerics for r in chosen if r.fmt == "e4m3_group"} > {"plain", "dominating"}
