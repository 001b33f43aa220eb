"""Compares two FlashInfer packages by their text: names, signatures, layout, and regions."""

from conformance.gate.static.tier import judge

__all__ = ["judge"]
