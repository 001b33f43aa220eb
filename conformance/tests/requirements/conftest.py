"""The canary fixture: a probe's sighting, in process on the twin, in a child on a GPU."""

import os
from collections.abc import Callable
from typing import Any

import pytest

from conformance.canary.probe import Sighting, probe_of
from conformance.core.case import parse
from conformance.core.lab import Lab
from conformance.core.subject import Unobservable
from conformance.isolation.child import Call, Finished, run_many

_TARGET = "conformance.canary.probe:in_child"
_SECONDS = 90.0
_CHILDREN = 12

Canary = Callable[[Lab], Sighting]


def _probed(session: pytest.Session) -> list[str]:
    """Return the ids of the session's cases that have a probe, in order."""
    params = [getattr(item, "callspec", None) for item in session.items]
    cases = [p.params["case_id"] for p in params if p and "case_id" in p.params]
    return [case for case in cases if probe_of(parse(case))]


@pytest.fixture(scope="session")
def canary(request: pytest.FixtureRequest) -> Canary:
    """Return a function from a lab to what its probe saw."""
    option = request.config.option
    seen: dict[str, Any] = {}

    def on_the_gpu(lab: Lab) -> Sighting:
        lab.needs("native")  # each probe stands before the native module: no process for nothing
        if lab.case.id not in seen:  # this one and the next ones at once, a process for each
            cases = [id for id in _probed(request.session) if id not in seen]
            cases = cases[cases.index(lab.case.id) :][:_CHILDREN]
            calls = [
                Call(
                    _TARGET,
                    {"case": case, "subject": option.subject},
                    timeout_s=_SECONDS,
                    env={"OMP_NUM_THREADS": "1"},
                )
                for case in cases
            ]
            results = run_many(calls, min(_CHILDREN, os.cpu_count() or 1))
            seen.update(zip(cases, results, strict=True))
        result = seen[lab.case.id]
        if isinstance(result, Finished) and "unobservable" in result.value:
            raise Unobservable(result.value["unobservable"])
        if not isinstance(result, Finished) or "safe" not in result.value:
            raise RuntimeError(f"the probe's process did not finish: {result}")
        value = result.value
        lab.error, lab.ratio = value["error"], value["ratio"]
        return Sighting(value["safe"], value["alarm"])

    def on_the_twin(lab: Lab) -> Sighting:
        probe = probe_of(lab.case)
        assert probe is not None, f"{lab.case.id}: no probe for it"
        return probe(lab)

    return on_the_gpu if option.tier == "hopper" else on_the_twin
