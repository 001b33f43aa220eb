"""Profiles by name: what a run draws, for a purpose that a sentence tells."""

from dataclasses import dataclass

from fuzz.history import DEVICES
from fuzz.serving import PLAIN, Profile


@dataclass(frozen=True)
class Named:
    """A profile with a purpose. sentence: what it is for."""

    sentence: str
    profile: Profile


PROFILES = {
    "plain": Named("Every shape that a history can have, biased to the edges.", PLAIN),
    "steps": Named(
        "Steps a second: the kernel's width, 16 heads, a busy engine with small chunks of prefill, "
        "every read of the index list looked at.",
        Profile(
            turns=96,
            chunk=3,
            preempts=100,
            finishes=40,
            shape=(
                ("geo", "serve"),
                ("width", "full"),
                ("heads", 16),
                ("slots", 7),
                ("budget", 28),
                ("longest", 200),
                ("drafts", 3),
                ("device", DEVICES[0]),
            ),
        ),
    ),
}
"""Every profile. The cache's formats, both of them, and the rope part are drawn in each."""
