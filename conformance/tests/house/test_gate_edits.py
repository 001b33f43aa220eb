"""Wheels edited as an upgrade might be: each fault is named by the first tier that can."""

import json
import os
import re
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from conformance.bundle.trim import python_files

ROOT = Path(__file__).parents[3]
SUBJECT = "conformance.subjects.through_wrapper:ThroughWrapper"
PLANNER = "flashinfer/data/include/flashinfer/attention/scheduler.cuh"
WRAPPER = "flashinfer/mla/_batch_mla/_wrapper.py"
MECHANICS = "flashinfer/mla/_batch_mla/_backends/_fa_common.py"
VERSION = "9.9.9"


class Edit(NamedTuple):
    """One edit of a file: a text that stands there once, or the last one of several, and another.

    key: pattern of the objection it must raise. tier: the first that can. cause: named with it.
    """

    file: str
    old: str
    new: str
    tier: str
    key: str
    cause: str


ALLOCATED = (
    "  plan_info.q_indptr_offset =\n"
    "      int_allocator.aligned_alloc_offset(sizeof(IdType) * max_total_num_works, 16, "
    '"mla_q_indptr");\n'
    "  plan_info.kv_indptr_offset =\n"
    "      int_allocator.aligned_alloc_offset(sizeof(IdType) * max_total_num_works, 16, "
    '"mla_kv_indptr");\n'
)
TURNED = "".join(re.findall(r"  plan_info\..*?;\n", ALLOCATED, re.DOTALL)[::-1])
PLANNED = "        cached_module = module_loader()\n"

READ = (
    Edit(PLANNER, ALLOCATED, TURNED, "static", "static/layout/arrays", "scheduler.cuh"),
    Edit(
        WRAPPER,
        "        kv_data_type: Optional[torch.dtype] = None,\n",
        "        cache_data_type: Optional[torch.dtype] = None,\n",
        "static",
        r"static/signature/.*plan/kv_data_type",
        "plan",
    ),
    Edit(
        WRAPPER,
        "        return_lse: bool = False,\n",
        "        return_lse: bool = True,\n",
        "static",
        r"static/default/.*run/return_lse",
        "run",
    ),
)
"""Found by reading: a work array moved, an argument renamed, a default flipped."""


RUN = (
    Edit(
        MECHANICS,
        PLANNED,
        f"{PLANNED}        kv_indices.max().item()\n",
        "wrapper",
        "wrapper/waits/decode",
        "_plan_generated_fa",
    ),
    Edit(
        MECHANICS,
        "                if left_ptr == right_ptr and max(",
        "                if False and left_ptr == right_ptr and max(",
        "wrapper",
        "wrapper/probe/plan-reserved-that-overlap",
        "_validate_graph_metadata_buffers",
    ),
    Edit(
        PLANNER,
        "    } else if (x <= 64) {\n      return 192;\n",
        "    } else if (x <= 64) {\n      return 256;\n",
        "planner",
        "planner/.*",
        "MLAPlan",
    ),
)
"""Found by running: a read-back added, a check removed, a split limit changed."""


def _installed() -> Path:
    """The folder that holds the installed package; skips where none is that imports."""
    spec = find_spec("flashinfer")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("nothing was judged: no FlashInfer is installed")
    package = Path(spec.submodule_search_locations[0]).parent
    if not (package / MECHANICS).is_file():
        pytest.skip(f"nothing was judged: this FlashInfer has no {MECHANICS}")
    missing = [name for name in ("tvm_ffi", "tqdm", "einops") if find_spec(name) is None]
    if missing:
        pytest.skip(f"nothing was judged: FlashInfer does not import without {missing[0]}")
    return package


def _names(package: Path) -> list[str]:
    """Files of a small wheel: what the gate can read or run, and metadata."""
    patterns = (
        *("flashinfer/data/include/**/*", "flashinfer/data/csrc/batch_mla*"),
        *("flashinfer/data/cccl/libcudacxx/include/**/*", "flashinfer_python-*.dist-info/METADATA"),
    )
    found = {
        p.relative_to(package).as_posix() for q in patterns for p in package.glob(q) if p.is_file()
    }
    return sorted(found | python_files(package))


def _wheel(
    folder: Path, package: Path, edits: tuple[Edit, ...], *, commented: bool = False
) -> Path:
    """A wheel of the installed package with edits.

    commented: its files in another order, and comments in those that matter.
    """
    folder.mkdir()
    path = folder / f"flashinfer_python-{VERSION}-py3-none-any.whl"
    names = _names(package)
    texts: dict[str, str] = {}
    for edit in edits:
        text = texts.get(edit.file) or (package / edit.file).read_text()
        assert edit.old in text, f"{edit.file} has changed: {edit.old!r}"
        head, _, tail = text.rpartition(edit.old)
        texts[edit.file] = f"{head}{edit.new}{tail}"
    if commented:
        names.reverse()
        for name, mark in ((PLANNER, "//"), (WRAPPER, "#"), (MECHANICS, "#")):
            text = texts.get(name) or (package / name).read_text()
            texts[name] = f"{mark} Only a comment.\n{text}\n{mark} And one at the end.\n"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            inside = re.sub(r"^(flashinfer_python-)[^/]+(\.dist-info/)", rf"\g<1>{VERSION}\2", name)
            if name in texts:
                archive.writestr(inside, texts[name])
            else:
                archive.write(package / name, inside)
    return path


def _gate(baseline: Path, candidate: Path, report: Path) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "conformance", "gate", str(baseline), str(candidate)]
    command += ["--subject", SUBJECT, "--report", str(report)]
    for tier in ("static", "wrapper", "planner"):
        command += ["--tier", tier]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ}, capture_output=True, text=True)
    assert done.returncode in (0, 1, 2), done.stdout[-2000:] + done.stderr[-2000:]
    (result,) = json.loads((report / "gate.json").read_text())["results"]
    return done.returncode, result


def _objections(result: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    return {
        tier["tier"]: [found for found in tier["findings"] if found["weight"] == "objection"]
        for tier in result["tiers"]
    }


def _findings(result: dict[str, Any]) -> list[Any]:
    """All that is found and decided, without what names the wheel itself."""
    hidden = {"evidence"}
    return [
        (tier["tier"], tier["status"], {k: v for k, v in found.items() if k not in hidden})
        for tier in result["tiers"]
        for found in tier["findings"]
        if "/figure/" not in found["key"]  # a time is what it is in each run
    ]


def _check(edits: tuple[Edit, ...], result: dict[str, Any]) -> None:
    found = _objections(result)
    for edit in edits:
        met = [one for one in found[edit.tier] if re.fullmatch(edit.key, one["key"])]
        assert met, f"{edit.key}: {edit.tier} has {[one['key'] for one in found[edit.tier]]}"
        assert any(edit.cause in f"{one['cause']} {one['what']}" for one in met), met


def test_edited_wheels_are_caught_by_the_first_tier_that_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMLA_CACHE_ROOT", str(tmp_path / "cache"))
    package = _installed()
    baseline = _wheel(tmp_path / "baseline", package, ())

    code, read = _gate(baseline, _wheel(tmp_path / "read", package, READ), tmp_path / "gate-read")
    assert (code, read["verdict"]) == (1, "NO-GO")
    _check(READ, read)

    code, run = _gate(baseline, _wheel(tmp_path / "run", package, RUN), tmp_path / "gate-run")
    assert (code, run["verdict"]) == (1, "NO-GO")
    _check(RUN, run)
    assert not _objections(run)["static"], "what only a run can show was said to be read"

    commented = _wheel(tmp_path / "commented", package, RUN, commented=True)
    code, again = _gate(baseline, commented, tmp_path / "gate-commented")
    assert (code, again["verdict"]) == (1, "NO-GO")
    assert again["candidate"]["digest"] != run["candidate"]["digest"]
    assert _findings(again) == _findings(run)


def test_comments_and_the_order_of_files_are_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMLA_CACHE_ROOT", str(tmp_path / "cache"))
    package = _installed()
    baseline = _wheel(tmp_path / "baseline", package, ())
    commented = _wheel(tmp_path / "commented", package, (), commented=True)
    code, result = _gate(baseline, commented, tmp_path / "gate")
    assert (code, result["verdict"]) == (2, "INCOMPLETE")
    changed = [found for _, _, found in _findings(result) if found["change"] != "unchanged"]
    assert not changed, changed


def test_the_static_tier_alone_runs_nothing_of_the_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMLA_CACHE_ROOT", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    package, trace = _installed(), tmp_path / "trace"
    first = (package / "flashinfer/__init__.py").read_text().splitlines(keepends=True)[0]
    spying = Edit(
        "flashinfer/__init__.py", first, f"open({str(trace)!r}, 'w').close()\n{first}", "", "", ""
    )
    baseline = _wheel(tmp_path / "baseline", package, ())
    candidate = _wheel(tmp_path / "spying", package, (spying,))
    command = [sys.executable, "-m", "conformance", "gate", str(baseline), str(candidate)]
    command += ["--subject", SUBJECT, "--tier", "static", "--report", "here/report"]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ}, capture_output=True, text=True)
    assert done.returncode == 2, done.stdout[-2000:] + done.stderr[-2000:]
    (result,) = json.loads((tmp_path / "here/report/gate.json").read_text())["results"]
    tiers = {tier["tier"]: tier for tier in result["tiers"]}
    assert tiers["static"]["status"] == "pass" and tiers["static"]["facts"]["functions called"]
    assert tiers["wrapper"]["reason"] == "not asked for"
    assert not trace.exists(), "code of the candidate was run"
