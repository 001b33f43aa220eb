"""`python -m conformance`."""

import sys
import traceback

try:
    from conformance.cli import entry
except ImportError:  # a missing package must not read as exit code 1, "does not conform"
    traceback.print_exc()
    sys.exit(3)

entry()
