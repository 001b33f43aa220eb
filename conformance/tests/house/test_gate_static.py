"""The gate's static tier names each edit of a package, and sees nothing in comments and layout."""

import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.gate.errors import PackageError
from conformance.gate.model import Change, Finding, Status, TierResult, Weight
from conformance.gate.package import Package
from conformance.gate.static import judge
from conformance.gate.uses import Call, Uses
from conformance.twin.compiled import CompilerMissing, flashinfer_include

CORE = """\
import functools
import warnings
from ._helpers import checked as _checked, DEFAULT_BACKEND
from ._base import Base, logged

__all__ = ["Wrapper", "loader"]

class Wrapper(Base):
    '''A wrapper.'''

    limit: int = 4

    def __init__(self, buffer, *, use_graph=False, backend=DEFAULT_BACKEND):
        self._buffer = buffer
        self._backend = backend

    @logged
    def plan(self, starts, lengths, heads, causal=False, scale=1.0):
        # plans
        self._info = _checked(starts, lengths)
        return self._info

    def run(self, q, *, out=None, lse=None):
        return self._run(q, out, lse)

    def _run(self, q, out, lse):
        return q

    @property
    def info(self):
        return self._info

@functools.cache
def loader(backend, *args):
    return (backend, args)
"""
BASE = """\
import functools

def logged(method):
    @functools.wraps(method)
    def wrapped(self, *args, **kwargs):
        return method(self, *args, **kwargs)
    return wrapped

class Base:
    def __init__(self):
        self._scratch = None

    def _mirror(self, other):
        for name in ("_staging",):
            setattr(self, name, getattr(other, name))
"""
HELPERS = """\
DEFAULT_BACKEND = "auto"

def checked(starts, lengths):
    return starts, lengths, unused(lengths)

def unused(lengths):
    return lengths
"""
INIT = """\
from ._core import *

_LAZY = frozenset({"late"})

def __getattr__(name):
    if name in _LAZY:
        from . import _late
        return getattr(_late, name)
    raise AttributeError(name)
"""
FILES = {
    "flashinfer/__init__.py": "from .mla import Wrapper as Wrapper\n",
    "flashinfer/mla/__init__.py": INIT,
    "flashinfer/mla/_core.py": CORE,
    "flashinfer/mla/_base.py": BASE,
    "flashinfer/mla/_helpers.py": HELPERS,
    "flashinfer/mla/_late.py": "def late(a, b=1):\n    return a\n",
}
PLACE = "flashinfer/mla/_core.py:Wrapper"
USES = Uses(
    calls=(
        Call(f"{PLACE}.__init__", ("flashinfer.mla:Wrapper.__init__",), 1, ("use_graph",)),
        Call(f"{PLACE}.plan", ("flashinfer.mla:Wrapper.plan", "flashinfer:Wrapper.plan"), 2,
             ("heads",)),
        Call(f"{PLACE}.run", ("flashinfer.mla:Wrapper.run",), 1, ("out",)),
        Call("flashinfer/mla/_core.py:loader", ("flashinfer.mla._core:loader",), 3, ()),
        Call("flashinfer/mla/_late.py:late", ("flashinfer.mla:late",), 1, ()),
    ),
    attributes=(f"{PLACE}._info", f"{PLACE}._scratch", f"{PLACE}._staging", f"{PLACE}.info"),
    reached=frozenset({f"{PLACE}.plan", f"{PLACE}.run", f"{PLACE}._run"}),
)  # fmt: skip
Edit = tuple[str, str, str]
"""A file of the package, a text in it, and what stands there instead."""


def package(root: Path, edits: Iterable[Edit] = (), files: dict[str, str] = FILES) -> Package:
    """A package of Python files alone, in an empty folder."""
    edited = dict(files)
    for name, old, new in edits:
        assert old in edited[name], f"{old!r} is not in {name}"
        edited[name] = edited[name].replace(old, new)
    for name, text in edited.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Package(root.name, "1", root, "0")


def judged(tmp_path: Path, *edits: Edit, uses: Uses | None = USES) -> list[Finding]:
    """What the tier says of the Python of an edited package; of layout and native text nothing."""
    sides = package(tmp_path / "a"), package(tmp_path / "b", edits)
    return of_names(judge(*sides, uses))


def of_names(result: TierResult) -> list[Finding]:
    """The findings but those of layout and regions."""
    other = ("static/layout/", "static/region/")
    return [one for one in result.findings if not one.key.startswith(other)]


def only(found: Iterable[Finding], weight: Weight = Weight.OBJECTION) -> Finding:
    chosen = [one for one in found if one.weight is weight]
    assert len(chosen) == 1, f"expected one {weight}, got {chosen}"
    return chosen[0]


def test_a_package_against_itself_is_all_unchanged(tmp_path: Path) -> None:
    found = judged(tmp_path)
    assert {(one.change, one.weight) for one in found} == {(Change.UNCHANGED, Weight.NOTE)}
    keys = {one.key for one in found}
    assert f"static/name/{PLACE}._staging" in keys, keys
    assert "static/signature/flashinfer:Wrapper.plan" in keys, keys
    assert len(found) == len(USES.calls) + len(USES.attributes)


@pytest.mark.parametrize(
    ("edit", "key", "says"),
    [
        (("lengths, heads, causal", "lengths, num_heads, causal"),
         "signature/flashinfer:Wrapper.plan/heads", "no longer takes the argument heads; new is "),
        (("scale=1.0", "scale=2.0"), "default/flashinfer:Wrapper.plan/scale", "was 1.0 and is 2.0"),
        (("starts, lengths, heads, c", "lengths, starts, heads, c"),
         "signature/flashinfer:Wrapper.plan/starts", "means lengths by argument 1"),
        (("starts, lengths, heads, c", "starts, *, lengths, heads, c"),
         "signature/flashinfer:Wrapper.plan/lengths", "by name alone"),
        (("scale=1.0):", "scale=1.0, *, stream):"),
         "signature/flashinfer:Wrapper.plan/stream", "needs the argument stream"),
        (("heads, causal=False", "heads, causal"),
         "signature/flashinfer:Wrapper.plan/causal", "needs the argument causal"),
        (("self, starts, lengths, heads,", "self, starts, heads, lengths,"),
         "signature/flashinfer:Wrapper.plan/lengths", "means heads by argument 2"),
        (("self, q, *, out=None,", "self, q, *,"),
         "signature/flashinfer.mla:Wrapper.run/out", "no longer takes the argument out"),
        (("self, q, *, out=None", "self, q, out, /"),
         "signature/flashinfer.mla:Wrapper.run/out", "by position alone"),
        (("def loader(backend, *args)", "def loader(backend)"),
         "signature/flashinfer.mla._core:loader", "no longer takes the subject's call"),
        (("def plan(", "def planned("), "name/flashinfer:Wrapper.plan", "is gone"),
        (("        self._info = ", "        self._plan_info = "), f"name/{PLACE}._info", "_info"),
    ],
)  # fmt: skip
def test_an_edit_is_an_objection_that_names_it(
    tmp_path: Path, edit: tuple[str, str], key: str, says: str
) -> None:
    found = judged(tmp_path, ("flashinfer/mla/_core.py", *edit))
    objections = {one.key: one for one in found if one.weight is Weight.OBJECTION}
    assert f"static/{key}" in objections, objections
    one = objections[f"static/{key}"]
    assert says in one.what and one.cause.startswith("flashinfer"), one


def test_a_lost_attribute_with_something_in_its_place_is_for_review(tmp_path: Path) -> None:
    edit = ("flashinfer/mla/_core.py", "        self._info = ", "        self._plan_info = ")
    asked = replace(USES, attributes=(), optional=(f"{PLACE}._info",))
    key = f"static/name/{PLACE}._info"
    (one,) = (f for f in judged(tmp_path, edit, uses=asked) if f.key == key)
    assert (one.change, one.weight) == (Change.DELETED, Weight.REVIEW), one
    assert "something else in its place" in one.what


BINDING = """
// run( is only named here
void MlaPlan(TensorView a, int64_t heads);
Array<int64_t> MlaPlan(TensorView a, int64_t heads) { return {}; }
void MlaRun(TensorView q, Array<int64_t> plan_info, Optional<TensorView> lse, double scale) {
  helper(q);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(plan, MlaPlan);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, MlaRun);
"""
BOUND = "flashinfer/data/csrc/batch_mla_sm90_run.cu"


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("double scale", "double sm_scale /* only its name */", ""),
        ("double scale)", "double scale, double kpe_scale)", "run"),
        ("Optional<TensorView> lse", "TensorView lse", "run"),
        ("Array<int64_t> plan_info, Optional<TensorView> lse",
         "Optional<TensorView> lse, Array<int64_t> plan_info", "run"),
        ("int64_t heads) {", "int32_t heads) {", "plan"),
        ("(run, MlaRun)", "(launch, MlaRun)", "run"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("through", [True, False])
def test_other_parameters_of_the_native_module_are_told(
    tmp_path: Path, old: str, new: str, changed: str, through: bool
) -> None:
    direct = Uses(calls=() if through is False else USES.calls, native=("plan", "run"))
    files = {**FILES, BOUND: BINDING.replace("void MlaPlan(TensorView a, int64_t heads);\n", "")}
    before = package(tmp_path / "before", files=files)
    after = package(tmp_path / "after", ((BOUND, old, new),), files=files)
    found = {f.key: f for f in judge(before, after, direct).findings if "/native/" in f.key}
    weight = Weight.REVIEW if through else Weight.OBJECTION
    for method in ("plan", "run"):
        one = found[f"static/native/{method}"]
        expected = weight if method == changed else Weight.NOTE
        assert one.weight is expected, one
    assert ("static/native/launch" in found) == ("launch" in new)


def test_a_default_that_the_subject_gives_is_no_objection(tmp_path: Path) -> None:
    given = replace(USES.calls[1], keywords=("heads", "scale"))
    edit = ("flashinfer/mla/_core.py", "scale=1.0", "scale=2.0")
    (one,) = judged(tmp_path, edit, uses=Uses(calls=(given,)))
    assert (one.change, one.weight) == (Change.CHANGED, Weight.NOTE), one


def test_a_constant_behind_a_default_is_the_default(tmp_path: Path) -> None:
    edit = ("flashinfer/mla/_helpers.py", '"auto"', '"fa2"')
    one = only(judged(tmp_path, edit))
    assert one.key == "static/default/flashinfer.mla:Wrapper.__init__/backend"
    assert "'auto'" in one.before and "'fa2'" in one.after


def test_what_the_subject_does_not_use_is_no_objection(tmp_path: Path) -> None:
    edits = [
        ("flashinfer/mla/_core.py", "heads, causal=False", "heads, causal=False, more=0"),
        ("flashinfer/mla/_core.py", "out=None, lse=None", "out=None"),
        ("flashinfer/mla/_core.py", "limit: int = 4", "bound: int = 4"),
    ]
    found = judged(tmp_path, *edits)
    assert {one.weight for one in found} == {Weight.NOTE}, found
    changed = {one.key: one.what for one in found if one.change is Change.CHANGED}
    assert "new: more" in changed["static/signature/flashinfer:Wrapper.plan"], changed
    assert "gone: lse" in changed["static/signature/flashinfer.mla:Wrapper.run"], changed


def test_a_positional_argument_that_was_only_renamed_is_for_review(tmp_path: Path) -> None:
    edit = (
        "flashinfer/mla/_core.py",
        "self, starts, lengths, heads",
        "self, begins, lengths, heads",
    )
    one = only(judged(tmp_path, edit), Weight.REVIEW)
    assert one.key == "static/signature/flashinfer:Wrapper.plan/starts"


def test_a_function_that_moved_is_followed_and_its_lost_private_name_is_for_review(
    tmp_path: Path,
) -> None:
    moved = dict(FILES)
    body = moved["flashinfer/mla/_core.py"]
    start = body.index("@functools.cache")
    moved["flashinfer/mla/_core.py"] = body[:start]
    moved["flashinfer/mla/_load.py"] = "import functools\n\n" + body[start:]
    sides = package(tmp_path / "a"), package(tmp_path / "b", files=moved)
    one = only(of_names(judge(*sides, USES)), Weight.REVIEW)
    assert one.key == "static/name/flashinfer.mla._core:loader"
    assert one.after == "flashinfer/mla/_load.py:loader"
    again = moved | {"flashinfer/mla/__init__.py": INIT + "from ._load import loader\n"}
    public = replace(USES.calls[3], public=("flashinfer.mla:loader",))
    sides = package(tmp_path / "c"), package(tmp_path / "d", files=again)
    found = judge(*sides, Uses(calls=(public,))).findings
    assert found[0].key == "static/signature/flashinfer.mla:loader"
    assert found[0].cause == "flashinfer/mla/_load.py: loader"


def test_a_public_name_that_is_gone_is_an_objection_wherever_its_function_went(
    tmp_path: Path,
) -> None:
    edits = [
        ("flashinfer/mla/__init__.py", 'frozenset({"late"})', "frozenset()"),
        ("flashinfer/mla/__init__.py", "_late", "_later"),
    ]
    one = only(judged(tmp_path, *edits))
    assert (one.key, one.change) == ("static/name/flashinfer.mla:late", Change.DELETED)
    assert one.after == "flashinfer/mla/_late.py:late"


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("_core.py", "# plans", 'warnings.warn("plan is old", DeprecationWarning, stacklevel=2)'),
        (
            "_helpers.py",
            "return lengths",
            'warnings.warn("plan is old", category=DeprecationWarning)',
        ),
        ("_base.py", "return method", 'tell("plan is old", FutureWarning); return method'),
        ("_core.py", "@logged", '@deprecated("plan is old")\n    @logged'),
    ],
)
def test_a_new_deprecation_on_the_way_is_for_review(
    tmp_path: Path, file: str, old: str, new: str
) -> None:
    one = only(judged(tmp_path, (f"flashinfer/mla/{file}", old, new)), Weight.REVIEW)
    assert one.key == "static/deprecation/flashinfer:Wrapper.plan"
    assert "plan is old" in one.what and one.cause.startswith(f"flashinfer/mla/{file}: "), one


def test_a_deprecation_that_was_there_before_is_not_told(tmp_path: Path) -> None:
    edit = ("flashinfer/mla/_core.py", "# plans", 'warnings.warn("old", DeprecationWarning)')
    one, other = package(tmp_path / "a", [edit]), package(tmp_path / "b", [edit])
    assert {found.weight for found in judge(one, other, USES).findings if
            found.key.startswith("static/dep")} == set()  # fmt: skip


def test_arguments_that_were_not_told_are_for_review_only(tmp_path: Path) -> None:
    untold = Uses(calls=(replace(USES.calls[1], told=False),))
    edit = ("flashinfer/mla/_core.py", "scale=1.0", "scale=2.0")
    one = only(judged(tmp_path, edit, uses=untold), Weight.REVIEW)
    assert one.key == "static/signature/flashinfer:Wrapper.plan"
    assert judged(tmp_path / "same", uses=untold)[0].change is Change.UNCHANGED


def test_python_that_cannot_be_parsed_is_a_wrong_package(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"_core\.py: found"):
        judged(tmp_path, ("flashinfer/mla/_core.py", "class Wrapper", "klass Wrapper"))


# The native text of the installed FlashInfer, edited.

HEADERS = "flashinfer/data/include/flashinfer/"
SCHEDULER = f"{HEADERS}attention/scheduler.cuh"
TEMPLATE = "flashinfer/data/csrc/batch_mla_config.jinja"
KERNEL = f"{HEADERS}attention/mla_hopper.cuh"


@pytest.fixture(scope="module")
def installed() -> Path:
    try:
        return flashinfer_include().parents[2]
    except CompilerMissing as reason:
        pytest.skip(str(reason))


@pytest.fixture
def edited(installed: Path, tmp_path: Path) -> Callable[..., Package]:
    """Makes a package of links to the installed one's files, some of them edited."""

    def make(*edits: Edit) -> Package:
        top, own = tmp_path / "edited" / "flashinfer", installed / "flashinfer"
        for part in ("mla", "jit", "data/include/flashinfer"):
            ignored = shutil.ignore_patterns("__pycache__", "trtllm", "gemm", "comm", "mamba")
            shutil.copytree(own / part, top / part, ignore=ignored, copy_function=os.symlink)
        (top / "data" / "csrc").mkdir()
        for file in own.glob("data/csrc/batch_mla*"):
            (top / "data" / "csrc" / file.name).symlink_to(file)
        (top / "data" / "csrc" / "tvm_ffi_utils.h").symlink_to(own / "data/csrc/tvm_ffi_utils.h")
        for part in ("cutlass", "cccl"):
            (top / "data" / part).symlink_to(own / "data" / part)
        for name, old, new in edits:
            path = top.parent / name
            text = path.read_text()
            assert old in text, f"{old!r} is not in {name}"
            path.unlink()
            path.write_text(text.replace(old, new, 1))
        return Package("edited", "1", top.parent, "0")

    return make


def against(installed: Path, candidate: Package) -> TierResult:
    return judge(Package("installed", "1", installed, "0"), candidate, None)


def test_the_installed_package_against_itself_passes_with_notes_alone(
    installed: Path, edited: Callable[..., Package]
) -> None:
    result = against(installed, edited())
    assert result.status is Status.PASS
    assert {(one.change, one.weight) for one in result.findings} == {
        (Change.UNCHANGED, Weight.NOTE)
    }, [one.what for one in result.findings if one.change is not Change.UNCHANGED]
    assert {one.key for one in result.findings} >= {
        f"static/region/{name}" for name in ("planner", "kernel", "bindings", "libraries")
    }
    assert "not judged" in result.facts and "names" in result.facts["not judged"]


def test_comments_and_layout_change_not_one_byte_of_what_is_found(
    installed: Path, edited: Callable[..., Package]
) -> None:
    before = against(installed, Package("same", "1", installed, "0")).findings
    after = against(
        installed,
        edited(
            (SCHEDULER, "inline cudaError_t MLAPlan(", "inline /* { */ cudaError_t\n  MLAPlan ("),
            (SCHEDULER, "struct MLAPlanInfo {", "// int64_t other;\nstruct MLAPlanInfo\n{\n"),
            (KERNEL, "namespace hopper {", "namespace hopper {  // void f() {}\n"),
            ("flashinfer/jit/core.py", "def gen_jit_spec(", "# builds\n\ndef gen_jit_spec(\n"),
        ),
    ).findings
    assert before == after


@pytest.mark.parametrize(
    ("edit", "key", "says"),
    [
        ((SCHEDULER, "            q_len_offset,\n            kv_len_offset,",
          "            kv_len_offset,\n            q_len_offset,"),
         "written", "place 10, which was q_len and is kv_len"),
        ((SCHEDULER, "q_start_offset = vec[12];\n    kv_start_offset = vec[13]",
          "q_start_offset = vec[13];\n    kv_start_offset = vec[12]"),
         "read", "place 12, which was q_start and is kv_start"),
        ((SCHEDULER, "  int64_t partial_lse_offset;\n\n  std::vector<int64_t> ToVector",
          "  int64_t partial_lse_offset;\n  int64_t extra;\n\n  std::vector<int64_t> ToVector"),
         "fields", "place"),
        ((SCHEDULER, "max_total_num_works = 16384", "max_total_num_works = 32768"),
         "arrays", "16384 and is max_total_num_works=32768"),
        ((SCHEDULER, "struct MLAPlanInfo {", "struct MLAPlanData {"), "written", "cannot be read"),
    ],
)  # fmt: skip
def test_a_moved_array_is_an_objection_that_names_the_first_field(
    installed: Path, edited: Callable[..., Package], edit: Edit, key: str, says: str
) -> None:
    result = against(installed, edited(edit))
    objections = {one.key: one for one in result.findings if one.objects}
    assert result.status is Status.FAIL and f"static/layout/{key}" in objections, objections
    one = objections[f"static/layout/{key}"]
    assert says in one.what and one.cause.startswith(f"{SCHEDULER}: MLAPlan"), one


def test_two_arrays_that_change_places_in_the_workspace_are_named(
    installed: Path, edited: Callable[..., Package]
) -> None:
    text = (installed / SCHEDULER).read_text()
    start = text.index("  plan_info.kv_start_offset =\n")
    middle = text.index("  plan_info.kv_end_offset =\n", start)
    end = text.index("  plan_info.work_indptr_offset", middle)
    swap = (SCHEDULER, text[start:end], text[middle:end] + text[start:middle])
    one = only(against(installed, edited(swap)).findings)
    assert one.key == "static/layout/arrays" and "kv_end[" in one.what, one


@pytest.mark.parametrize(
    ("edit", "regions", "cause"),
    [
        ((KERNEL, "update_md_(", "update_md_(int extra, "), {"kernel"}, f"{KERNEL}: update_md_"),
        ((SCHEDULER, "if (x <= 8) {\n      return 32;", "if (x <= 8) {\n      return 64;"),
         None, None),
        ((f"{HEADERS}attention/heap.h", "std::push_heap", "std::make_heap"),
         {"planner"}, f"{HEADERS}attention/heap.h: MinHeap::insert"),
        ((f"{HEADERS}attention/state.cuh", "void normalize() {", "void normalize() { m += 1;"),
         {"kernel"}, f"{HEADERS}attention/state.cuh: state_t::normalize"),
        ((f"{HEADERS}attention/mla.cuh", "void write_empty_o(", "void write_empty_o(int, "),
         set(), ""),
        (("flashinfer/data/csrc/batch_mla_sm90_plan.cu", "bool causal) {", "bool causal) {;"),
         {"bindings"},
         "flashinfer/data/csrc/batch_mla_sm90_plan.cu: BatchMLAPagedAttentionSM90Plan"),
        ((TEMPLATE, "#pragma once", "#pragma once\nint a = 1;"),
         {"bindings"}, f"{TEMPLATE}: variable a"),
        (("flashinfer/jit/attention/modules.py", "extra_cuda_cflags += sm90a_nvcc_flags",
          "extra_cuda_cflags += []"),
         {"bindings"}, "flashinfer/jit/attention/modules.py: gen_batch_mla_module"),
        ((f"{HEADERS}attention/prefill.cuh", "namespace flashinfer {", "namespace flashinfer {\n;"),
         {"rest"}, f"{HEADERS}attention/prefill.cuh: elsewhere"),
    ],
)  # fmt: skip
def test_a_changed_line_is_told_with_its_region_and_function(
    installed: Path,
    edited: Callable[..., Package],
    edit: Edit,
    regions: set[str] | None,
    cause: str | None,
) -> None:
    if regions is None:  # the rule that splits long rows stands in several planners
        text = (installed / SCHEDULER).read_text()
        place = text.index("inline cudaError_t MLAPlan(")
        old = text[place : text.index(edit[1], place) + len(edit[1])]
        edit = (SCHEDULER, old, old.removesuffix(edit[1]) + edit[2])
        regions, cause = {"planner"}, f"{SCHEDULER}: MLAPlan"
    result = against(installed, edited(edit))
    assert result.status is Status.PASS, [one for one in result.findings if one.objects]
    changed = {one.key: one for one in result.findings if one.change is not Change.UNCHANGED}
    assert set(changed) == {f"static/region/{name}" for name in regions}, changed
    for one in changed.values():
        assert one.weight is Weight.REVIEW and one.cause == cause, one
        assert (cause or "").rpartition(" ")[2] in one.what, one


def test_the_python_that_a_subject_runs_is_a_region(tmp_path: Path) -> None:
    def region(name: str, *edits: Edit) -> Finding:
        sides = package(tmp_path / f"{name}-a"), package(tmp_path / f"{name}-b", edits)
        (one,) = [x for x in judge(*sides, USES).findings if x.key == "static/region/wrapper"]
        return one

    assert region("same").change is Change.UNCHANGED
    core, helpers = "flashinfer/mla/_core.py", "flashinfer/mla/_helpers.py"
    comment = region("comment", (core, "# plans", "'''Plans.'''\n        # and so on\n"))
    assert comment == region("same"), comment
    one = region("ran", (core, "return q\n", "return q.clone()\n"))
    assert (one.weight, one.cause) == (Weight.REVIEW, f"{core}: Wrapper._run"), one
    one = region("mentioned", (helpers, "return starts", "return lengths"))
    assert one.cause == f"{helpers}: checked", one
    one = region(
        "new", (helpers, "return starts", "return lengths"), (core, "return q\n", "return 1\n")
    )
    assert one.cause == f"{core}: Wrapper._run" and "checked" in one.after, one
