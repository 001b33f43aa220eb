"""What Python runs of a bundle first: too old a Python is told so before it reads anything else."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - whoever starts a bundle may have any Python
    sys.stderr.write(
        f"bundle: found Python {sys.version_info[0]}.{sys.version_info[1]}; allowed: 3.11 or "
        "newer; to fix: start it with that one, as in `python3.12 BUNDLE.pyz doctor`\n"
    )
    sys.exit(3)

from conformance.bundle.start import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[0], sys.argv[1:]))
