"""Compares two FlashInfer packages by their text: names, signatures, layout, regions that decide."""

from conformance.gate.static.tier import judge

__all__ = ["judge"]
