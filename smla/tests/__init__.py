"""Tests that need smla's insides; left out of the wheel."""
