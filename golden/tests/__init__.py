"""Tests of golden: oracle against naive loops, tolerance against engines right and wrong."""
