"""Isolated calls: finished, crashed and hung are told apart, in bounded time, nothing left over."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from conformance.isolation.child import (
    Call,
    Crashed,
    Finished,
    Hung,
    IsolationError,
    run_isolated,
    run_many,
)

HERE = "conformance.tests.isolation.calls"


def _call(name: str, timeout_s: float = 20.0, **payload: Any) -> Finished | Crashed | Hung:
    return run_isolated(f"{HERE}:{name}", payload, timeout_s=timeout_s)


def test_a_value_comes_back_from_another_process() -> None:
    payload = {"a": [1, 2.5, None], "b": {"c": "ü"}}
    got = run_isolated(f"{HERE}:answer", payload, timeout_s=20, env={"SMLA_TEST_CHILD": "yes"})
    assert isinstance(got, Finished)
    assert got.value["asked"] == payload and got.value["variable"] == "yes"
    assert got.value["pid"] != os.getpid() and got.cuda_error is None


def test_a_crash_names_its_signal_and_place() -> None:
    got = _call("segfault")
    assert isinstance(got, Crashed)
    assert got.signal == "SIGSEGV" and got.returncode == -11
    assert "in segfault" in got.stderr_tail


@pytest.mark.parametrize("status", [0, 1, 70])
def test_leaving_without_a_value_is_a_crash_whatever_the_status(status: int) -> None:
    assert _call("leave", status=status) == Crashed(status, None, "")


@pytest.mark.parametrize(
    ("name", "word"),
    [("wrong", "ValueError: because"), ("not_json", "not JSON"), ("nowhere", "nowhere")],
)
def test_an_exception_is_a_crash_with_its_traceback(name: str, word: str) -> None:
    got = _call(name, why="because")
    assert isinstance(got, Crashed)
    assert got.returncode == 1 and got.signal is None and word in got.stderr_tail


@pytest.mark.parametrize(
    "text", ["CUDA error: an illegal memory access was encountered", "Triton Error [CUDA]: 700"]
)
def test_a_cuda_error_is_told_from_a_crash(text: str) -> None:
    got = _call("cuda", text=text)
    assert got == Finished({"cuda_error": f"RuntimeError: {text}"})
    assert isinstance(got, Finished) and got.cuda_error == f"RuntimeError: {text}"


def test_a_runtime_error_of_something_else_is_a_crash() -> None:
    assert isinstance(_call("cuda", text="shapes differ"), Crashed)


def test_a_cuda_error_that_shows_late_is_the_functions() -> None:
    got = _call("cuda_later")
    assert isinstance(got, Finished) and "illegal memory access" in (got.cuda_error or "")


def test_a_hang_ends_with_all_it_started(tmp_path: Path) -> None:
    pid_file, started = tmp_path / "pid", time.monotonic()
    got = _call("hang", timeout_s=3.0, pid_file=str(pid_file))
    assert isinstance(got, Hung) and got.timeout_s == 3.0
    assert "in hang" in got.stderr_tail
    assert time.monotonic() - started < 15
    _wait_gone(int(pid_file.read_text()))


def test_a_hang_that_holds_the_interpreters_lock_ends() -> None:
    got = _call("hold", timeout_s=2.0)
    assert isinstance(got, Hung) and "in hold" in got.stderr_tail


def test_output_is_bounded_and_its_end_kept() -> None:
    got = _call("shout")
    assert isinstance(got, Crashed)
    assert got.returncode == 3 and len(got.stderr_tail) <= 16384
    assert got.stderr_tail.endswith("the end\n")


def test_many_calls_keep_their_order() -> None:
    calls = [
        Call(f"{HERE}:leave", {"status": 5}, 20.0),
        Call(f"{HERE}:answer", {"n": 1}, 20.0, {"SMLA_TEST_CHILD": "1"}),
        Call(f"{HERE}:segfault", {}, 20.0),
    ]
    first, second, third = run_many(calls, workers=2)
    assert isinstance(first, Crashed) and first.returncode == 5
    assert isinstance(second, Finished) and second.value["variable"] == "1"
    assert isinstance(third, Crashed) and third.signal == "SIGSEGV"


@pytest.mark.parametrize(
    ("target", "payload", "timeout_s", "word"),
    [
        ("no_function", {}, 1.0, "package.module:function"),
        ("a.b:c; import os", {}, 1.0, "package.module:function"),
        (f"{HERE}:answer", {"x": object()}, 1.0, "not JSON"),
        (f"{HERE}:answer", {"x": float("nan")}, 1.0, "not JSON"),
        (f"{HERE}:answer", {1: "x"}, 1.0, "strings as keys"),
        (f"{HERE}:answer", [1], 1.0, "strings as keys"),
        (f"{HERE}:answer", {"x": "y" * (1 << 20)}, 1.0, "bytes"),
        (f"{HERE}:answer", {}, 0.0, "timeout"),
    ],
)
def test_calls_that_cannot_be_made_are_refused(
    target: str, payload: Any, timeout_s: float, word: str
) -> None:
    with pytest.raises(IsolationError, match=word):
        run_isolated(target, payload, timeout_s=timeout_s)


def _wait_gone(pid: int) -> None:
    for _ in range(50):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{pid}/stat").exists() and " Z " in Path(f"/proc/{pid}/stat").read_text():
            return
        time.sleep(0.1)
    raise AssertionError(f"process {pid} is still there")
