"""`python -m golden`."""

from golden.cli import entry

entry()
