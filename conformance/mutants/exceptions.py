"""The requirements that no mutant can prove, each with the reason why none can."""

from collections.abc import Mapping

UNPROVABLE: Mapping[str, str] = {}
"""By id. Only what is impossible in principle belongs here, never what is merely missing."""
