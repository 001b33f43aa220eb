"""The committed kill matrix is of the mutants as they are, and proves every requirement."""

from conformance.core.catalogue import REQUIREMENTS
from conformance.mutants.cli import OWN
from conformance.mutants.exceptions import UNPROVABLE
from conformance.mutants.hunt import provable
from conformance.mutants.matrix import proven, read_matrix
from conformance.mutants.model import read_mutants

EVIDENCE = OWN / "matrix.json"
AGAIN = f"python -m conformance mutants --matrix --matrix-file {EVIDENCE.name} --name"


def test_every_mutant_has_a_row_of_its_text() -> None:
    known = {(mutant.name, mutant.digest) for mutant in read_mutants([OWN])}
    tried = {(row.mutant, row.digest) for row in read_matrix(EVIDENCE)}
    assert sorted(name for name, _ in known - tried) == [], f"not tried; to fix: {AGAIN} each"
    assert sorted(name for name, _ in tried - known) == [], "rows of mutants that are no more"


def test_every_row_was_killed_by_the_id_that_its_mutant_names() -> None:
    rows = read_matrix(EVIDENCE)
    assert [row.mutant for row in rows if row.requirement not in row.killed] == []
    assert [row.mutant for row in rows if not row.environment.get("commit")] == []


def test_every_requirement_is_some_mutants_first_killer() -> None:
    by = proven(read_matrix(EVIDENCE), provable())
    unproven = [id for id in provable() if not by[id]]
    assert unproven == sorted(UNPROVABLE, key=provable().index), (
        "unproven, and the exceptions; an exception that is proven is none"
    )


def test_an_exception_names_a_requirement_and_a_reason() -> None:
    assert set(UNPROVABLE) <= set(REQUIREMENTS)
    assert [id for id, why in UNPROVABLE.items() if len(why) < 40] == []
