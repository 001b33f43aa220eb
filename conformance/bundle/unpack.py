"""Lays a bundle out on the GPU host and tells how to use it; needs the standard library alone.

python -m conformance.bundle.unpack bundles/flashinfer-0.7.2.post1-cp312.tar.gz /some/folder
"""

import argparse
import shlex
import sys
import tempfile
from pathlib import Path

from conformance.bundle import manifest
from conformance.bundle.archive import unpack_tar
from conformance.bundle.errors import BundleError, ManifestError


def unpack(archive: Path, dest: Path) -> manifest.Manifest:
    """Unpack and verify into a folder that must not exist yet or be empty.

    Nothing is left in `dest` when the archive is unsafe or differs from its manifest.
    """
    if dest.exists() and (not dest.is_dir() or any(dest.iterdir())):
        raise ManifestError(f"{dest}: exists and is not empty; give a new folder")
    dest.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=dest.parent, prefix=".unpacking-") as scratch:
        inner = Path(scratch) / "bundle"
        unpack_tar(archive, inner)
        found = manifest.verify(inner)
        if dest.exists():
            dest.rmdir()
        inner.rename(dest)
    return found


def environment(folder: Path) -> dict[str, str]:
    """Variables under which Python finds the bundle's packages and FlashInfer its modules."""
    python_path = [str(folder.resolve() / part) for part in manifest.read(folder).python_path]
    return {"PYTHONPATH": ":".join(python_path), "FLASHINFER_DISABLE_JIT": "1"}


def export_line(folder: Path) -> str:
    """A shell line that sets the environment and keeps a PYTHONPATH that is already there."""
    values = environment(folder)
    path = f"{shlex.quote(values.pop('PYTHONPATH'))}${{PYTHONPATH:+:$PYTHONPATH}}"
    others = " ".join(f"{name}={shlex.quote(value)}" for name, value in values.items())
    return f"export PYTHONPATH={path} {others}"


def main(arguments: list[str] | None = None) -> int:
    """Command line; 0 when unpacked and verified, else 3."""
    parser = argparse.ArgumentParser(
        prog="python -m conformance.bundle.unpack", description=__doc__
    )
    parser.add_argument("archive", type=Path)
    parser.add_argument("folder", type=Path)
    try:
        options = parser.parse_args(arguments)
    except SystemExit as stop:
        return 3 if stop.code else 0
    try:
        found = unpack(options.archive, options.folder)
    except (BundleError, OSError) as error:
        sys.stderr.write(f"bundle: {error}\n")
        return 3
    here = f"cp3{sys.version_info.minor}"
    if found.python_tag != here:
        sys.stderr.write(
            f"bundle: made for {found.python_tag}, this Python is {here}: apache-tvm-ffi will not "
            f"load; build with --python {here}\n"
        )
    sys.stdout.write(export_line(options.folder) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
