"""A history is one JSON text: the same bytes again, and nothing else is taken for one."""

import json
from dataclasses import replace

import pytest

from fuzz.history import Fault, History, HistoryError, Part, Turn
from fuzz.serving import drawn


@pytest.mark.parametrize("seed", range(40))
def test_the_text_is_the_history(seed: int) -> None:
    history = drawn(seed)
    text = history.dumps()
    assert History.loads(text) == history
    assert History.loads(text).dumps() == text
    assert drawn(seed).dumps() == text


def test_what_is_as_by_default_is_left_out() -> None:
    plain = replace(drawn(0), turns=(Turn((5,), parts=(Part(0, 5),)),))
    table = json.loads(plain.dumps())
    assert table["turns"] == [{"arrive": [5], "parts": [{"queries": 5, "request": 0}]}]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.pop("schema"), "schema: found None"),
        (lambda t: t.update(schema="smla-history/0"), "schema: found 'smla-history/0'"),
        (lambda t: t.update(more=1), "history: found"),
        (lambda t: t.update(seed=-1), "seed: found -1"),
        (lambda t: t.update(seed="1"), r"history.seed: found '1'; allowed: int"),
        (lambda t: t.update(seed=True), r"history.seed: found True; allowed: int"),
        (lambda t: t.pop("shape"), "history: found"),
        (lambda t: t["shape"].update(geo="moon"), "geo: found 'moon'"),
        (lambda t: t["shape"].update(heads=129), "heads: found 129"),
        (lambda t: t["shape"].update(device="never"), "device: found 'never'"),
        (lambda t: t["shape"].pop("lag"), "history.shape: found"),
        (lambda t: t.update(turns={}), r"history.turns: found \{\}; allowed: a list"),
        (lambda t: t["turns"].append(3), "history.turns.*found 3"),
        (lambda t: t["turns"][0].update(padding=99), "padding: found 99"),
        (lambda t: t["turns"][0].update(padding=-1), "padding: found -1"),
        (lambda t: t["turns"][0].update(drafting=10**10), "drafting: found 10000000000"),
        (lambda t: t["turns"][0].update(drafting=-5), "drafting: found -5"),
        (lambda t: t["shape"].update(graphs=[10**12]), "graphs: found"),
        (lambda t: t["shape"].update(graphs=[0]), "graphs: found"),
        (lambda t: t["turns"][0].update(fault={"kind": "garbage-tail", "amount": -200}), "amount"),
        (lambda t: t["turns"][0].update(fault={"kind": "x"}), "fault: found 'x'"),
        (lambda t: t["turns"][0].update(fault={"kind": "low-bound"}), "flag in the last turn"),
    ],
)
def test_anything_else_is_refused(change, says: str) -> None:
    table = json.loads(drawn(1).dumps())
    change(table)
    with pytest.raises(HistoryError, match=says) as problem:
        History.loads(json.dumps(table))
    for part in ("found", "allowed", "to fix"):
        assert part in str(problem.value)


def test_no_json_is_refused() -> None:
    for text in ("", "{", "[]", "3", "[" * 100_000, '{"seed": ' + "9" * 5000 + "}"):
        with pytest.raises(HistoryError):
            History.loads(text)


def test_draft_steps_behind_a_flag_are_refused() -> None:
    last = Turn(drafting=1, fault=Fault("low-bound"))
    with pytest.raises(HistoryError, match="draft steps left out"):
        replace(drawn(1), turns=(Turn(), last)).check()
