"""A golden set: held where it is whole, told apart where it is broken, never half written."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("click", reason="golden's command line needs click")
pytest.importorskip("safetensors", reason="golden's files need safetensors")

from safetensors.torch import load_file, save

from golden import manifest, standard, store
from golden.canonical import cases
from golden.cli import entry
from golden.inputs import digest
from golden.manifest import BrokenSet
from golden.tests.cases import BLOCK
from golden.tests.recipes import FORMATS, small


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """A set of three small cases, never to be changed."""
    folder = tmp_path_factory.mktemp("golden") / "set"
    store.write_set(folder, [small(fmt, name=fmt) for fmt in FORMATS])
    return folder


@pytest.fixture
def copy(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "set")


@pytest.fixture
def ask(monkeypatch, capsys):
    """A function from arguments to (exit code, what was said)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["golden", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            entry()
        said = capsys.readouterr()
        return left.value.code, said.out + said.err

    return run


def edit(folder, change):
    """Change the manifest's JSON by a function."""
    path = folder / manifest.NAME
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


def forge(folder, name, change):
    """Change a file's tensors, and the manifest with it, as one who wants to be believed."""
    path = folder / f"{name}.safetensors"
    tensors = load_file(path)
    change(tensors)
    content = save(tensors)
    path.write_bytes(content)

    def record(found):
        import hashlib

        for case in found["cases"]:
            if case["file"]["name"] == path.name:
                case["file"] |= {
                    "bytes": len(content),
                    "sha256": hashlib.sha256(content).hexdigest(),
                }

    edit(folder, record)


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


def cut(folder):
    path = folder / "e4m3.safetensors"
    path.write_bytes(path.read_bytes()[:-8])


def bit(folder):
    path = folder / "e4m3.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))


def no_safetensors(folder):
    import hashlib

    path = folder / "e4m3.safetensors"
    content = b"\xff" * 64
    path.write_bytes(content)
    file = {"name": path.name, "bytes": 64, "sha256": hashlib.sha256(content).hexdigest()}
    edit(folder, lambda found: found["cases"][1].update(file=file))


def halve(folder):
    path = folder / manifest.NAME
    path.write_text(path.read_text()[:-100])


def case_of(found):
    return found["cases"][1]


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
    import re

    damage(copy)
    code, text = ask("check", "--data", copy)
    assert code == 3, text
    assert re.search(said, text), text
    assert all(word in text for word in ("found", "allowed", "to fix"))
    for fmt in ("bf16", "group"):  # a broken file hides no other case
        assert "BROKEN" not in text or f"holds    {fmt}" in text


def nudge(name, row, column, relative):
    def change(tensors):
        tensors[name][row, column] *= 1 + relative

    return change


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
    import re

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


def test_regenerated_sets_are_equal_bytes_by_bytes(whole, tmp_path, ask):
    code, said = ask("regenerate", "--data", whole, tmp_path / "deep" / "again")
    assert code == 0 and "3 cases" in said
    names = {path.name for path in whole.iterdir()}
    assert {path.name for path in (tmp_path / "deep" / "again").iterdir()} == names
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["again"]
    for name in names - {manifest.NAME}:
        assert (whole / name).read_bytes() == (tmp_path / "deep" / "again" / name).read_bytes()
    for one, other in zip(manifest.load(whole), manifest.load(tmp_path / "deep" / "again"),
                          strict=True):  # fmt: skip
        assert one == other


def test_a_set_is_replaced_by_itself(copy, ask):
    cut(copy)
    assert ask("check", "--data", copy)[0] == 3
    assert ask("regenerate", "--data", copy, copy)[0] == 0
    assert ask("check", "--data", copy)[0] == 0
    assert [path.name for path in copy.parent.iterdir()] == ["set"]


@pytest.mark.parametrize("target", ["same", "new"])
def test_nothing_is_half_written(copy, tmp_path, monkeypatch, target):
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    real, made = store.make, []

    def stops(recipe):
        made.append(recipe)
        if len(made) == 2:
            raise KeyboardInterrupt
        return real(recipe)

    monkeypatch.setattr(store, "make", stops)
    into = copy if target == "same" else tmp_path / "new"
    with pytest.raises(KeyboardInterrupt):
        store.write_set(into, [small(fmt, name=fmt) for fmt in FORMATS])
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


STRANGERS = {
    "a file": lambda f: (f / "mine.txt").write_text("mine"),
    "a hidden file": lambda f: (f / ".mine").write_text("mine"),
    "a folder": lambda f: (f / "mine").mkdir(),
    "a case's folder": lambda f: (
        (f / "bf16.safetensors").unlink(),
        (f / "bf16.safetensors").mkdir(),
        (f / "bf16.safetensors" / "mine.txt").write_text("mine"),
    ),
    "a listed text": lambda f: (
        (f / "mine.txt").write_text("mine"),
        edit(f, lambda m: case_of(m)["file"].update(name="mine.txt")),
    ),
    "another manifest": lambda f: (f / manifest.NAME).write_text('{"name": "an app"}'),
    "no JSON": lambda f: (f / manifest.NAME).write_text("<manifest/>"),
    "a list": lambda f: (f / manifest.NAME).write_text("[]"),
    "schema": lambda f: edit(f, lambda m: m.update(schema=2)),
    "generator": lambda f: edit(f, lambda m: m.update(generator="x")),
    "other cases": lambda f: edit(f, lambda m: m.update(cases=[1, {}, {"file": {"name": 2}}])),
}


@pytest.mark.parametrize("change", STRANGERS.values(), ids=STRANGERS)
def test_what_is_no_set_is_not_replaced(copy, whole, ask, change):
    change(copy)
    before = {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()}
    code, said = ask("regenerate", "--data", whole, copy)
    assert code == 3 and all(word in said for word in ("found", "allowed", "to fix")), said
    assert {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()} == before
    assert [path.name for path in copy.parent.iterdir()] == ["set"]


REPLACED = {
    "cut": cut,
    "missing": lambda f: (f / "e4m3.safetensors").unlink(),
    "recipe": lambda f: edit(f, lambda m: case_of(m)["recipe"].update(blocks=0)),
    "tolerance": lambda f: edit(f, lambda m: m.update(tolerance=1.0)),
    "no cases": lambda f: (
        [path.unlink() for path in f.glob("*.safetensors")],
        edit(f, lambda m: m["cases"].clear()),
    ),
}


@pytest.mark.parametrize("damage", REPLACED.values(), ids=REPLACED)
def test_a_broken_set_is_replaced(copy, whole, ask, damage):
    damage(copy)
    assert ask("regenerate", "--data", whole, copy)[0] == 0
    assert ask("check", "--data", copy)[0] == 0
    assert [path.name for path in copy.parent.iterdir()] == ["set"]


def test_a_file_that_comes_while_a_set_is_made_stays(copy, monkeypatch):
    real = store.make

    def make(recipe):
        (copy / "mine.txt").write_text("mine")
        return real(recipe)

    monkeypatch.setattr(store, "make", make)
    with pytest.raises(BrokenSet, match=r"mine\.txt"):
        store.write_set(copy, [small()])
    assert (copy / "mine.txt").read_text() == "mine" and len(manifest.load(copy)) == 3
    assert [path.name for path in copy.parent.iterdir()] == ["set"]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("at", [1, 2])
def test_an_old_set_comes_back_where_the_new_one_cannot_take_its_place(copy, monkeypatch, stop, at):
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    real, renamed = Path.rename, []

    def rename(path, target):
        renamed.append(path)
        if len(renamed) == at:
            raise stop("here")
        return real(path, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(stop):
        store.write_set(copy, [small()])
    assert len(renamed) == {1: 1, 2: 3}[at]
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before
    assert [path.name for path in copy.parent.iterdir()] == ["set"]


def test_an_old_set_that_cannot_come_back_is_not_deleted(copy, monkeypatch):
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    real, renamed = Path.rename, []

    def rename(path, target):
        renamed.append(path)
        if len(renamed) > 1:
            raise OSError("here")
        return real(path, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(OSError, match="here"):
        store.write_set(copy, [small()])
    (kept,) = copy.parent.iterdir()
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == before


def test_a_set_without_cases_is_not_written(copy, tmp_path):
    for folder in (copy, tmp_path / "new"):
        with pytest.raises(BrokenSet, match="no recipes"):
            store.write_set(folder, [])
    assert len(manifest.load(copy)) == 3 and [p.name for p in tmp_path.iterdir()] == ["set"]


def test_a_link_to_a_set_stays_one(copy, tmp_path):
    (tmp_path / "link").symlink_to(copy)
    store.write_set(tmp_path / "link", [small()])
    assert (tmp_path / "link").is_symlink() and len(manifest.load(copy)) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"link", "set"}


@pytest.fixture
def canonical(copy, monkeypatch):
    """A set that stands where the canonical one does, and of the standard recipes."""
    recipes = [entry.recipe for entry in manifest.load(copy)]
    monkeypatch.setattr(store, "DATA", copy)
    monkeypatch.setattr(standard, "recipes", lambda: recipes)
    return copy


def drop(folder):
    """Take a case out of the set without a trace."""
    (folder / "e4m3.safetensors").unlink()
    edit(folder, lambda m: m["cases"].pop(1))


def exchange(folder):
    """Put another case of the name in the place of one, whole by itself."""
    drop(folder)
    store.append(folder, small("e4m3", name="e4m3", contexts=[7, 8, 9]))


def test_the_canonical_set_has_every_standard_case(canonical, whole, ask):
    assert ask("check", "--data", canonical)[0] == 0
    store.append(canonical, small(name="mine"))
    code, said = ask("check", "--data", canonical)
    assert code == 0 and "holds    mine" in said
    drop(canonical)
    code, said = ask("check", "--data", canonical)
    assert code == 3 and "BROKEN   e4m3  e4m3: found no such case; allowed: " in said
    assert "holds    bf16" in said and "holds    group" in said and "to fix" in said
    assert ask("check", "--data", whole)[0] == 0


@pytest.mark.parametrize("options", [[], ["--case", "e4m3"]], ids=str)
def test_a_standard_case_that_was_exchanged_is_told(canonical, ask, options):
    exchange(canonical)
    code, said = ask("check", "--data", canonical, *options)
    assert code == 3 and "BROKEN   e4m3  e4m3: found contexts [7, 8, 9]; allowed: " in said
    assert "holds    e4m3" not in said and "to fix" in said


def test_other_sets_have_the_cases_they_have(copy, ask):
    exchange(copy)
    assert ask("check", "--data", copy)[0] == 0


def test_what_is_checked_by_itself_is_the_canonical_set():
    from golden import cli

    assert cli._DATA == store.DATA


def test_other_folders_are_left_alone(tmp_path, whole, ask):
    (tmp_path / "mine.txt").write_text("mine")
    code, said = ask("regenerate", "--data", whole, tmp_path)
    assert code == 3 and "files but no manifest" in said
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_case_is_added(copy, tmp_path, ask):
    toml = tmp_path / "mine.toml"
    toml.write_text('name = "mine"\ncontexts = [5]\nq_lens = [5]\nnumerics = "negative"\n')
    code, said = ask("add", "--data", copy, "--like", "group", toml)
    assert code == 0 and "added mine" in said
    code, said = ask("check", "--data", copy)
    assert code == 0 and "holds    mine" in said and "4 cases" in said
    added = manifest.load(copy)[-1].recipe
    assert (added.fmt, added.key, added.row_contexts) == ("e4m3_group", "mine", [1, 2, 3, 4, 5])
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    code, said = ask("add", "--data", copy, "--like", "group", toml)
    assert code == 3 and "a case 'mine' already" in said
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before


@pytest.mark.parametrize(
    "text, like, said",
    [
        ("name = ", "group", "correct the file"),
        ('name = "mine"', None, "missing"),
        ('name = "mine"\nheads = 3', "group", "unknown"),
        ('name = "mine"', "none", "no case 'none'"),
        ('name = "mine"\nblocks = 0', "group", "1 or more"),
    ],
)
def test_what_describes_no_case_is_not_added(copy, tmp_path, ask, text, like, said):
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    (tmp_path / "mine.toml").write_text(text)
    options = [] if like is None else ["--like", like]
    code, told = ask("add", "--data", copy, *options, tmp_path / "mine.toml")
    assert code == 3 and said in told and "to fix" in told
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before


def test_an_addition_that_stops_leaves_a_set_that_can_be_added_to(copy, monkeypatch, tmp_path):
    real = store._replace
    written: list[str] = []

    def stops(path, content):
        if written:
            raise KeyboardInterrupt
        written.append(path.name)
        real(path, content)

    monkeypatch.setattr(store, "_replace", stops)
    with pytest.raises(KeyboardInterrupt):
        store.append(copy, small(name="mine"))
    assert written == ["mine.safetensors"] and len(manifest.load(copy)) == 3
    monkeypatch.setattr(store, "_replace", real)
    store.append(copy, small(name="mine"))
    assert len(manifest.load(copy)) == 4 and not store.strangers(copy, manifest.load(copy))


@pytest.mark.parametrize("arguments", [["chekc"], ["check", "--dta", "x"], ["regenerate"]])
def test_what_is_asked_wrongly_ends_with_3(ask, arguments):
    assert ask(*arguments)[0] == 3


def test_a_failure_of_its_own_is_no_difference(whole, ask, monkeypatch):
    from golden import check

    monkeypatch.setattr(check, "draw_inputs", lambda recipe: 1 / 0)
    code, said = ask("check", "--data", whole)
    assert code == 3 and "ZeroDivisionError" in said


def test_a_case_judges_a_kernel(whole):
    for case in cases(whole):
        exact = case.inputs.attend().out
        assert case.judge(exact.bfloat16()).ok
        wrong = exact.clone()
        wrong[2, 1, 5] += 1.0
        verdict = case.judge(wrong)
        assert not verdict.ok and verdict.worst[0][:3] == (2, 1, 5)
        rows, heads = zip(*case.stored.kept, strict=True)
        assert torch.equal(exact[list(rows), list(heads)], case.stored.out)


def test_a_case_judges_nothing_by_other_answers_than_the_stored(copy):
    forge(copy, "e4m3", nudge("out", 3, 77, 1e-9))
    case = [*cases(copy)][1]
    with pytest.raises(BrokenSet, match="from the stored ones"):
        case.judge(case.inputs.attend().out)
    edit(copy, lambda found: case_of(found)["recipe"].update(key="other"))
    with pytest.raises(BrokenSet, match="e4m3, input") as caught:
        _ = [*cases(copy)][1].inputs
    assert all(str(caught.value).count(word) == 1 for word in ("found", "allowed", "to fix"))


def test_a_recipe_in_a_manifest_is_refused_in_one_message(copy):
    edit(copy, lambda found: case_of(found)["recipe"].update(blocks=0))
    with pytest.raises(BrokenSet, match=r"case 'e4m3'.*1 or more each.*version control") as caught:
        manifest.load(copy)
    assert all(str(caught.value).count(word) == 1 for word in ("found", "allowed", "to fix"))


def test_the_canonical_set_is_whole_and_that_of_the_recipes():
    entries = manifest.load(store.DATA)
    assert not store.strangers(store.DATA, entries)
    listed = [entry.recipe for entry in entries]
    assert listed[: len(standard.recipes())] == standard.recipes()
    assert sum(path.stat().st_size for path in store.DATA.iterdir()) < 4e6
    for one in entries:
        outputs = store.read(store.DATA, one)
        assert all(bool(tensor.isfinite().all()) for tensor in outputs.values()), one.recipe.name
        assert {row for row, _ in one.kept} == {*range(one.recipe.rows)}


PLAIN = {  # of each case the context of one row
    **{f"deepseek-heads8-{fmt}": 2049 for fmt in FORMATS},
    "deepseek-heads16-group": 4099,
    "glm-kpool4-heads16-e4m3": 2050,
    "glm-kpool4-bf16-vast": 131073,
    "glm-kpool4-group-vast": 131329,
    "deepseek-e4m3-vast": 131072,
    "cancelling-values-e4m3": 1024,
    "cancelling-values-group": 2048,
    "denormal-bf16": 1024,
    "denormal-e4m3": 66,
    "far-scales-group": 2048,
    "tiny-scale-e4m3": 1024,
}


@pytest.mark.parametrize("name, context", PLAIN.items(), ids=PLAIN)
def test_stored_outputs_are_those_of_plain_python(name, context):
    """One kept output and its LSE by a loop over tokens and torch's own number formats.

    Allowed is a part of sqrt(sum p v^2), for where values cancel nothing else is left.
    """
    import math

    (case,) = [case for case in cases() if case.name == name]
    inputs, recipe = case.inputs, case.recipe
    row = recipe.row_contexts.index(context)
    place = [at for at, _ in case.stored.kept].index(row) + 1
    head = case.stored.kept[place][1]
    assert case.stored.kept[place][0] == row and recipe.block_size == BLOCK
    ckv, width = recipe.head_dim_ckv, recipe.head_dim_ckv + recipe.head_dim_kpe
    stored = inputs.cache.data.view(-1, inputs.cache.row_bytes)
    q = torch.cat([inputs.q_nope[row, head], inputs.q_pe[row, head]]).double().tolist()
    keys, logits = [], []
    for token in inputs.topk[row].tolist():
        if token < 0:
            continue
        assert token < context
        block = int(inputs.block_table[inputs.request[row], token // BLOCK])
        slot = block * recipe.block_stride_rows + token % BLOCK
        kind = torch.bfloat16 if recipe.fmt == "bf16" else torch.float8_e4m3fn
        key = stored[slot].view(kind).double().tolist()
        scales = [recipe.scale] * width
        if inputs.cache.group_scales is not None:
            groups = inputs.cache.group_scales[slot].tolist()
            scales[:ckv] = [groups[channel // 128] for channel in range(ckv)]
        key = [value * scale for value, scale in zip(key, scales, strict=True)]
        keys.append(key)
        logits.append(recipe.sm_scale * math.fsum(a * b for a, b in zip(q, key, strict=True)))
    pooled = recipe.index_topk + context % recipe.index_kpool
    assert len(keys) == (context if context <= recipe.index_topk else pooled)
    top = max(logits)
    weights = [math.exp(s - top) for s in logits]
    total = math.fsum(weights)
    lse = top + math.log(total)
    assert abs(float(case.stored.lse[row, head]) - lse) <= 1e-13 * max(1.0, abs(lse))
    for channel in (0, 127, 128, 300, 511):
        values = [key[channel] for key in keys]
        expected = math.fsum(p * v for p, v in zip(weights, values, strict=True)) / total
        unit = math.sqrt(math.fsum(p * v * v for p, v in zip(weights, values, strict=True)) / total)
        assert unit > 0 and expected != 0
        assert abs(float(case.stored.out[place, channel]) - expected) <= 1e-13 * unit


def test_the_manifest_tells_of_inputs_as_they_are_drawn():
    (case,) = [case for case in cases() if case.name == "glm-kpool4-heads8-group"]
    for name, tensor in case.inputs.tensors().items():
        assert case.entry.inputs[name].sha256 == digest(tensor)
