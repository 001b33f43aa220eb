"""The environment of a run: what every record file says in its header."""

import hashlib
import platform
import subprocess
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from conformance.bundle import manifest

ROOT = Path(__file__).parents[2]
ROOMS = ("conformance", "fuzz", "golden")
"""The rooms that judge."""

GOLDEN_SET = Path("golden/data")
HARDWARE_RECORDS = Path("conformance/traces/hardware")
LEFT_OUT = frozenset({GOLDEN_SET, HARDWARE_RECORDS})
"""Data that no GPU host needs, in folders that say by themselves what they hold."""


def describe(rooms: Sequence[str] = ROOMS) -> dict[str, Any]:
    """Return versions, processor and GPU, and the suite's commit; None for what is absent.

    In a bundle the commit is that of the checkout it was made from.

    rooms: those whose files count. sources: digest of these files, which tells one suite from
    another where there is no checkout, or where it has changes.
    """
    gpu: dict[str, Any] | None = None
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        gpu = {
            "name": properties.name,
            "capability": list(torch.cuda.get_device_capability(0)),
            "sms": properties.multi_processor_count,
            "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        }
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": _version("triton"),
        "flashinfer": _version("flashinfer-python"),
        "commit": commit(),
        "sources": digest(ROOT, rooms),
        "gpu": gpu,
    }


def commit() -> str | None:
    """Return the suite's commit; None where it is neither in a checkout nor in a bundle."""
    bundle = manifest.around(ROOT)
    if bundle is not None:  # its folder may lie in a checkout of something else
        return bundle.suite["commit"]
    return _output("git", "rev-parse", "--verify", "--quiet", "HEAD")


def files(root: Path, rooms: Sequence[str]) -> Iterator[Path]:
    """Yield the names of the files that make some rooms, relative to `root`, in order.

    Hidden ones and what Python writes beside sources are none of them, nor is what is LEFT_OUT: the
    golden set, which no case reads, would take a third of a bundle, and hardware records a tenth.
    """
    for room in rooms:
        for path in sorted((root / room).rglob("*")):
            name = path.relative_to(root)
            hidden = any(part.startswith(".") or part == "__pycache__" for part in name.parts)
            if not hidden and LEFT_OUT.isdisjoint(name.parents) and path.is_file():
                yield name


def digest(root: Path, rooms: Sequence[str] = ROOMS) -> str:
    """Return a digest of the files of some rooms, by name and content."""
    found = hashlib.sha256()
    for name in files(root, rooms):
        content = (root / name).read_bytes()
        found.update(f"{name.as_posix()}\0{len(content)}\0".encode())
        found.update(content)
    return found.hexdigest()[:16]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=30, cwd=Path(__file__).parent
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
