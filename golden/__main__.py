"""`python -m golden`."""

import sys

from golden.refusal import missing_package

try:
    from golden.cli import entry
except ModuleNotFoundError as problem:  # click; Python's own exit code would read as a difference
    sys.stderr.write(missing_package(problem) + "\n")
    sys.exit(3)

entry()
