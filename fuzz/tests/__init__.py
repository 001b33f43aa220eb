"""Tests of the fuzzer: its model, what it finds, and what it lets pass."""
