"""The command `bundle`."""

from pathlib import Path

import click
from rich.console import Console

from conformance.bundle.archive import sha256
from conformance.bundle.build import build
from conformance.bundle.errors import BundleError
from conformance.cache import CacheError
from conformance.core import environment


class BundleFailed(click.ClickException):
    """A bundle was not made; ends the command with 3, the code of a failed suite."""

    exit_code = 3


@click.command("bundle")
@click.argument("versions", nargs=-1, required=True, metavar="VERSION...")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("bundles"),
    show_default=True,
    help="Folder for the bundles.",
)
@click.option(
    "--python", "tag", default="cp312", show_default=True, help="CPython of the GPU host."
)
def bundle_command(versions: tuple[str, ...], out: Path, tag: str) -> None:
    """Pack all that a GPU host without network needs to judge FlashInfer VERSION, in one file each.

    VERSION may be a wheel file, too. Needs nvcc, ninja and a C++ compiler, no GPU; a first build
    takes some minutes. Fetches what the cache does not have.
    """
    console = Console(soft_wrap=True, highlight=False, emoji=False)
    if environment.commit() is None:
        console.print("no checkout: the bundle will know no commit of the suite", markup=False)
    for version in dict.fromkeys(versions):
        try:
            made = build(version, out, tag)
        except (BundleError, CacheError) as error:
            raise BundleFailed(f"FlashInfer {version}: {error}") from error
        digest = sha256(made)
        console.print(f"{made} ({made.stat().st_size / 1e6:.2f} MB)", markup=False)
        console.print(f"  SHA-256 {digest}", markup=False)
        console.print(
            f"  on the GPU host: python{tag[2]}.{tag[3:]} {made.name} --expect-sha256 {digest} "
            "doctor",
            markup=False,
        )
