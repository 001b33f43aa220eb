"""A golden set: held where it is whole, told apart where it is broken, never half written."""

import json
import shutil
import sys

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
        "input x: drawn None",
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
    assert all(word in text for word in ("allowed", "to fix"))


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
        wrong[2, 1, 5] += 0.1
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
    with pytest.raises(BrokenSet, match="input"):
        _ = [*cases(copy)][1].inputs


def test_the_canonical_set_is_whole_and_that_of_the_recipes():
    entries = manifest.load(store.DATA)
    assert not store.strangers(store.DATA, entries)
    listed = [entry.recipe for entry in entries]
    assert listed[: len(standard.recipes())] == standard.recipes()
    assert sum(path.stat().st_size for path in store.DATA.iterdir()) <= 8e6
    for one in entries:
        outputs = store.read(store.DATA, one)
        assert all(bool(tensor.isfinite().all()) for tensor in outputs.values()), one.recipe.name
        assert {row for row, _ in one.kept} == {*range(one.recipe.rows)}


@pytest.mark.parametrize("name", [f"deepseek-heads8-{fmt}" for fmt in FORMATS])
def test_stored_outputs_are_those_of_plain_python(name):
    """One kept output and its LSE by a loop over tokens and torch's own number formats."""
    import math

    (case,) = [case for case in cases() if case.name == name]
    inputs, recipe = case.inputs, case.recipe
    place, (row, head) = 1, case.stored.kept[1]
    assert recipe.block_size == BLOCK
    stored = inputs.cache.data.view(-1, inputs.cache.row_bytes)
    q = torch.cat([inputs.q_nope[row, head], inputs.q_pe[row, head]]).double().tolist()
    keys, logits = [], []
    for token in inputs.topk[row].tolist():
        if token < 0:
            continue
        block = int(inputs.block_table[inputs.request[row], token // BLOCK])
        slot = block * recipe.block_stride_rows + token % BLOCK
        kind = torch.bfloat16 if recipe.fmt == "bf16" else torch.float8_e4m3fn
        key = stored[slot].view(kind).double().tolist()
        for channel in range(576):
            if inputs.cache.group_scales is not None and channel < 512:
                key[channel] *= float(inputs.cache.group_scales[slot, channel // 128])
            else:
                key[channel] *= recipe.scale
        keys.append(key)
        logits.append(recipe.sm_scale * math.fsum(a * b for a, b in zip(q, key, strict=True)))
    top = max(logits)
    total = math.fsum(math.exp(s - top) for s in logits)
    assert float(case.stored.lse[row, head]) == pytest.approx(top + math.log(total), rel=1e-13)
    for channel in (0, 127, 128, 300, 511):
        terms = [math.exp(s - top) * key[channel] for s, key in zip(logits, keys, strict=True)]
        expected = math.fsum(terms) / total
        assert float(case.stored.out[place, channel]) == pytest.approx(expected, rel=1e-12)


def test_the_manifest_tells_of_inputs_as_they_are_drawn():
    (case,) = [case for case in cases() if case.name == "glm-kpool4-heads8-group"]
    for name, tensor in case.inputs.tensors().items():
        assert case.entry.inputs[name].sha256 == digest(tensor)
