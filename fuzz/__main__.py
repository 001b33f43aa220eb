"""`python -m fuzz`."""

from fuzz.cli import entry

entry()
