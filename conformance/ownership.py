"""Marks folders as made by this suite, so that `clean` can tell them from anybody else's.

A folder is claimed only while it is absent or empty; one that already holds something is used, but
never becomes ours. The standard library alone.
"""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Marker:
    """A file whose name and line say that this suite made the folder it stands in."""

    name: str
    text: str

    def owns(self, folder: Path) -> bool:
        """Whether the folder bears this marker."""
        try:
            return (folder / self.name).read_text() == self.text
        except (OSError, UnicodeDecodeError):
            return False

    def claim(self, folder: Path) -> bool:
        """Make the folder and mark it; False where it holds files and no marker of ours.

        Safe against others that claim it at the same time. Raises OSError where it cannot write.
        """
        folder.mkdir(parents=True, exist_ok=True)
        if self.owns(folder):
            return True
        draft = f".{self.name}."
        if any(not item.name.startswith(draft) for item in folder.iterdir()):
            return self.owns(folder)  # somebody may have claimed it just now
        handle, name = tempfile.mkstemp(dir=folder, prefix=draft)
        with os.fdopen(handle, "w") as file:
            file.write(self.text)
        os.replace(name, folder / self.name)
        return True


# The first line is the Cache Directory Tagging Specification's, so that backups leave it out.
CACHE = Marker(
    "CACHEDIR.TAG",
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# smla-cache/1: made by `python -m conformance`, which can make all of it again;\n"
    "# `python -m conformance clean` deletes it.\n",
)
REPORT = Marker(
    ".smla-report",
    "smla-report/1: made by `python -m conformance`; its command `clean` deletes what it wrote.\n",
)
