"""A judge whose cases pass at once, or meet a fault. Run by the tests beside it, not by pytest."""

from conformance.core.lab import Lab
from conformance.core.requirement import requirement
from conformance.tests.isolation.faulty import meet


@requirement("SMOKE", heads=("16", "1"))
def test_a_case_meets_its_fault(lab: Lab) -> None:
    meet(lab.case.number)
