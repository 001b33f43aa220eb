"""The command `bundle`."""

from pathlib import Path

import click
from rich.console import Console

from conformance.bundle.build import build
from conformance.bundle.errors import BundleError
from conformance.cache import CacheError


class BundleFailed(click.ClickException):
    """The bundle was not made; ends the command with 3, the code of a failed suite."""

    exit_code = 3


@click.command("bundle")
@click.argument("version")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("bundles"),
    show_default=True,
    help="Folder for the archive.",
)
@click.option(
    "--python", "tag", default="cp312", show_default=True, help="CPython of the GPU host."
)
@click.option("--with-suite", is_flag=True, help="Add pytest, hypothesis, rich and the like.")
def bundle_command(version: str, out: Path, tag: str, with_suite: bool) -> None:
    """Pack what a GPU host without network needs to test FlashInfer VERSION.

    Needs nvcc, ninja and a C++ compiler, no GPU; a first build takes some minutes.
    """
    try:
        archive = build(version, out, tag, with_suite=with_suite)
    except (BundleError, CacheError) as error:
        raise BundleFailed(str(error)) from error
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"{archive} ({archive.stat().st_size / 1e6:.1f} MB)")
    console.print(f"On the GPU host: python -m conformance.bundle.unpack {archive.name} FOLDER")
