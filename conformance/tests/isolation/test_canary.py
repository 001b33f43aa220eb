"""A probe in a process of its own: what a subject does not show is no crash of it."""

import pytest

from conformance.canary import probe
from conformance.core.lab import Lab
from conformance.core.subject import Unobservable
from conformance.subjects.smla import SmlaSubject
from conformance.tiers import tier

FACTORY = "conformance.subjects.smla:SmlaSubject"
CASE = {"case": "READ-A/geo=flat,dtype=bf16,heads=16,kpe=0/0", "subject": FACTORY}


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = tier("twin")
    monkeypatch.setattr("conformance.tiers.tier", lambda name: twin)


def test_what_is_not_shown_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(lab: Lab) -> probe.Sighting:
        raise Unobservable("kv_indptr")

    monkeypatch.setattr(probe, "negative_slots", blind)
    assert probe.in_child(CASE) == {"unobservable": "kv_indptr"}


def test_every_probe_needs_the_native_module(monkeypatch: pytest.MonkeyPatch) -> None:
    less = SmlaSubject.capabilities - {"native"}
    monkeypatch.setattr(SmlaSubject, "capabilities", less)
    assert probe.in_child(CASE) == {"unobservable": "capability native"}


def test_what_was_seen_is_told() -> None:
    seen = probe.in_child(CASE)
    assert (seen["safe"], seen["alarm"][:7]) == ("", "touched")
