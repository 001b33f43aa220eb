"""A golden set is held where it is whole, and told apart where it is broken or differs."""

import re

import pytest

pytest.importorskip("click", reason="golden's command line needs click")
pytest.importorskip("safetensors", reason="golden's files need safetensors")

import torch

from golden import manifest
from golden.tests.damage import bit, case_of, cut, edit, forge, halve, no_safetensors, nudge
from golden.tests.recipes import FORMATS


def test_a_whole_set_holds(whole, ask):
    code, said = ask("check", "--data", whole)
    lines = said.splitlines()
    assert code == 0 and [line.split()[:2] for line in lines[:3]] == [
        ["holds", fmt] for fmt in FORMATS
    ]
    assert len(lines) == 4 and "3 cases" in lines[3] and "the set holds" in lines[3]


def test_one_case_can_be_looked_at(whole, ask):
    code, said = ask("check", "--data", whole, "--case", "e4m3")
    assert code == 0 and "1 cases" in said and "bf16" not in said
    code, said = ask("check", "--data", whole, "--case", "e5m2")
    assert code == 3 and "allowed: bf16, e4m3, group" in said


BROKEN = {
    "cut": (cut, "e4m3.safetensors: found .* bytes"),
    "bit": (bit, "e4m3.safetensors: found SHA-256"),
    "missing": (lambda f: (f / "e4m3.safetensors").unlink(), "No such file"),
    "a folder": (
        lambda f: ((f / "e4m3.safetensors").unlink(), (f / "e4m3.safetensors").mkdir()),
        "Is a directory",
    ),
    "no safetensors": (no_safetensors, "no safetensors"),
    "single precision": (
        lambda f: forge(f, "e4m3", lambda t: t.update(out=t["out"].float())),
        "float32.* in the file",
    ),
    "fewer rows": (
        lambda f: forge(f, "e4m3", lambda t: t.update(out=t["out"][1:].clone())),
        "in the file",
    ),
    "more tensors": (
        lambda f: forge(f, "e4m3", lambda t: t.update(more=torch.zeros(1))),
        "in the file",
    ),
    "unlisted": (lambda f: (f / "more.safetensors").touch(), "more.safetensors, unlisted"),
    "no manifest": (lambda f: (f / manifest.NAME).unlink(), "No such file"),
    "half a manifest": (halve, "no JSON"),
    "a list": (lambda f: (f / manifest.NAME).write_text("[]"), "a list; allowed: an object"),
    "schema": (lambda f: edit(f, lambda m: m.update(schema=2)), "schema 2; allowed: 1"),
    "no schema": (lambda f: edit(f, lambda m: m.pop("schema")), r"missing \['schema'\]"),
    "tolerance": (lambda f: edit(f, lambda m: m.update(tolerance=1.0)), "tolerance 1.0"),
    "generator": (lambda f: edit(f, lambda m: m.update(generator="x")), "generator 'x'"),
    "more fields": (lambda f: edit(f, lambda m: case_of(m).update(x=1)), r"unknown \['x'\]"),
    "fewer fields": (
        lambda f: edit(f, lambda m: case_of(m).pop("provenance")),
        r"missing \['provenance'\]",
    ),
    "recipe": (
        lambda f: edit(f, lambda m: case_of(m)["recipe"].update(blocks=0)),
        "blocks.: 0",
    ),
    "another file": (
        lambda f: edit(f, lambda m: case_of(m)["file"].update(name="bf16.safetensors")),
        "allowed: e4m3.safetensors",
    ),
    "twice": (
        lambda f: edit(f, lambda m: m["cases"].append(m["cases"][0])),
        "name 'bf16' twice",
    ),
    "far pair": (
        lambda f: edit(f, lambda m: case_of(m)["kept"].append([4, 0])),
        r"kept \[4, 0\]",
    ),
    "no cases": (lambda f: edit(f, lambda m: m["cases"].clear()), "found no cases"),
    "no output": (lambda f: edit(f, lambda m: case_of(m).update(outputs={})), "in the manifest"),
}


@pytest.mark.parametrize("damage, said", BROKEN.values(), ids=BROKEN)
def test_a_broken_set_is_told(copy, ask, damage, said):
    damage(copy)
    code, text = ask("check", "--data", copy)
    assert code == 3, text
    assert re.search(said, text), text
    assert all(word in text for word in ("found", "allowed", "to fix"))
    for fmt in ("bf16", "group"):  # a broken file hides no other case
        assert "BROKEN" not in text or f"holds    {fmt}" in text


DIFFERS = {
    "out": (lambda f: forge(f, "e4m3", nudge("out", 3, 77, 1e-9)), r"out of row 1 head \d dim 77"),
    "lse": (lambda f: forge(f, "e4m3", nudge("lse", 2, 1, 1e-11)), "lse of row 2 head 1"),
    "nan": (lambda f: forge(f, "e4m3", nudge("out", 0, 0, float("nan"))), r"row 0 .* dim 0.*nan"),
    "swapped": (
        lambda f: forge(f, "e4m3", lambda t: t.update(out=t["out"].flip(0))),
        "out of row",
    ),
    "key": (lambda f: edit(f, lambda m: case_of(m)["recipe"].update(key="x")), "input "),
    "sm_scale": (
        lambda f: edit(f, lambda m: case_of(m)["recipe"].update(sm_scale=0.0800001)),
        "recomputed",
    ),
    "scale": (lambda f: edit(f, lambda m: case_of(m)["recipe"].update(scale=0.7001)), "recomputed"),
    "an input's digest": (
        lambda f: edit(f, lambda m: case_of(m)["inputs"]["q_pe"].update(sha256="0" * 64)),
        "input q_pe",
    ),
    "an input's shape": (
        lambda f: edit(f, lambda m: case_of(m)["inputs"]["topk"].update(shape=[1])),
        "input topk",
    ),
    "an input less": (
        lambda f: edit(f, lambda m: case_of(m)["inputs"].pop("block_table")),
        "input block_table",
    ),
    "an input more": (
        lambda f: edit(f, lambda m: case_of(m)["inputs"].update(x=m["cases"][0]["inputs"]["q_pe"])),
        "input x: found None",
    ),
    "kept": (lambda f: edit(f, lambda m: case_of(m)["kept"].reverse()), "kept outputs"),
}


@pytest.mark.parametrize("forgery, said", DIFFERS.values(), ids=DIFFERS)
def test_a_set_that_differs_is_told(copy, ask, forgery, said):
    forgery(copy)
    code, text = ask("check", "--data", copy)
    assert code == 1, text
    assert re.search(f"DIFFERS  e4m3  .*{said}", text), text
    assert "holds    bf16" in text and "holds    group" in text
    assert all(text.count(word) == 1 for word in ("found", "allowed", "to fix"))


def test_broken_counts_more_than_different(copy, ask):
    forge(copy, "bf16", nudge("out", 0, 0, 1e-6))
    cut(copy)
    assert ask("check", "--data", copy)[0] == 3


def test_a_changed_generator_is_told(whole, ask, monkeypatch):
    from golden import draw

    monkeypatch.setattr(draw, "_LAST_SHIFT", 30)
    code, said = ask("check", "--data", whole)
    assert code == 1 and "input" in said


def test_a_changed_oracle_is_told(whole, ask, monkeypatch):
    from golden import check

    real = check.attend

    def wrong(*arguments, **more):
        golden = real(*arguments, **more)
        golden.out.mul_(1 + 1e-9)
        return golden

    monkeypatch.setattr(check, "attend", wrong)
    code, said = ask("check", "--data", whole)
    assert code == 1 and said.count("DIFFERS") == 3


@pytest.mark.parametrize("arguments", [["chekc"], ["check", "--dta", "x"], ["regenerate"]])
def test_what_is_asked_wrongly_ends_with_3(ask, arguments):
    assert ask(*arguments)[0] == 3


def test_a_failure_of_its_own_is_no_difference(whole, ask, monkeypatch):
    from golden import check

    monkeypatch.setattr(check, "draw_inputs", lambda recipe: 1 / 0)
    code, said = ask("check", "--data", whole)
    assert code == 3 and "ZeroDivisionError" in said
