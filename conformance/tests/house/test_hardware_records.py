"""The records of a GPU that are kept with the suite: of one suite, of Hopper, and small.

What they hold is judged by TWIN-3; here is what they say of themselves, and when that judge fails.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from conformance.core.case import parse
from conformance.core.catalogue import REQUIREMENTS
from conformance.core.lab import CheckFailed, Lab
from conformance.core.request import ROOT
from conformance.core.worker import load_subject
from conformance.hardware.files import HardwareRecord, write
from conformance.hardware.inputs import draw
from conformance.hardware.pieces import kept_places
from conformance.hardware.replay import FOLDER, admit, found_here
from conformance.hardware.rerun import Rerun
from conformance.hardware.scenes import SCENES
from conformance.subjects import DEFAULT, factory_of
from conformance.tests.requirements import test_replay
from conformance.tiers import tier
from conformance.twin.semantics import BY_FINGERPRINT

MOST_BYTES = 12_000_000
"""Of the golden set and all traces together: what a checkout carries for them."""
FOLDERS = found_here()
A_PATH = re.compile(r"(^|[\s'\"=:(])([A-Za-z]:[\\/]|~?/)\w")
A_HOST = re.compile(r"\w+://|\w@\w|\b[\w-]+\.(local|internal|com|org|net|io)\b")


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def record(request: Any) -> HardwareRecord:
    return admit(request.param)


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, one in value.items():
            yield from (name, *texts(one))
    elif isinstance(value, list):
        for one in value:
            yield from texts(one)
    elif isinstance(value, str):
        yield value


def test_there_is_a_case_for_each_scene() -> None:
    assert REQUIREMENTS["TWIN-3"].twin == len(SCENES) and REQUIREMENTS["TWIN-3"].hopper == 0


def judged(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Judge a case of TWIN-3 as if these were the records."""
    monkeypatch.setattr(test_replay, "found_here", lambda: folders)
    case, subject = parse("TWIN-3/how=recorded/0"), load_subject(factory_of(DEFAULT))
    test_replay.test_the_twin_replays_what_a_gpu_computed(Lab(case, subject, tier("twin"), "torch"))


@pytest.mark.parametrize("folders", [[], FOLDERS[:1], FOLDERS[:1] * 2], ids=["none", "one", "same"])
def test_too_few_versions_are_a_failure(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    judged(FOLDERS, monkeypatch)
    with pytest.raises(CheckFailed, match="recorded FlashInfer versions"):
        judged(folders, monkeypatch)


def test_a_rehearsal_among_them_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = admit(FOLDERS[-1])
    other = replace(found, origin=replace(found.origin, made_on="twin"))
    write(other, SCENES, tmp_path / FOLDERS[-1].name)
    with pytest.raises(CheckFailed, match="made on: twin"):
        judged([*FOLDERS[:-1], tmp_path / FOLDERS[-1].name], monkeypatch)


def test_a_difference_in_any_of_them_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at, folder in enumerate(FOLDERS):
        found = admit(folder)
        scene = found.scenes[SCENES[0].name]
        out = -scene.tensors["engine_out"]
        wrong = replace(scene, tensors={**scene.tensors, "engine_out": out})
        whole = {**found.scenes, SCENES[0].name: wrong}
        write(replace(found, scenes=whole), SCENES, tmp_path / folder.name)
        with pytest.raises(CheckFailed, match=f"differences from FlashInfer {folder.name} on "):
            judged([*FOLDERS[:at], tmp_path / folder.name, *FOLDERS[at + 1 :]], monkeypatch)


def test_each_stands_in_the_folder_of_its_version_and_nothing_else_does() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {folder.name for folder in FOLDERS}
    assert [admit(folder).origin.flashinfer for folder in FOLDERS] == [f.name for f in FOLDERS]


def test_they_are_of_several_versions_that_the_backend_takes() -> None:
    compat = (ROOT / "smla/engines/flashinfer/compat.py").read_text()
    (trusted,) = re.findall(r'^TRUSTED = SpecifierSet\("(.+)"\)$', compat, re.M)
    (pinned,) = re.findall(r'"flashinfer-python==(.+)"', (ROOT / "pyproject.toml").read_text())
    versions = [folder.name for folder in FOLDERS]
    assert len(versions) >= 2 and pinned in versions
    assert [version for version in versions if version not in SpecifierSet(trusted)] == []
    assert any(f"={version}" in trusted for version in versions), "the first or the last one"
    assert len({admit(folder).origin.kernel for folder in FOLDERS}) == len(FOLDERS)


def test_they_are_of_one_suite_on_one_kind_of_gpu() -> None:
    origins = [admit(folder).origin for folder in FOLDERS]
    told = [origin.environment for origin in origins]
    assert len({(one["commit"], one["sources"]) for one in told}) == 1
    assert all(re.fullmatch("[0-9a-f]{40}", one["commit"] or "") for one in told)
    assert {tuple(one["gpu"]["capability"]) for one in told} == {(9, 0)}
    assert len({one["gpu"]["name"] for one in told}) == 1
    assert {(origin.made_on, origin.subject) for origin in origins} == {("hopper", "smla")}


def test_one_tells_nothing_of_the_machine_but_what_matters(record: HardwareRecord) -> None:
    manifest = json.loads((FOLDER / record.origin.flashinfer / "manifest.json").read_text())
    said = [text for text in texts(manifest) if A_PATH.search(text) or A_HOST.search(text)]
    assert said == []
    for planted in ("/opt/x", "at C:\\x", "~/x", "https://x", "me@host", "a.internal"):
        assert A_PATH.search(planted) or A_HOST.search(planted), planted


def test_one_is_no_rehearsal_under_another_name(record: HardwareRecord) -> None:
    """A GPU adds float32 in another order than the twin: some LSE has another last bit."""
    for scene in SCENES:
        found = record.scenes[scene.name]
        twin = Rerun(draw(scene), found, BY_FINGERPRINT[record.origin.kernel])
        outs, lses = kept_places(twin.schedule, found.call.num_heads)
        if outs and not twin.partials(outs, lses)[1].equal(found.tensors["partial_lse"]):
            return
    pytest.fail("every LSE is the twin's, bit for bit")


def test_the_golden_set_and_all_traces_are_small() -> None:
    kept = (ROOT / "golden" / "data", ROOT / "conformance" / "traces")
    files = [path for folder in kept for path in Path(folder).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= MOST_BYTES and len(files) > 100
