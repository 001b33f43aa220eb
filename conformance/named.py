"""Subjects by the name that a command line gives them."""

from importlib import import_module

from conformance.core.request import SuiteError
from conformance.subjects import ALLOWED, SUBJECTS, resolver


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
