"""A hardware record's folder is whole or refused; `record` and `replay` say what they found."""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance import cli as commands
from conformance.bench import machine
from conformance.core import environment
from conformance.core.worker import load_subject
from conformance.hardware import cli, files, replay
from conformance.hardware.errors import HardwareError
from conformance.hardware.files import MANIFEST, HardwareRecord, Origin
from conformance.hardware.recording import SceneRecord, record
from conformance.hardware.scenes import SCENES
from conformance.subjects import factory_of
from conformance.tiers import tier
from conformance.twin.semantics import BY_VERSION
from golden import Draw

FEW = tuple(scene for scene in SCENES if scene.name in ("one-token", "no-context", "padded"))
VERSION = "0.7.4"
SPLIT = "no-context.safetensors"


@cache
def recorded() -> dict[str, SceneRecord]:
    subject, where = load_subject(factory_of("smla")), tier("twin", VERSION)
    return {scene.name: record(scene, subject, where) for scene in FEW}


def origin(made_on: str = "hopper", **changes: Any) -> Origin:
    """Where a record of a GPU would be from."""
    gpu = {"name": "NVIDIA H200", "capability": [9, 0], "sms": 132, "driver": "580.159.04"}
    told = {
        **{"python": "3.12.3", "torch": "2.11.0", "cuda": "13.0", "triton": "3.6.0"},
        **{"flashinfer": VERSION, "commit": "f" * 40, "sources": "5" * 64, "gpu": gpu},
    }
    kernel = BY_VERSION[VERSION].fingerprint
    return replace(Origin(made_on, VERSION, kernel, "smla", "0.1.0", told), **changes)


def lacking(*path: str) -> dict[str, Any]:
    """An environment of a GPU without one thing."""
    told = json.loads(json.dumps(origin().environment))
    inner = told
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = None
    return {"environment": told}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole record that says a GPU made it."""
    files.write(HardwareRecord(origin(), recorded()), FEW, tmp_path / "0.7.4")
    return tmp_path / "0.7.4"


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "SCENES", FEW)


def ends_with(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["conformance", *map(str, arguments)])
    monkeypatch.setattr(os, "environ", os.environ.copy())
    with pytest.raises(SystemExit) as stop:
        commands.entry()
    assert isinstance(stop.value.code, int)
    return stop.value.code


def reseal(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Edit a manifest and seal it again, as who means to would."""
    told = json.loads((folder / MANIFEST).read_text())
    del told["seal"]
    edit(told)
    text = json.dumps(told, sort_keys=True, separators=(",", ":"))
    told["seal"] = hashlib.sha256(text.encode()).hexdigest()
    (folder / MANIFEST).write_text(json.dumps(told))


def test_a_record_is_read_as_it_was_written(folder: Path) -> None:
    read = files.read(folder, FEW)
    assert read.origin == origin() and [*read.scenes] == [scene.name for scene in FEW]
    for name, found in recorded().items():
        again = read.scenes[name]
        assert replace(again, tensors={}) == replace(found, tensors={})
        assert {*again.tensors} == {*found.tensors}
        for tensor, value in found.tensors.items():
            assert again.tensors[tensor].dtype == value.dtype
            bits = [t.contiguous().view(torch.int16) for t in (again.tensors[tensor], value)]
            assert bits[0].equal(bits[1]), tensor


def test_equal_records_are_equal_files(folder: Path, tmp_path: Path) -> None:
    files.write(HardwareRecord(origin(), recorded()), FEW, tmp_path / "again")
    for path in folder.iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


def test_the_manifest_tells_where_a_record_is_from(folder: Path) -> None:
    told = json.loads((folder / MANIFEST).read_text())
    assert (told["schema"], told["made_on"], told["flashinfer"]) == (
        files.SCHEMA,
        "hopper",
        VERSION,
    )
    assert told["kernel"] == BY_VERSION[VERSION].fingerprint
    assert told["environment"]["gpu"]["driver"] and told["environment"]["commit"] == "f" * 40
    for name, entry in told["records"].items():
        content = (folder / entry["file"]).read_bytes()
        assert entry["sha256"] == hashlib.sha256(content).hexdigest()
        assert entry["inputs"] == recorded()[name].inputs


def cut(name: str, keep: float) -> Callable[[Path], Any]:
    def damage(folder: Path) -> None:
        path = folder / name
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * keep)])

    return damage


def renamed(old: str, new: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / old).rename(folder / new)


def told(**changes: Any) -> Callable[[Path], Any]:
    return lambda folder: reseal(folder, lambda manifest: manifest.update(changes))


def without_a_tensor(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / SPLIT)
    del tensors["counts"]
    save_file(tensors, folder / SPLIT)
    digest = hashlib.sha256((folder / SPLIT).read_bytes()).hexdigest()
    reseal(folder, lambda manifest: manifest["records"]["no-context"].update(sha256=digest))


def no_safetensors(folder: Path) -> None:
    (folder / SPLIT).write_bytes(b"\xff" * 64)
    digest = hashlib.sha256(b"\xff" * 64).hexdigest()
    reseal(folder, lambda manifest: manifest["records"]["no-context"].update(sha256=digest))


def without_a_call(folder: Path) -> None:
    reseal(folder, lambda manifest: manifest["records"]["padded"]["call"].pop("sm_scale"))


def without_a_hash(folder: Path) -> None:
    reseal(folder, lambda manifest: manifest["records"]["padded"].pop("sha256"))


def another_file(folder: Path) -> None:
    reseal(folder, lambda manifest: manifest["records"]["padded"].update(file=SPLIT))


def another_list(folder: Path) -> None:
    files.write(HardwareRecord(origin(), recorded()), FEW[:-1], folder.parent / "other")
    (folder.parent / "other" / MANIFEST).rename(folder / MANIFEST)


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a scene cut short": (cut(SPLIT, 0.9), f"{SPLIT}.*bytes of SHA-256"),
    "an empty scene": (cut(SPLIT, 0), f"{SPLIT}.*0 bytes of SHA-256"),
    "a missing scene": (lambda f: (f / SPLIT).unlink(), f"{SPLIT}.*no file to read"),
    "a scene of another name": (renamed(SPLIT, "x.safetensors"), "x.safetensors"),
    "a file too many": (lambda f: (f / "notes").touch(), "does not name: notes"),
    "no manifest": (lambda f: (f / MANIFEST).unlink(), "no file to read"),
    "a manifest cut short": (cut(MANIFEST, 0.5), "no JSON"),
    "a manifest that is a list": (lambda f: (f / MANIFEST).write_text("[]"), "schema None"),
    "another schema": (told(schema="smla-hardware-record/0"), "record/0.*record/1"),
    "a manifest without a seal": (
        lambda f: (f / MANIFEST).write_text(
            (f / MANIFEST).read_text().replace('"driver": "580', '"driver": "581')
        ),
        "content of SHA-256",
    ),
    "a field too many": (told(more=1), "fields .*more"),
    "scenes of another commit": (
        told(scenes="0" * 64),
        f"scenes of digest 0000.*commit {'f' * 40}",
    ),
    "another list of scenes": (another_list, "scenes of digest"),
    "a scene left out": (
        lambda f: reseal(f, lambda m: m["records"].pop("padded")),
        r"\['one-token', 'no-context'\]",
    ),
    "an unknown kernel": (told(kernel="0" * 32), "fingerprint 0000.*semantics"),
    "an old version's kernel": (
        told(kernel=BY_VERSION["0.7.0"].fingerprint),
        rf"FlashInfer {VERSION} with .*{BY_VERSION['0.7.0'].fingerprint}, those of 0\.7\.0; "
        rf"allowed: {BY_VERSION[VERSION].fingerprint}",
    ),
    "another version's name": (told(flashinfer="0.6.18"), r"FlashInfer 0\.6\.18 with .*0\.7\.4"),
    "made on something else": (told(made_on="a100"), "made_on: 'a100'; allowed: hopper or twin"),
    "an entry without a hash": (without_a_hash, r"records\.padded\.fields .*sha256"),
    "an entry of another file": (another_file, rf"records\.padded\.file: {SPLIT}"),
    "an environment that is none": (told(environment="H200"), "environment: 'H200'.* an object"),
    "records that are a list": (told(records=[]), r"records: \[\]; allowed: an object"),
    "a manifest nested too deep": (lambda f: (f / MANIFEST).write_text("[" * 99_999), "no JSON"),
    "a tensor left out": (without_a_tensor, "counts"),
    "no safetensors": (no_safetensors, "SafetensorError"),
    "a call without a scale": (without_a_call, "sm_scale"),
    "made on the twin": (told(made_on="twin"), "made on: twin.*rehearsal"),
    "no GPU": (told(**lacking("gpu")), "capability 9.0"),
    "another GPU": (told(**lacking("gpu", "capability")), "capability 9.0"),
    "other SMs": (told(**lacking("gpu", "sms")), "SMs"),
    "no driver": (told(**lacking("gpu", "driver")), "driver"),
    "no CUDA": (told(**lacking("cuda")), "cuda"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_is_refused_with_what_to_do(
    damage: str, folder: Path, few: None, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    do, found = DAMAGES[damage]
    do(folder)
    with pytest.raises(HardwareError, match=rf"(?s){found}") as refused:
        replay.admit(folder, FEW)
    assert all(word in str(refused.value) for word in (": found ", "; allowed: ", "; to fix: "))
    assert ends_with(monkeypatch, "replay", folder) == 3
    assert str(refused.value) in capsys.readouterr().err


def places(value: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    """Where anything stands in a manifest; of its entries, which are alike, in the first alone."""
    inner: Any = ()
    if isinstance(value, dict):
        inner = [*value.items()][:1] if path == ("records",) else value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    for name, one in inner:
        yield (*path, name)
        yield from places(one, *path, name)


def changed(path: tuple[Any, ...], change: Callable[[Any, Any], Any]) -> Callable[[Any], None]:
    """An edit of what holds the last of a path."""

    def edit(manifest: Any) -> None:
        for name in path[:-1]:
            manifest = manifest[name]
        change(manifest, path[-1])

    return edit


def refused(folder: Path, edit: Callable[[Any], None], whole: str) -> bool:
    """Whether a record whose manifest was edited and sealed again is refused, here or later."""
    (folder / MANIFEST).write_text(whole)
    reseal(folder, edit)
    try:
        record = replay.admit(folder, FEW)
        replay.replay_scene(FEW[0], record.scenes[FEW[0].name], BY_VERSION[VERSION])
    except HardwareError as problem:
        return all(word in str(problem) for word in (": found ", "; allowed: ", "; to fix: "))
    return False


NEVER = (2**70, float("nan"), "\ud800")
"""Of the right type, perhaps, but of no use."""
OTHERS: tuple[Any, ...] = (
    *(None, True, False, 7, -1, 1.5, "x", [], ["x"], [[]], [None], {}, {"x": {}}, *NEVER),
)
MAY_BE_NULL = {("environment", name) for name in ("python", "flashinfer", "commit", "sources")}


def test_every_key_of_a_manifest_is_needed(folder: Path) -> None:
    whole = (folder / MANIFEST).read_text()
    every = [path for path in places(json.loads(whole)) if path != ("seal",)]
    assert {("records", "one-token", "call", "scale_array"), ("environment", "gpu", "sms")} <= {
        *every
    }
    for path in every:
        assert refused(folder, changed(path, lambda held, name: held.pop(name)), whole), path


def test_every_value_of_a_manifest_has_its_type(folder: Path) -> None:
    whole = (folder / MANIFEST).read_text()
    for path in places(json.loads(whole)):
        if path == ("seal",):
            continue
        held = json.loads(whole)
        for name in path:
            held = held[name]
        for other in OTHERS:
            same = type(other) is type(held) and not any(other is bad for bad in NEVER)
            null = other is None and path in MAY_BE_NULL
            if same or null:
                continue

            def put(inside: Any, name: Any, other: Any = other) -> None:
                inside[name] = other

            assert refused(folder, changed(path, put), whole), (path, other)


def test_an_environment_is_described_as_a_manifest_must_have_it(tmp_path: Path) -> None:
    here = origin("twin", environment=environment.describe())
    files.write(HardwareRecord(here, recorded()), FEW, tmp_path / "here")
    assert replay.admit(tmp_path / "here", FEW, rehearsal=True).origin == here


def test_a_rehearsal_too_has_its_version_s_kernel(folder: Path) -> None:
    told(made_on="twin", flashinfer="0.7.0")(folder)
    with pytest.raises(HardwareError, match=r"FlashInfer 0\.7\.0 with kernel sources"):
        replay.admit(folder, FEW, rehearsal=True)
    told(flashinfer="0.7.9")(folder)  # no version on record: its sources alone count
    assert replay.admit(folder, FEW, rehearsal=True).origin.flashinfer == "0.7.9"


def test_a_byte_of_any_file_that_was_edited_is_noticed(folder: Path) -> None:
    draw = Draw("test_record_files bytes")
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        for at in {0, len(content) - 1, *(draw.randint(0, len(content)) for _ in range(24))}:
            changed = bytearray(content)
            changed[at] ^= 1 << draw.randint(0, 7)
            path.write_bytes(changed)
            with pytest.raises(HardwareError):
                files.read(folder, FEW)
        path.write_bytes(content)
    files.read(folder, FEW)


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written, save = [], files.save

    def fails(tensors: Any) -> bytes:
        written.append(tensors)
        if len(written) == 3:
            raise OSError("no space left")
        return save(tensors)

    monkeypatch.setattr(files, "save", fails)
    with pytest.raises(OSError, match="no space"):
        files.write(HardwareRecord(origin(), recorded()), FEW, tmp_path / "a" / "b")
    assert [*(tmp_path / "a").iterdir()] == []
    monkeypatch.undo()
    monkeypatch.setattr(files, "MOST_BYTES", 10_000)
    with pytest.raises(HardwareError, match=r"a record of .* bytes; allowed: 10000"):
        files.write(HardwareRecord(origin(), recorded()), FEW, tmp_path / "a" / "b")
    assert [*(tmp_path / "a").iterdir()] == []


def test_a_record_is_small_enough_to_keep_one_for_each_version() -> None:
    """Of each scene at most what leaves room for all in `MOST_BYTES`."""
    sizes = [
        sum(tensor.nbytes for tensor in found.tensors.values()) for found in recorded().values()
    ]
    assert max(sizes) * len(SCENES) < files.MOST_BYTES and files.MOST_BYTES * 4 <= 4_000_000


def test_record_writes_what_replay_reads(
    few: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    out = tmp_path / "made" / "record"
    asked = ("record", "--tier", "twin", "--flashinfer", VERSION, "--out", out)
    assert ends_with(monkeypatch, *asked) == 0
    said = capsys.readouterr().out
    assert f"recorded FlashInfer {VERSION} on the twin: no evidence of a GPU: 3 scenes" in said
    assert files.read(out, FEW).origin.made_on == "twin"
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert ends_with(monkeypatch, *asked) == 3
    assert "found something there" in capsys.readouterr().err
    assert before == {path.name: path.read_bytes() for path in out.iterdir()}
    assert [path.name for path in out.parent.iterdir()] == ["record"]
    assert ends_with(monkeypatch, "replay", out) == 3
    assert ends_with(monkeypatch, "replay", out, "--rehearsal") == 0
    assert "3 of 3 scenes as the twin has them" in capsys.readouterr().out


def test_replay_of_several_names_each_difference(
    few: None, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    wrong = {**recorded()}
    out = wrong["padded"].tensors["out"].clone()
    out[0] *= -1
    indices = wrong["no-context"].tensors["kv_indices"].clone()
    indices[7] += 1
    for name, tensor, value in (("padded", "out", out), ("no-context", "kv_indices", indices)):
        wrong[name] = replace(wrong[name], tensors={**wrong[name].tensors, tensor: value})
    files.write(HardwareRecord(origin(), wrong), FEW, folder.parent / "wrong")
    assert ends_with(monkeypatch, "replay", folder, folder.parent / "wrong") == 1
    lines = capsys.readouterr().out.splitlines()
    assert "FlashInfer 0.7.4 on NVIDIA H200: 3 of 3 scenes" in lines[0]
    assert lines[1].startswith("wrong: no-context: kv_indices: entry 7: the record holds ")
    assert lines[2].startswith("wrong: padded: out: row 0 head 0 channel ")
    assert "FlashInfer 0.7.4 on NVIDIA H200: 1 of 3 scenes" in lines[3] and len(lines) == 4
    monkeypatch.setattr(cli, "found_here", lambda: [folder])
    assert ends_with(monkeypatch, "replay") == 0


def test_without_a_gpu_or_a_record_nothing_is_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(machine, "obstacle", lambda: "no GPU of compute capability 9.0 is visible")
    assert ends_with(monkeypatch, "record", "--out", tmp_path / "x") == 2
    assert "--tier twin" in capsys.readouterr().out and not (tmp_path / "x").exists()
    monkeypatch.setattr(cli, "found_here", lambda: [])
    assert ends_with(monkeypatch, "replay") == 2
    assert "no hardware record" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (("--flashinfer", VERSION), "a version to simulate on the tier hopper"),
        (("--tier", "twin", "--flashinfer", "9.9"), "9.9"),
        (
            (
                "--tier",
                "twin",
                "--flashinfer",
                VERSION,
                "--subject",
                "examples.my_backend:MyBackend",
            ),
            "takes no wrapped native module",
        ),
        (("--tier", "twin", "--flashinfer", VERSION, "--subject", "nobody"), "no subject"),
    ],
)
def test_a_record_that_cannot_be_made_is_refused(
    options: tuple[str, ...],
    found: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    assert ends_with(monkeypatch, "record", "--out", tmp_path / "x", *options) == 3
    assert found in capsys.readouterr().err and not (tmp_path / "x").exists()


def test_a_subject_that_fails_in_a_scene_is_told_with_the_scene(
    few: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def fails(scene: Any, *_: Any) -> SceneRecord:
        if scene.name == "padded":
            raise RuntimeError("illegal memory access")
        return recorded()[scene.name]

    monkeypatch.setattr(cli.recording, "record", fails)
    asked = ("record", "--tier", "twin", "--flashinfer", VERSION, "--out", tmp_path / "x")
    assert ends_with(monkeypatch, *asked) == 3
    said = capsys.readouterr().err
    assert "scene padded: found RuntimeError: illegal memory access; allowed: " in said
    assert [*tmp_path.iterdir()] == []
