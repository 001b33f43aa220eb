"""Who a subject is: its factory is tried in a process of its own before anything runs."""

from importlib import import_module
from typing import Any

from conformance.core.request import Identity, SuiteError
from conformance.isolation.child import Crashed, Finished, run_isolated

METHODS = ("refusals", "construct")
_SECONDS = 300.0
_TAIL = 1500


def identify(factory: str, given: str = "") -> Identity:
    """Return what a subject says of itself; raise SuiteError for one that cannot be judged.

    factory: package.module:factory. given: its name on the command line, for the message.
    """
    done = run_isolated(f"{__name__}:in_child", {"subject": factory}, timeout_s=_SECONDS)
    if isinstance(done, Finished) and "name" in done.value:
        return Identity(**done.value)
    if isinstance(done, Finished):
        found = done.value.get("problem") or f"a CUDA error in its factory: {done.cuda_error}"
    elif isinstance(done, Crashed):
        how = done.signal or f"exit status {done.returncode}"
        found = f"a factory that ends its process ({how}): {done.stderr_tail[-_TAIL:].strip()}"
    else:
        found = f"a factory that did not return within {_SECONDS:g} s"
    raise SuiteError(
        f"subject {given or factory!r}: found {found}; allowed: a factory without arguments that "
        "returns what `Subject` in conformance/core/subject.py describes; to fix: call "
        f"{factory.partition(':')[2].partition('@')[0]}() by itself"
    )


def in_child(payload: dict[str, Any]) -> dict[str, Any]:
    """Construct a subject in this process, which is its own; payload and result are JSON.

    payload: subject (package.module:factory). The result holds `problem`, or name and version.
    """
    # The plugin of the processes that run cases, whose way of loading is the one that counts.
    load_subject = import_module("conformance.core.worker").load_subject
    try:
        subject = load_subject(payload["subject"])
    except Exception as problem:  # a stranger's factory raises anything
        return {"problem": f"a factory that raises {type(problem).__name__}: {problem}"}
    if lacks := _lacks(subject):
        return {"problem": f"{type(subject).__name__} from its factory, without {lacks}"}
    return {"name": subject.name, "version": getattr(subject, "version", "")}


def _lacks(subject: Any) -> str:
    """Return what of the protocol a subject does not have, in words."""
    lacks = [f"{name}()" for name in METHODS if not callable(getattr(subject, name, None))]
    if not isinstance(getattr(subject, "name", None), str) or not subject.name:
        lacks.append("a name (str)")
    known = getattr(subject, "capabilities", None)
    if not isinstance(known, frozenset | set) or not all(isinstance(word, str) for word in known):
        lacks.append("capabilities (frozenset of str)")
    if not isinstance(getattr(subject, "version", ""), str):
        lacks.append("a version that is a str")
    return ", ".join(lacks)
