"""Fetches wheels with pip, without their dependencies, into the cache."""

import re
import subprocess
import sys
from pathlib import Path

from packaging.version import InvalidVersion, Version

from conformance.bundle.errors import FetchError, VersionError
from conformance.cache import Cache

KIND = "wheels"
# pip matches these one by one, the first ones preferred: wheels for older C libraries first.
_PLATFORMS = (
    *("manylinux1_x86_64", "manylinux2010_x86_64", "manylinux2014_x86_64"),
    *(f"manylinux_2_{minor}_x86_64" for minor in (5, 12, 17, 24, 27, 28, 31, 34)),
)


def checked_version(version: str) -> str:
    """The version as the index writes it; VersionError when it is none."""
    try:
        return str(Version(version))
    except InvalidVersion as error:
        raise VersionError(
            f"FlashInfer version: found {version!r}; allowed: a version such as 0.7.2.post1, or a "
            "wheel file; to fix: correct it"
        ) from error


def checked_python_tag(tag: str) -> str:
    """The tag itself; VersionError when it does not name a CPython the suite supports."""
    match = re.fullmatch(r"cp3(\d+)", tag)
    if match is None or int(match[1]) < 11:
        raise VersionError(f"Python tag: found {tag!r}; allowed: cp311 and newer, such as cp312")
    return tag


def wheel(name: str, version: str, cache: Cache, python_tag: str | None = None) -> Path:
    """The wheel of exactly this version: from the cache, else from pip's package index.

    With a Python tag, one for that CPython on Linux x86-64 rather than for this interpreter.
    """
    folder = cache.entry(
        KIND,
        inputs(name, version, python_tag),
        lambda empty: _pip_download(f"{name}=={version}", empty, python_tag),
    )
    (found,) = folder.glob("*.whl")
    return found


def inputs(name: str, version: str, python_tag: str | None) -> dict[str, object]:
    """What names a wheel's entry in the cache."""
    return {"wheel": name, "version": version, "python": python_tag, "platforms": _PLATFORMS}


def _pip_download(requirement: str, dest: Path, python_tag: str | None) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(dest)]
    if python_tag is not None:
        command += ["--implementation", "cp", "--python-version", f"3.{python_tag[3:]}"]
        for platform in _PLATFORMS:
            command += ["--platform", platform]
    done = subprocess.run([*command, requirement], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = lines[-1] if lines else f"pip ended with {done.returncode}"
        raise FetchError(
            f"{requirement}: not fetched ({reason}); give a released version, or check pip's "
            f"index and network with: {sys.executable} -m pip download --no-deps {requirement}"
        )
