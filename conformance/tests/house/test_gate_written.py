"""How a call was given its arguments is told from its source, or said not to be told."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from conformance.gate.written import Given, falls_back, given_by

SEEN: list[Given] = []
PAIR, NAMED, HELD = (1, 2), {"c": 3}, SimpleNamespace(pair=[1, 2])


def called(*args: Any, **kwargs: Any) -> None:
    SEEN.append(given_by(sys._getframe(1)))


def plain() -> None:
    called(1, 2, c=3)


def unpacked_names() -> None:
    pair, named = PAIR, NAMED
    called(0, *pair, **named)


def unpacked_attribute() -> None:
    held = HELD
    called(*held.pair, c=1)


def unpacked_display() -> None:
    pair = PAIR
    called(
        *(1, *pair, *[4]),
        c=3,
    )


def unpacked_call() -> None:
    called(*tuple(PAIR))


def unpacked_inside_a_display() -> None:
    called(*(1, *tuple(PAIR)))


def unpacked_mapping_call() -> None:
    called(1, **dict(NAMED))


def by_another() -> None:
    list(map(called, PAIR))


@pytest.mark.parametrize(
    ("caller", "expected"),
    [
        (plain, Given(2, ("c",), True)),
        (unpacked_names, Given(3, ("c",), True)),
        (unpacked_attribute, Given(2, ("c",), True)),
        (unpacked_display, Given(4, ("c",), True)),
        (unpacked_call, Given()),
        (unpacked_inside_a_display, Given()),
        (unpacked_mapping_call, Given()),
    ],
)
def test_arguments_are_counted_or_not_told(caller: Any, expected: Given) -> None:
    SEEN.clear()
    caller()
    (told,) = SEEN
    assert told == expected


def test_a_call_that_c_makes_is_not_taken_for_the_one_around_it() -> None:
    SEEN.clear()
    by_another()
    assert not any(given.told and given.positional == 1 and given.keywords for given in SEEN)
    assert len(SEEN) == 2


class Asked:
    """Notes whether whoever asks it for an attribute has something else to take."""

    seen: list[bool]

    def __getattribute__(self, name: str) -> Any:
        object.__getattribute__(self, "seen").append(falls_back(sys._getframe(1)))
        return 1


def test_an_attribute_with_something_in_its_place_is_told_from_one_without() -> None:
    asked = Asked()
    seen: list[bool] = []
    object.__setattr__(asked, "seen", seen)
    getattr(asked, "one", None)
    hasattr(asked, "one")
    assert asked.one
    getattr(asked, "one")  # noqa: B009
    assert [getattr(asked, "one", 0), asked.two] == [1, 1]
    assert seen == [True, True, False, False, True, False]
