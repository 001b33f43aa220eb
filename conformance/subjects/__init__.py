"""The only room that names a subject: adapters from a backend's API to the suite's protocol."""

import re
from collections.abc import Callable
from importlib import import_module, metadata

from conformance.core.request import Identity

DEFAULT = "smla"
"""The subject of a run that names none."""

SUBJECTS = {"smla": "conformance.subjects.smla:SmlaSubject"}
"""Known names and their factories."""

RESOLVED = {"vllm": "conformance.subjects.vllm"}
"""Names that may carry a version or a place, and the packages whose `factory` knows them."""

ALLOWED = "smla, vllm, vllm==VERSION, vllm@PATH, or package.module:factory"
"""What may be named, in words."""


def own_identity(name: str) -> Identity | None:
    """Return who our own backend is, where it is installed; None: ask its factory."""
    if name != DEFAULT:
        return None
    try:
        return Identity(DEFAULT, metadata.version(DEFAULT))
    except metadata.PackageNotFoundError:
        return None


def resolver(name: str) -> Callable[[str], str] | None:
    """Return what turns such a name into a factory; None for any other name."""
    package = RESOLVED.get(re.split("[=<>!~@]", name, maxsplit=1)[0])
    if package is None:
        return None
    found: Callable[[str], str] = import_module(package).factory
    return found
