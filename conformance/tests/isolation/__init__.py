"""Faults cost one test, never a run: the suite and the isolated calls, with faults on purpose."""
