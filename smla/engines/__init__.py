"""Attention engines behind one seam: what computes the attention, and what it must be told."""
