"""The wrapper tier against copies of the installed FlashInfer with one edit, each to be named."""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from conformance.gate.model import Change, Finding, Status, Weight
from conformance.gate.package import Package
from conformance.gate.pair import Answer, Child, ChildError, Pair, Untimed, environment
from conformance.gate.seen import Seen, StepSeen, from_json
from conformance.gate.uses import Uses
from conformance.gate.wrapper import WRAPPER, _told, _untimed, examine, judge

SUBJECT = "conformance.tests.house.wrapping_subject:WrappingSubject"
SECRET = "SMLA_TEST_SECRET_TOKEN"
COMMON = "flashinfer/mla/_batch_mla/_backends/_fa_common.py"
PLANNED = "        cached_module = module_loader()\n"
RUNS = "        ckv_cache, kpe_cache = cast(tuple[torch.Tensor, torch.Tensor], kv_cache)\n"
OVERLAP = "                if left_ptr == right_ptr and"
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Edit:
    """Pieces of the file to replace, and the finding that must come of it."""

    pieces: tuple[tuple[str, str], ...]
    key: str
    cause: str
    says: str = ""


EDITS = {
    "a read-back": Edit(
        ((PLANNED, f"{PLANNED}        kv_indices.max().item()\n"),),
        "wrapper/waits/decode",
        "._plan_generated_fa",
        "1 times more: item of a device tensor",
    ),
    "a comparison on the device": Edit(
        ((PLANNED, f"{PLANNED}        torch.equal(kv_indices, kv_indices + 1)\n"),),
        "wrapper/waits/replan",
        "._plan_generated_fa",
        "1 times more: equal",
    ),
    "a plan that waits": Edit(
        ((PLANNED, f"{PLANNED}        torch.cuda.current_stream().synchronize()\n"),),
        "wrapper/waits/decode",
        "._plan_generated_fa",
        "1 times more: synchronize",
    ),
    "padded rows refused": Edit(
        (
            (PLANNED, f"{PLANNED}        self._live = int(qo_indptr[-1])\n"),
            (
                RUNS,
                f"{RUNS}        if q_nope.shape[0] != self._live:\n"
                '            raise ValueError("rows differ")\n',
            ),
        ),
        "wrapper/step/graph",
        ".run_from_wrapper",
        "refused now",
    ),
    "a check of reserved buffers removed": Edit(
        ((OVERLAP, OVERLAP.replace("if ", "if False and ")),),
        "wrapper/probe/plan-reserved-that-overlap",
        "._validate_graph_metadata_buffers",
        "A check is gone",
    ),
    "the count of work items removed": Edit(
        (("_FA_MAX_WORK_ITEMS = 16384\n", "_FA_MAX_WORK_ITEMS = 1 << 30\n"),),
        "wrapper/step/beyond-capacity",
        "_fa_plan_work_count",
        "More rows than a schedule holds",
    ),
}


def copied(into: Path, pieces: tuple[tuple[str, str], ...] = ()) -> Package:
    """A copy of the installed package, all but one file of it linked."""
    spec = find_spec("flashinfer")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("nothing was judged: no FlashInfer is installed")
    source = Path(spec.submodule_search_locations[0])
    if not (source.parent / COMMON).is_file():
        pytest.skip(f"nothing was judged: this FlashInfer has no {COMMON}")

    def left_out(folder: str, names: list[str]) -> set[str]:
        if Path(folder) == source / "data":
            return {name for name in names if name not in ("csrc", "include")}
        if Path(folder) == source / "data" / "csrc":
            return {name for name in names if not name.startswith("batch_mla")}
        return {name for name in names if name == "__pycache__"}

    shutil.copytree(source, into / "flashinfer", ignore=left_out, copy_function=os.symlink)
    for info in source.parent.glob("flashinfer_python-*.dist-info"):
        shutil.copytree(info, into / info.name)
    file = into / COMMON
    text = file.read_text()
    for old, new in pieces:
        assert text.count(old) == 1, f"{COMMON} has changed: {old!r}"
        text = text.replace(old, new)
    file.unlink()
    file.write_text(text)
    return Package(str(into), "0", into, "0" * 64)


def looked(package: Package, scratch: Path, *, uses: bool = False) -> Seen:
    child = Child("candidate", package, SUBJECT, scratch, TIMEOUT_S)
    try:
        child.ready()
        return from_json(child.ask({"do": "look", "uses": uses}))
    except ChildError as problem:
        if problem.missing:
            pytest.skip(f"nothing was judged: the package {problem.missing} is not installed")
        raise
    finally:
        child.close()


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    scratch = tmp_path_factory.mktemp("baseline")
    yield looked(copied(scratch / "package"), scratch, uses=True)


def objections(findings: tuple[Finding, ...]) -> dict[str, Finding]:
    return {found.key: found for found in findings if found.objects}


def test_the_subject_is_right_on_the_installed_package(baseline: Seen) -> None:
    outcomes = {step.name: (step.refused, step.right) for step in baseline.steps}
    beyond = outcomes.pop("beyond capacity")
    assert outcomes.pop("construct") == ("", None)
    assert set(outcomes.values()) == {("", True)}, outcomes
    assert "17000" in beyond[0]
    assert all(not step.waits for step in baseline.steps if step.name != "many reserved")


def test_what_the_subject_uses_is_told(baseline: Seen) -> None:
    uses = baseline.uses
    assert uses is not None and uses.wraps(WRAPPER) and set(uses.native) == {"plan", "run"}
    calls = {call.public: call for call in uses.calls}
    named = {f"flashinfer.mla:{WRAPPER}.{name}" for name in ("__init__", "plan", "run")}
    assert {name for names in calls for name in names} == named
    plan = calls[(f"flashinfer.mla:{WRAPPER}.plan",)]
    assert (plan.positional, plan.keywords) == (10, ("q_data_type", "kv_data_type"))
    assert plan.told and plan.warned
    made = calls[(f"flashinfer.mla:{WRAPPER}.__init__",)]
    assert made.keywords[2:] == ("qo_indptr", "kv_indptr", "kv_indices", "kv_len_arr")
    runs = [call.keywords for call in uses.calls if call.function.endswith(".run")]
    assert sorted(runs) == [(), ("ckv_scale", "kpe_scale")]
    assert any(name.endswith("._plan_generated_fa") for name in uses.reached)


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_found_and_named(name: str, baseline: Seen, tmp_path: Path) -> None:
    edit = EDITS[name]
    seen = looked(copied(tmp_path / "package", edit.pieces), tmp_path)
    assert baseline.uses is not None
    result = judge(baseline, seen, baseline.uses)
    found = objections(result.findings)
    assert result.status is Status.FAIL and edit.key in found, result.findings
    assert COMMON in found[edit.key].cause and edit.cause in found[edit.key].cause
    assert edit.says in found[edit.key].what
    # A subject that never calls the class is not told off for what is only probed.
    probed = judge(baseline, seen, Uses()).findings
    assert all("not on the subject's path" in f.what for f in probed
               if "/probe/" in f.key and f.change is Change.CHANGED)  # fmt: skip
    assert not any(f.objects for f in probed if "/probe/" in f.key)


def test_comments_change_nothing(baseline: Seen, tmp_path: Path) -> None:
    first = copied(tmp_path / "first")
    other = copied(tmp_path / "other", ((PLANNED, f"        # one line\n\n{PLANNED}"),))
    result, uses = examine(first, other, SUBJECT, command="again", scratch=tmp_path, rounds=1,
                           samples=1, timeout_s=TIMEOUT_S)  # fmt: skip
    assert result.status is Status.PASS
    assert {found.change for found in result.findings} == {Change.UNCHANGED}
    assert uses == baseline.uses
    assert [figure.kind for figure in result.figures] == ["plan"] * 3
    assert all(figure.baseline_us > 0 and figure.ratio > 0 for figure in result.figures)


def made_up(into: Path, code: str) -> Package:
    """A package whose import runs `code`."""
    (into / "flashinfer" / "data" / "csrc").mkdir(parents=True)
    (into / "flashinfer" / "__init__.py").write_text(code)
    plan = into / "flashinfer" / "data" / "csrc" / "batch_mla_sm90_plan.cu"
    plan.write_text("Tuple<Array<int64_t>, int64_t> BatchMLAPagedAttentionSM90Plan(int x) {}")
    return Package(str(into), "0", into, "0" * 64)


TELLS = """
import json, os, pathlib
pathlib.Path(__file__).with_name("told.json").write_text(json.dumps(dict(os.environ)))
raise ImportError("told")
"""


def test_a_child_sees_nothing_of_its_parents_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (SECRET, "HTTPS_PROXY", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "secret")
    package = made_up(tmp_path / "package", TELLS)
    with pytest.raises(ChildError, match="told"):
        looked(package, tmp_path)
    told = json.loads((package.folder / "flashinfer" / "told.json").read_text())
    assert "secret" not in told.values()
    assert set(told) <= {
        *environment(package, tmp_path),
        *("LC_CTYPE", "FLASHINFER_CUDA_ARCH_LIST"),
    }
    assert told["HOME"].startswith(str(tmp_path))


def test_a_child_that_dies_is_told_of(tmp_path: Path) -> None:
    dead = made_up(tmp_path / "dead", "import os\nos._exit(7)")
    result, _ = examine(dead, dead, SUBJECT, command="again", scratch=tmp_path)
    assert result.status is Status.NOT_RUN and "exit status 7" in result.reason
    assert result.command == "again"


def test_a_child_that_hangs_is_ended(tmp_path: Path) -> None:
    slow = made_up(tmp_path / "slow", "import time\ntime.sleep(3600)")
    with Pair(slow, slow, SUBJECT, tmp_path, timeout_s=1.0) as pair:
        for answer in pair.look():
            assert answer.problem is not None and answer.problem.blameless
            assert "no answer to 'import FlashInfer' within 1 s" in str(answer.problem)


@pytest.mark.parametrize(
    ("how", "status", "said"),
    [
        ("SIGKILL", Status.NOT_RUN, "SIGKILL"),
        ("SIGSEGV", Status.FAIL, "SIGSEGV"),
        ("SIGABRT", Status.FAIL, "SIGABRT"),
    ],
)
def test_a_candidate_that_was_killed_from_outside_is_not_blamed(
    how: str, status: Status, said: str
) -> None:
    problem = ChildError(f"candidate: its process ended ({said})", blameless=how == "SIGKILL")
    result = _told(Answer(Seen("0", "0", True, ()), None), Answer(None, problem), (), "again")
    assert result.status is status and said in (result.reason or result.findings[0].after)


@pytest.mark.parametrize("blameless", [True, False])
def test_a_step_that_the_candidate_alone_cannot_time_objects_unless_it_was_killed(
    blameless: bool,
) -> None:
    found = _untimed(Untimed("new bounds", "", "it ended", "it ended", blameless), "again")
    assert found.objects is not blameless and found.after == "it ended"


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    lacking = made_up(tmp_path / "lacking", "import no_such_package_of_anybody")
    result, _ = examine(lacking, lacking, SUBJECT, command="again", scratch=tmp_path)
    assert result.status is Status.NOT_RUN
    assert "no_such_package_of_anybody" in result.reason and "install it" in result.reason


STEP = StepSeen("decode", native=("plan", "run"), right=True, error=0.5)


@pytest.mark.parametrize(
    ("after", "key", "weight"),
    [
        (replace(STEP, right=False, error=9.0), "wrapper/output/decode", Weight.OBJECTION),
        (replace(STEP, native=("run",)), "wrapper/native/decode", Weight.REVIEW),
        (replace(STEP, refused="ValueError: no"), "wrapper/step/decode", Weight.OBJECTION),
    ],
)
def test_what_differs_has_its_weight(after: StepSeen, key: str, weight: Weight) -> None:
    def seen(step: StepSeen) -> Seen:
        return Seen("0", "0", True, (step,))

    worse = judge(seen(STEP), seen(after), Uses())
    changed = {f.key: f.weight for f in worse.findings if f.change is not Change.UNCHANGED}
    assert changed == {key: weight}
    better = judge(seen(after), seen(STEP), Uses())
    assert better.status is Status.PASS
