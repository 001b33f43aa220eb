"""The only room that names a subject: adapters from a backend's API to the suite's protocol."""

import re
from collections.abc import Callable
from importlib import import_module, metadata

from conformance.core.request import Identity, SuiteError

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


def factory_of(name: str) -> str:
    """The factory of a subject as package.module:factory; SuiteError where there is none."""
    if name in SUBJECTS:
        return SUBJECTS[name]
    if found_by := resolver(name):
        return found_by(name)
    module, _, rest = name.partition(":")
    factory = rest.partition("@")[0]
    problem = "no subject of this name"
    if factory:
        try:
            if callable(getattr(import_module(module), factory)):
                return name
            problem = f"{factory} of {module} cannot be called"
        except Exception as found:  # importing a stranger's module raises anything
            problem = f"{type(found).__name__}: {found}"
    raise SuiteError(
        f"subject {name!r}: found {problem}; allowed: {ALLOWED}; to "
        "fix: correct the name, or put the package on PYTHONPATH"
    )
