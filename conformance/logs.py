"""What the suite's processes log, and of smla: to standard error, from the level of the settings.

Libraries install no handlers; the processes of this suite are the applications that do.
"""

import logging

OURS = ("smla", "conformance", "golden")


def configure(level: str) -> None:
    """Show log records of ours at or above this level; again: another level."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    for name in OURS:
        logging.getLogger(name).handlers[:] = [handler]
    set_level(level)


def set_level(level: str) -> None:
    """Make ours log from this level to whatever handlers there are: pytest's, with a failure."""
    for name in OURS:
        logging.getLogger(name).setLevel(level.upper())
