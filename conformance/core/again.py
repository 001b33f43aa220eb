"""The command that runs a case again, as its record and its failure say it."""

from shlex import quote
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # torch stands behind it
    from conformance.core.case import Case

AGAIN = "python -m conformance run --subject {subject} --tier {tier} {twin}--case '{case}'"
"""The suite's own. Fields: subject (quoted), tier, twin (the options that make a twin case the same
again, empty on a GPU), case (its id), number (the case's), below (the FlashInfer version)."""


def twin_options(interpret: bool, simulates: str, installed: bool = False) -> str:
    """Return the options that make a twin case run the same again; empty on a GPU.

    installed: the FlashInfer on the path stood on the twin, and has to be there again.
    """
    if not simulates:
        return ""
    version = "installed" if installed else simulates
    return f"--kernels {'interpret' if interpret else 'torch'} --flashinfer {version} "


def again(template: str, case: "Case", *, subject: str, tier: str, twin: str, below: str) -> str:
    """Return the command of a case. template: as `AGAIN`; subject: as a command line names it."""
    return template.format(
        subject=quote(subject), tier=tier, twin=twin, case=case.id, number=case.number, below=below
    )
