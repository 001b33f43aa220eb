"""Whether the FlashInfer on the path can stand on the twin, asked of a process of its own."""

from importlib import import_module
from typing import Any

from conformance.core.request import SuiteError
from conformance.isolation.child import Crashed, Finished, run_isolated

_SECONDS = 120.0
_TAIL = 800


def stands_on_the_twin() -> str:
    """Return its version; raise SuiteError where it is missing, or its kernel's semantics are."""
    done = run_isolated(f"{__name__}:in_child", {}, timeout_s=_SECONDS)
    if isinstance(done, Finished) and "version" in done.value:
        return str(done.value["version"])
    if isinstance(done, Finished):
        found = str(done.value.get("problem") or done.value)
    elif isinstance(done, Crashed):
        found = f"a FlashInfer that does not import: {done.stderr_tail[-_TAIL:].strip()}"
    else:
        found = f"a FlashInfer that was not imported within {_SECONDS:g} s"
    raise SuiteError(
        f"--flashinfer installed: found {found}; allowed: a FlashInfer on the path whose Python "
        "code imports and whose kernel the twin knows; to fix: put another on PYTHONPATH, or name "
        "a version that the twin simulates"
    )


def in_child(payload: dict[str, Any]) -> dict[str, Any]:
    """Enter the tier in this process, which is its own; the result holds `problem` or `version`."""
    tiers = import_module("conformance.tiers")
    unknown = import_module("conformance.twin.errors").UnknownSemanticsError
    try:
        with tiers.installed() as tier:
            return {"version": tier.simulates}
    except unknown as problem:
        return {"problem": f"semantics unknown: {problem}"}
    except ImportError as problem:
        return {"problem": f"{type(problem).__name__}: {problem}"}
