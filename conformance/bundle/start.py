"""Starts a bundle: checks it, lays it out in the cache, and becomes the command asked for.

Runs out of the bundle itself with the standard library alone. Nothing is written before the
bundle's own SHA-256 is checked, where one is given, and before this Python is known to fit.
"""

import hashlib
import os
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from conformance.bundle import host, layout, manifest
from conformance.bundle.errors import BundleError, StartError
from conformance.settings import SettingsError

REFUSED = 3
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "conformance": ("conformance",),
    "fuzz": ("fuzz",),
    "gate": ("conformance", "gate-host"),
    "bench": ("conformance", "bench"),
    "doctor": ("conformance", "doctor"),
}
_LACKING_IS_TOLD_BY = "doctor"
_HELP = """\
{name}: FlashInfer {version} for SM90 and the suite of commit {commit}, on Python {python}.

python {name} [--expect-sha256 HEX] [--jit[=PATTERN]] COMMAND ARGS...

  doctor        what this host has and lacks
  conformance   the suite; `conformance run --tier hopper` judges, `conformance --help` lists all
  fuzz          drawn serving histories; `fuzz run --minutes 10`
  gate          the suite for each --subject, into one archive to carry back
  bench         what plans and kernels cost

--expect-sha256 HEX  refuse to start, with exit code 3, if this file has another SHA-256
--jit                let FlashInfer build its modules here, with this host's nvcc; with =PATTERN
                     only those whose name matches, such as --jit='*_kpe_64_*'
SMLA_CACHE_ROOT names the folder to unpack into; ARGS are the command's own, --help among them.
"""


@dataclass(frozen=True)
class Asked:
    """A bundle's command line. jit: pattern of the modules to build on the host, None for none."""

    command: str = ""
    arguments: tuple[str, ...] = ()
    expected: str | None = None
    jit: str | None = None


def main(archive: str, arguments: Sequence[str]) -> int:
    """Start the bundle at `archive`; returns 0 for help and 3 where it cannot start."""
    path = Path(archive).resolve()
    try:
        asked = parse(arguments)
        digest = checked(path, asked.expected)
        told = read_manifest(path)
        if not asked.command:
            sys.stdout.write(_help(path, told))
            return 0
        host.check_python(told)
        if asked.command != _LACKING_IS_TOLD_BY:
            host.check_packages()
        if asked.jit is not None:
            host.check_compiler()
        folder = layout.lay_out(path, digest, told, asked.jit)
        environment = host.environment(folder, told, asked.jit)
    except (BundleError, SettingsError, OSError) as problem:
        sys.stderr.write(f"bundle: {problem}\n")
        return REFUSED
    become(asked, environment)
    raise AssertionError("unreachable")


def parse(arguments: Sequence[str]) -> Asked:
    """Read the command line up to the command; the rest is the command's own."""
    asked, left = Asked(), list(arguments)
    while left and left[0].startswith("-"):
        option, equals, value = left.pop(0).partition("=")
        if option in ("-h", "--help") and not equals:
            return Asked()
        if option == "--expect-sha256":
            if not equals and not left:
                raise StartError(_wrong("--expect-sha256 without a value"))
            asked = replace(asked, expected=value if equals else left.pop(0))
        elif option == "--jit":
            asked = replace(asked, jit=value if equals else "*")
        else:
            raise StartError(_wrong(f"option {option!r}"))
    if not left:
        if asked != Asked():
            raise StartError(_wrong("no command"))
        return asked
    if left[0] not in COMMANDS:
        raise StartError(_wrong(f"command {left[0]!r}"))
    return replace(asked, command=left[0], arguments=tuple(left[1:]))


def checked(archive: Path, expected: str | None) -> str:
    """The archive's SHA-256; StartError where another one is expected."""
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if expected is not None and expected.strip().lower() != digest:
        raise StartError(
            f"{archive.name}: found SHA-256 {digest}; allowed: {expected}, as --expect-sha256 "
            "says; to fix: copy it again, and compare with what `conformance bundle` told"
        )
    return digest


def read_manifest(archive: Path) -> manifest.Manifest:
    """What a bundle tells of itself; a BundleError for a file that is none, or not whole."""
    try:
        with zipfile.ZipFile(archive) as bundle:
            return manifest.parse(bundle.read(manifest.NAME))
    except (zipfile.BadZipFile, KeyError, EOFError) as problem:
        raise StartError(
            f"{archive.name}: found no whole bundle ({problem}); allowed: a file that "
            "`conformance bundle` made; to fix: copy it again"
        ) from problem


def become(asked: Asked, environment: Mapping[str, str]) -> None:
    """Replace this process by the command: its exit code and every signal are the command's own."""
    sys.stdout.flush()
    sys.stderr.flush()
    command = [sys.executable, "-m", *COMMANDS[asked.command], *asked.arguments]
    os.execve(sys.executable, command, dict(environment))


def _help(archive: Path, told: manifest.Manifest) -> str:
    return _HELP.format(
        name=archive.name,
        version=told.flashinfer,
        commit=(told.suite["commit"] or "unknown")[:12],
        python=host.dotted(told.python_tag),
    )


def _wrong(found: str) -> str:
    return (
        f"command line: found {found}; allowed: [--expect-sha256 HEX] [--jit[=PATTERN]] and one "
        f"of {', '.join(COMMANDS)}; to fix: start it without arguments, which shows them"
    )
