"""A subject is asked who it is in a process of its own; one that cannot be judged never runs."""

from pathlib import Path

import pytest

from conformance.core.request import Identity, Request, SuiteError
from conformance.core.run import run
from conformance.subjects import DEFAULT, SUBJECTS

BROKEN = "conformance.tests.isolation.broken"


def test_it_says_name_and_version() -> None:
    from conformance.core.run import identify

    assert identify(f"{BROKEN}:Whole") == Identity("whole", "1.2")
    own = identify(SUBJECTS[DEFAULT])
    assert own.name == DEFAULT and own.version


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        ("raises", "raises ZeroDivisionError: its factory divides"),
        ("needs", "raises TypeError"),
        ("leaves", "ends its process"),
        ("aborts", "ends its process \\(SIGABRT\\)"),
        ("nothing", "NoneType from its factory, without refusals\\(\\), construct\\(\\), a name"),
        ("NoConstruct", "NoConstruct from its factory, without construct\\(\\);"),
        ("NoName", "without a name"),
        ("Listed", "without capabilities"),
        ("Numbered", "without a version that is a str"),
    ],
)
def test_a_broken_one_is_refused_and_what_is_there_stays(
    factory: str, says: str, tmp_path: Path
) -> None:
    old = tmp_path / "records-twin-1-main.jsonl"
    old.write_text("of an earlier run")
    request = Request(f"{BROKEN}:{factory}", given="mine", tier="twin", report=tmp_path)
    with pytest.raises(SuiteError, match=f"subject 'mine': found .*{says}") as problem:
        run(request)
    assert f"call {factory}() by itself" in str(problem.value)
    assert old.read_text() == "of an earlier run"
