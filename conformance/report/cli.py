"""The commands `report` and `merge`."""

from pathlib import Path

import click
from rich.console import Console

from conformance import settings
from conformance.report.gather import gather
from conformance.report.judged import of_subjects
from conformance.report.markdown import markdown
from conformance.report.merge import merge
from conformance.report.page import page
from conformance.report.sources import ReportError

PAGE = "report.html"
_FOLDERS = click.argument("folders", nargs=-1, type=click.Path(path_type=Path))
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("report")
@_FOLDERS
@click.option("--html", type=_FILE, help=f"The page. Default: {PAGE} in the first folder.")
@click.option("--markdown", "summary", type=_FILE, help="A summary, too; - prints it.")
@click.pass_obj
def report_command(
    given: dict[str, object] | None,
    folders: tuple[Path, ...],
    html: Path | None,
    summary: Path | None,
) -> None:
    """Make one HTML page of report folders' records.

    FOLDERS: one or more; by default the setting's. Exit code 0: the page is made. It says whether
    the subjects conform; the exit code does not. 3: the records are not whole or not of one suite.
    """
    chosen = folders or (settings.load(given).report,)
    model = gather(chosen)
    console = Console(soft_wrap=True, highlight=False)
    path = html or chosen[0] / PAGE
    _write(path, page(model))
    told = Console(soft_wrap=True, highlight=False, stderr=str(summary) == "-")
    if summary is not None and str(summary) == "-":
        console.print(markdown(model), markup=False, end="")
    elif summary is not None:
        _write(summary, markdown(model))
    for judgement in of_subjects(model):
        reasons = "; ".join(judgement.reasons)
        told.print(f"{judgement.title} {judgement.word}: {reasons}", markup=False)
    told.print(f"report: {path}", markup=False)


@click.command("merge")
@_FOLDERS
@click.option("--into", required=True, type=click.Path(path_type=Path), help="A new folder.")
def merge_command(folders: tuple[Path, ...], into: Path) -> None:
    """Copy the records of several report folders into one new folder.

    FOLDERS: two or more, of one schema and one commit of the suite; all are copied, or none.
    """
    if not folders:
        raise ReportError(
            "merge: found no folder; allowed: one or more; to fix: name the folders of the runs"
        )
    files = merge(folders, into)
    Console(soft_wrap=True, highlight=False).print(
        f"merged {len(files)} record files into {into}", markup=False
    )


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as problem:
        raise ReportError(
            f"{path}: found {problem.strerror}; allowed: a file that can be written; to fix: name "
            "another with --html or --markdown"
        ) from problem
