"""Names what each part of the suite finds on this machine and how to get what is missing."""

import importlib
import importlib.metadata
import importlib.util
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import click
from rich.console import Console
from rich.table import Table

from conformance import driver, settings
from conformance.bundle import manifest, toolkit
from conformance.bundle.errors import ToolMissing
from conformance.core.request import ROOT
from conformance.twin.semantics import BY_VERSION

State = Literal["ok", "missing"]
Need = Literal["twin", "planner", "hopper", "bundle"]

NEEDS: dict[Need, str] = {
    "twin": "the twin tier: every check that needs no GPU",
    "planner": "the twin's planner against FlashInfer's own",
    "hopper": "the hopper tier: the real kernels",
    "bundle": "making a bundle for a GPU host without network",
}
FLASHINFER = "0.7.2.post1"
"""The version to install where there is none."""
# What `import flashinfer.mla` and its module loader import, torch and triton aside.
_FLASHINFER_IMPORTS = ("tvm_ffi", "einops", "jinja2", "numpy", "pynvml", "requests", "tqdm")


@dataclass(frozen=True)
class Finding:
    """One thing looked for: what was found, who needs it, and what to do when it is missing."""

    name: str
    state: State
    detail: str
    needed_for: tuple[Need, ...]
    remedy: str = ""


def examine() -> list[Finding]:
    """Look at this machine; never raises for something that is absent or broken."""
    gpus = driver.query()
    return [
        _python(),
        _torch(gpus),
        _package("triton", ("twin", "hopper"), "python -m pip install triton"),
        _flashinfer(),
        *_bundle(),
        _planner_compiler(),
        _planner_headers(),
        _driver(gpus),
        _capability(gpus),
        _nvcc(),
        _ninja(),
        _flashinfer_imports(),
    ]


def missing_for(findings: Sequence[Finding], need: Need) -> list[Finding]:
    """The findings that keep this part of the suite from running."""
    return [item for item in findings if item.state == "missing" and need in item.needed_for]


def render(findings: Sequence[Finding], console: Console) -> None:
    """Write the findings as a table, then one line per part of the suite."""
    table = Table(box=None, pad_edge=False)
    for title in ("", "looked for", "found", "needed for"):
        table.add_column(title)
    for item in findings:
        mark = "[green]ok[/]" if item.state == "ok" else "[red]missing[/]"
        table.add_row(mark, item.name, item.detail, ", ".join(item.needed_for))
    console.print(table)
    remedies = [item for item in findings if item.state == "missing"]
    for item in remedies:
        console.print(f"\n{item.name}: {item.remedy}", soft_wrap=True, highlight=False)
    console.print()
    for need, meaning in NEEDS.items():
        gaps = missing_for(findings, need)
        verdict = f"cannot run: {', '.join(item.name for item in gaps)}" if gaps else "can run"
        console.print(f"{need} ({meaning}): {verdict}", soft_wrap=True, highlight=False)


def render_settings(chosen: settings.Settings, console: Console) -> None:
    """Write every setting's value and where it came from."""
    table = Table(box=None, pad_edge=False)
    for title in ("setting", "value", "from"):
        table.add_column(title, overflow="fold")
    for row in chosen.rows():
        table.add_row(*row)
    console.print()
    console.print(table, markup=False)


def _python() -> Finding:
    found = ".".join(map(str, sys.version_info[:3]))
    state: State = "ok" if sys.version_info >= (3, 11) else "missing"
    return Finding("Python", state, found, ("twin", "hopper"), "use Python 3.11 or newer")


def _torch(gpus: driver.Gpus) -> Finding:
    name = "torch build"
    remedy = (
        "python -m pip install torch"
        if gpus.hopper
        else "python -m pip install torch --index-url https://download.pytorch.org/whl/cpu"
    )
    try:
        import torch
    except Exception as error:  # a broken install raises anything
        return Finding(name, "missing", f"no import: {error}", ("twin", "hopper"), remedy)
    cuda = torch.version.cuda
    detail = f"{torch.__version__}, " + (f"CUDA {cuda}" if cuda else "CPU only")
    if gpus.hopper and not torch.cuda.is_available():
        return Finding(name, "missing", f"{detail}: sees no GPU", ("hopper",), remedy)
    return Finding(name, "ok", detail, ("twin", "hopper"))


def _package(name: str, needed_for: tuple[Need, ...], remedy: str) -> Finding:
    version = _version(name)
    if version is None:
        return Finding(name, "missing", "not installed", needed_for, remedy)
    return Finding(name, "ok", version, needed_for)


def _flashinfer() -> Finding:
    name = "FlashInfer"
    needed_for: tuple[Need, ...] = ("planner", "hopper")
    remedy = (
        f"python -m pip install flashinfer-python=={FLASHINFER} (with --no-deps where "
        "there is no GPU), or start a bundle, which brings it along"
    )
    version = _version("flashinfer-python")
    if version is None or importlib.util.find_spec("flashinfer") is None:
        return Finding(name, "missing", "not installed", needed_for, remedy)
    if version not in BY_VERSION:
        detail = f"{version}; the suite knows {', '.join(BY_VERSION)}"
        return Finding(name, "missing", detail, needed_for, remedy)
    return Finding(name, "ok", version, needed_for)


def _bundle() -> list[Finding]:
    """Which bundle this suite runs from, if it does."""
    bundle = manifest.around(ROOT)
    if bundle is None:
        return []
    detail = (
        f"FlashInfer {bundle.flashinfer}, wheel {bundle.wheel[:12]}, suite "
        f"{(bundle.suite['commit'] or 'unknown')[:12]}"
    )
    return [Finding("bundle", "ok", detail, ("hopper",))]


def _planner_compiler() -> Finding:
    program = shutil.which("g++")
    if program is None:
        return Finding("g++", "missing", "not on PATH", ("planner",), toolkit.CXX_REMEDY)
    return Finding("g++", "ok", program, ("planner",))


def _planner_headers() -> Finding:
    name = "planner headers"
    try:
        from conformance.twin import compiled
        from conformance.twin.errors import CompilerMissing
    except ImportError as error:  # torch, say, which has its own finding
        return Finding(name, "missing", f"no import: {error}", ("planner",), "install the above")
    lookups: tuple[Callable[[], object], ...] = (compiled.flashinfer_include, compiled.cuda_include)
    for look_up in lookups:
        try:
            look_up()
        except CompilerMissing as error:
            found, _, remedy = str(error).partition("; ")
            return Finding(name, "missing", found, ("planner",), remedy)
    return Finding(name, "ok", "FlashInfer's and CUDA's", ("planner",))


def _driver(gpus: driver.Gpus) -> Finding:
    if not gpus.source:
        remedy = "install NVIDIA's driver for CUDA 13 (580 or newer); only a GPU machine needs it"
        return Finding("driver", "missing", "no nvidia-smi, no libcuda.so.1", ("hopper",), remedy)
    detail = f"{gpus.driver or 'version unknown'} (told by {gpus.source})"
    return Finding("driver", "ok", detail, ("hopper",))


def _capability(gpus: driver.Gpus) -> Finding:
    name, shown = "GPU", sorted({f"{major}.{minor}" for major, minor in gpus.capabilities})
    if gpus.hopper:
        detail = f"{gpus.capabilities.count(driver.HOPPER)} of capability 9.0"
        return Finding(name, "ok", detail, ("hopper",))
    detail = f"capability {', '.join(shown)}" if shown else "none visible"
    remedy = "use a machine with an H100, H200 or another GPU of compute capability 9.0"
    return Finding(name, "missing", detail, ("hopper",), remedy)


def _nvcc() -> Finding:
    home = toolkit.cuda_home()
    if home is None:
        return Finding("nvcc", "missing", "no CUDA toolkit", ("bundle",), toolkit.NVCC_REMEDY)
    try:
        detail = f"CUDA {toolkit.find_toolkit().cuda} in {home}"
    except ToolMissing:  # something else is missing too
        detail = str(home)
    return Finding("nvcc", "ok", detail, ("bundle",))


def _ninja() -> Finding:
    program = toolkit.ninja()
    if program is None:
        return Finding("ninja", "missing", "not on PATH", ("bundle",), toolkit.NINJA_REMEDY)
    return Finding("ninja", "ok", program, ("bundle",))


def _flashinfer_imports() -> Finding:
    name = "FlashInfer's imports"
    needed_for: tuple[Need, ...] = ("hopper", "bundle")
    absent = [module for module in _FLASHINFER_IMPORTS if importlib.util.find_spec(module) is None]
    remedy = "python -m pip install -e '.[bundle]'"
    if absent:
        return Finding(name, "missing", f"no {', '.join(absent)}", needed_for, remedy)
    try:  # native code, which may be there and not load
        importlib.import_module("tvm_ffi")
    except Exception as problem:
        found = f"tvm_ffi does not load: {problem}"
        return Finding(name, "missing", found, needed_for, remedy)
    return Finding(name, "ok", f"tvm_ffi {_version('apache-tvm-ffi') or ''}", needed_for)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


@click.command("doctor")
@click.option(
    "--require",
    type=click.Choice(list(NEEDS)),
    multiple=True,
    default=("twin",),
    show_default=True,
    help="A part of the suite that must be able to run; may be given several times.",
)
@click.pass_context
def doctor_command(context: click.Context, require: Sequence[Need]) -> None:
    """Name what is missing on this machine, and the remedy; 2 when a required part cannot run.

    Shows the settings in force, too.
    """
    chosen = settings.load(context.obj)
    findings, console = examine(), Console()
    render(findings, console)
    render_settings(chosen, console)
    if any(missing_for(findings, need) for need in require):
        context.exit(2)
