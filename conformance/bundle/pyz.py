"""The bundle as one file: a zip that Python starts, with the manifest and the packed payload."""

import tempfile
import zipfile
from collections import Counter
from pathlib import Path

from conformance.bundle import layout, manifest
from conformance.bundle.archive import files_below, pack_tar
from conformance.bundle.errors import TooLarge
from conformance.bundle.manifest import Manifest

ROOT = Path(__file__).parents[2]
MOST_BYTES = 10_000_000
"""A file that goes by mail, or through a ticket system's door."""
CODE = (
    *("conformance/__init__.py", "conformance/entries.py", "conformance/ownership.py"),
    *("conformance/settings.py", "conformance/bundle/__init__.py"),
    *("conformance/bundle/archive.py", "conformance/bundle/errors.py"),
    *("conformance/bundle/host.py", "conformance/bundle/layout.py"),
    *("conformance/bundle/manifest.py", "conformance/bundle/start.py"),
    "conformance/bundle/toolkit.py",
)
"""What runs before the payload is unpacked."""
_FIRST = "conformance/bundle/first.py"
_TIME = (1980, 1, 1, 0, 0, 0)


def write(stage: Path, told: Manifest, target: Path, most: int = MOST_BYTES) -> None:
    """Pack a folder into a bundle; the same files give the same bytes.

    Raises TooLarge, and leaves nothing, where that has more than `most` bytes.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".bundle-", dir=target.parent) as scratch:
        payload, whole = Path(scratch, layout.PAYLOAD), Path(scratch, target.name)
        pack_tar(stage, payload)
        with zipfile.ZipFile(whole, "w") as out:
            _add(out, "__main__.py", (ROOT / _FIRST).read_bytes())
            for name in CODE:
                _add(out, name, (ROOT / name).read_bytes())
            _add(out, manifest.NAME, manifest.text_of(told).encode())
            _add(out, layout.PAYLOAD, payload.read_bytes(), zipfile.ZIP_STORED)
        size = whole.stat().st_size
        if size > most:
            parts = ", ".join(f"{name} {part / 1e6:.2f} MB" for name, part in _largest(stage))
            raise TooLarge(
                f"{target.name}: found {size / 1e6:.2f} MB; allowed: {most / 1e6:.2f} MB; its "
                f"largest parts, packed: {parts}; to fix: leave files out of what "
                "conformance/bundle/trim.py or packages.py takes"
            )
        whole.replace(target)


def _add(
    out: zipfile.ZipFile, name: str, content: bytes, method: int = zipfile.ZIP_DEFLATED
) -> None:
    item = zipfile.ZipInfo(name, _TIME)
    item.create_system, item.external_attr, item.compress_type = 3, 0o644 << 16, method
    out.writestr(item, content, compresslevel=9)


def _largest(stage: Path, count: int = 6) -> list[tuple[str, int]]:
    """The parts of a bundle that take most, each packed by itself."""
    plain: Counter[str] = Counter()
    for name in files_below(stage):
        depth = 4 if name.parts[:3] == ("flashinfer", "flashinfer", "data") else 2
        plain["/".join(name.parts[:depth])] += (stage / name).stat().st_size
    parts = []
    with tempfile.TemporaryDirectory(prefix="smla-parts-") as scratch:
        for part, _ in plain.most_common(3 * count):
            packed = Path(scratch, "part")
            if (stage / part).is_dir():
                pack_tar(stage / part, packed)
                parts.append((part, packed.stat().st_size))
    return sorted(parts, key=lambda one: -one[1])[:count]
