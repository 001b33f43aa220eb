"""A golden set is written whole or not at all, and in the place of nothing but a golden set."""

from pathlib import Path

import pytest

pytest.importorskip("click", reason="golden's command line needs click")
pytest.importorskip("safetensors", reason="golden's files need safetensors")

from golden import manifest, store
from golden.manifest import BrokenSet
from golden.tests.damage import case_of, cut, edit
from golden.tests.recipes import FORMATS, small


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
