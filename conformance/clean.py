"""The command `clean`: deletes what this suite made, and nothing else."""

import contextlib
import shutil
from pathlib import Path

import click
from rich.console import Console

from conformance import ownership, settings
from conformance.cache import Cache

# All that commands write into a report folder.
REPORT_FILES = (
    *("records-*.jsonl", "records-*.closed", "*-twin.xml", "*-hopper.xml", "bench.json"),
    *("run-*.log", "measured-*.json"),
    *("report.html", "gate.json", "gate.md", "gate.html"),
)
REPORT_FOLDERS = ("processes", "sanitize", "traces", "twin", "hopper")


def clean_report(folder: Path) -> list[tuple[Path, str]]:
    """Delete a report folder's contents as far as they are known; return what was left, and why."""
    if not folder.exists():
        return []
    if not ownership.REPORT.owns(folder):
        return [(folder, f"no {ownership.REPORT.name} of this suite in it")]
    for pattern in REPORT_FILES:
        for path in folder.glob(pattern):
            path.unlink()
    for name in REPORT_FOLDERS:
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
    for path in sorted(folder.iterdir()):  # one for each of several subjects
        if path.is_dir() and not path.is_symlink() and ownership.REPORT.owns(path):
            clean_report(path)
    left = [path for path in sorted(folder.iterdir()) if path.name != ownership.REPORT.name]
    if not left:
        (folder / ownership.REPORT.name).unlink()
        folder.rmdir()
    return [(path, "not made by this suite") for path in left]


@click.command("clean")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--report",
    "reports",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A report folder; several times for more. Default: the setting's.",
)
@click.pass_obj
def clean_command(given: dict[str, object] | None, yes: bool, reports: tuple[Path, ...]) -> None:
    """Delete the cache's contents and report folders, as far as this suite made them."""
    chosen = settings.load(given)
    cache, folders = Cache.of(chosen), reports or (chosen.report,)
    console = Console(soft_wrap=True, highlight=False)
    there = [folder for folder in (cache.root, *folders) if folder.exists()]
    if not there:
        console.print("nothing to clean", markup=False)
        return
    if not yes:
        names = ", ".join(str(folder) for folder in there)
        click.confirm(f"Delete what this suite made in {names}?", abort=True)
    done = cache.clear()
    kept = [*done.kept]
    for folder in folders:
        kept += clean_report(folder)
    console.print(
        f"deleted {done.entries} cache entries ({done.bytes / 1e6:.1f} MB) and "
        f"{sum(not folder.exists() for folder in folders)} report folders",
        markup=False,
    )
    for path, reason in kept:
        console.print(f"left: {path}: {reason}", markup=False)


def claim_report(folder: Path) -> None:
    """Mark a folder that is about to be written to as ours, unless it already held other files."""
    with contextlib.suppress(OSError):  # whoever writes to it next says so
        ownership.REPORT.claim(folder)
