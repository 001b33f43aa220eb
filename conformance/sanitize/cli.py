"""The command `sanitize`."""

import sys
from pathlib import Path

import click
from rich.console import Console

from conformance import settings
from conformance.clean import claim_report
from conformance.core.case import parse
from conformance.listing import known
from conformance.sanitize import lane, tool
from conformance.subjects import DEFAULT


@click.command("sanitize")
@click.option(
    "--tool", "tools", multiple=True, type=click.Choice(tool.TOOLS), help="Default: each of them."
)
@click.option("--subject", default=DEFAULT, help="A name, or package.module:factory.")
@click.option("--case", "cases", multiple=True, help="A case id. Default: a small drawn set.")
@click.option("--report", type=click.Path(path_type=Path), help="Default: conformance-report.")
@click.pass_obj
def sanitize_command(
    given: dict[str, object] | None,
    tools: tuple[str, ...],
    subject: str,
    cases: tuple[str, ...],
    report: Path | None,
) -> None:
    """Run hopper cases under NVIDIA's compute-sanitizer, torch's caching allocator off.

    Exit codes: 0 no errors, 1 errors found, 2 could not run here, 3 failed or asked wrongly.
    """
    chosen = settings.load({**(given or {}), "report": report})
    for case in cases:
        known(parse(case).requirement)
    console = Console(soft_wrap=True, highlight=False)
    names = tools or tool.TOOLS
    findings = []
    reason = lane.obstacle()
    if reason is None:
        claim_report(chosen.report)
        cases = cases or tuple(lane.drawn_cases())
    for name in names:
        if reason is not None:
            found = lane.Finding(name, lane.Fate.NOT_RUN, reason)
        else:
            found = lane.sanitize(name, subject, cases, chosen.report.absolute())
        findings.append(found)
        console.print(f"{found.fate}: {name}: {found.message}", markup=False)
        for line in found.lines:
            console.print(f"  {line}", markup=False)
        if found.log is not None:
            console.print(f"  all of it: {found.log}", markup=False)
    if any(found.fate is lane.Fate.NOT_RUN for found in findings):
        again = lane.command_line(names, subject)
        console.print(f"to run it: {again} (on a Hopper GPU)", markup=False)
    sys.exit(_exit([found.fate for found in findings]))


def _exit(fates: list[lane.Fate]) -> int:
    """Errors found outweigh all else: they are certain; then failures, then what did not run."""
    for fate in (lane.Fate.ERRORS, lane.Fate.FAILED, lane.Fate.NOT_RUN):
        if fate in fates:
            return lane.EXITS[fate]
    return lane.EXITS[lane.Fate.CLEAN]
