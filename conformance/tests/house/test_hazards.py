"""Every public hazard is met by a check that a planted instance of it proves, or by a reason."""

import ast
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from conformance.core.catalogue import REQUIREMENTS

ROOT = Path(__file__).parents[3]
LEAST = 48
"""Hazards on record; none may be dropped."""


def _hazards() -> list[dict[str, Any]]:
    hazards: list[dict[str, Any]] = tomllib.loads((ROOT / "conformance/hazards.toml").read_text())[
        "hazard"
    ]
    return hazards


@cache
def _mutants() -> dict[str, str]:
    files = sorted((ROOT / "conformance/mutants").glob("*.toml"))
    tables = [table for path in files for table in tomllib.loads(path.read_text())["mutant"]]
    return {table["name"]: table["requirement"] for table in tables}


HAZARDS = [pytest.param(hazard, id=hazard["name"]) for hazard in _hazards()]


def gaps(hazard: dict[str, Any]) -> list[str]:
    """Say what a hazard's entry lacks."""
    found = [f"no {key}" for key in ("name", "what", "right") if not hazard.get(key)]
    known = {"name", "what", "right", "checks", "mutants", "tests", "reason"}
    found += [f"unknown key {key}" for key in sorted(set(hazard) - known)]
    checks, mutants = hazard.get("checks", []), hazard.get("mutants", [])
    found += [f"no requirement {id}" for id in checks if id not in REQUIREMENTS]
    found += [f"no mutant {name}" for name in mutants if name not in _mutants()]
    found += [
        f"{name} is planted for {_mutants()[name]}, none of the checks"
        for name in mutants
        if name in _mutants() and _mutants()[name] not in checks
    ]
    if bool(checks) != bool(mutants):
        found.append("checks without a mutant, or mutants without a check")
    found += [f"no test {test}" for test in hazard.get("tests", []) if not _exists(test)]
    if not (checks or hazard.get("tests") or len(hazard.get("reason", "")) > 40):
        found.append("neither checks nor tests nor a reason")
    return found


def _exists(test: str) -> bool:
    file, _, name = test.partition("::")
    path = ROOT / file
    if not path.is_file():
        return False
    tree = ast.parse(path.read_text())
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    return name in names if name else any(each.startswith("test_") for each in names)


@pytest.mark.parametrize("hazard", HAZARDS)
def test_a_hazard_is_met(hazard: dict[str, Any]) -> None:
    assert gaps(hazard) == []


def test_none_is_dropped_and_none_is_there_twice() -> None:
    names = [hazard["name"] for hazard in _hazards()]
    assert len(names) == len(set(names)) >= LEAST


@pytest.mark.parametrize(
    "broken",
    [
        {"checks": ["PLAN-9"]},
        {"checks": ["PLAN-99"], "mutants": ["one-staging-block"]},
        {"checks": ["PLAN-8"], "mutants": ["one-staging-block"]},
        {"checks": ["PLAN-9"], "mutants": ["one-staging-blok"]},
        {"tests": ["conformance/tests/house/test_hazards.py::test_that_is_not_there"]},
        {"reason": "cannot happen"},
        {},
    ],
)
def test_a_gap_is_seen(broken: dict[str, Any]) -> None:
    assert gaps({"name": "x", "what": "x", "right": "x", **broken})
