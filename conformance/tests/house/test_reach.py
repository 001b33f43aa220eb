"""A full run reaches every value that its judges name: an unreached one would never be seen."""

import math

import pytest

from conformance.core.case import parse
from conformance.core.catalogue import REQUIREMENTS
from conformance.core.requirement import Judge
from conformance.listing import TIERS, judges

RUNS = [
    pytest.param(judge, tier, id=f"{judge.requirement}-{tier}")
    for judge in judges()
    for tier in TIERS
    if REQUIREMENTS[judge.requirement].minimum(tier)
]


@pytest.mark.parametrize(("judge", "tier"), RUNS)
def test_every_value_of_every_dimension_is_reached(judge: Judge, tier: str) -> None:
    cases = [parse(id) for id in judge.cases(tier)]
    missing = {
        (dimension, str(value))
        for dimension, values in judge.vary.items()
        for value in values
        if str(value) not in {case[dimension] for case in cases}
    }
    assert not missing


@pytest.mark.parametrize(("judge", "tier"), RUNS)
def test_each_word_meets_each_dtype(judge: Judge, tier: str) -> None:
    pairs = [[str(v) for v in dict.fromkeys(judge.vary.get(name, ("-",)))] for name in _PAIR]
    seen = {
        tuple(case[n] if n in judge.vary else "-" for n in _PAIR)
        for case in map(parse, judge.cases(tier))
    }
    assert len(seen) == math.prod(map(len, pairs))


_PAIR = ("how", "dtype")
