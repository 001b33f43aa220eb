"""The records of a GPU that are kept with the suite: of one suite, of Hopper, and small.

What they hold is for `replay` to judge; here is what they say of themselves.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from conformance.core.request import ROOT
from conformance.hardware.files import HardwareRecord
from conformance.hardware.inputs import draw
from conformance.hardware.pieces import kept_places
from conformance.hardware.replay import FOLDER, admit, found_here
from conformance.hardware.rerun import Rerun
from conformance.hardware.scenes import SCENES
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
