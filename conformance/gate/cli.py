"""The command `gate`."""

import sys
from pathlib import Path

import click
from rich.console import Console

from conformance import settings
from conformance.cache import Cache
from conformance.clean import claim_report
from conformance.core.run import identify
from conformance.gate import policy as policies
from conformance.gate import store, verdict
from conformance.gate.model import TIERS, Status
from conformance.gate.package import resolve
from conformance.gate.run import Asked, Named, gate
from conformance.gate.telling import VERDICT_SIGNS, summary, title
from conformance.subjects import ALLOWED, DEFAULT, factory_of, own_identity

REPORT = Path("gate-report")


@click.command("gate")
@click.argument("baseline")
@click.argument("candidate")
@click.option("--subject", "subjects", multiple=True, default=(DEFAULT,), show_default=True,
              help=f"{ALLOWED}; several times for more.")  # fmt: skip
@click.option("--policy", type=click.Path(dir_okay=False, path_type=Path),
              help="TOML: limits of times, and what is tolerated.")  # fmt: skip
@click.option("--results", multiple=True, type=click.Path(dir_okay=False, path_type=Path),
              help="What a bundle's gate wrote on a GPU host; several for more.")  # fmt: skip
@click.option("--tier", "tiers", multiple=True, type=click.Choice(TIERS),
              help="Only these tiers. Default: all that can run here.")  # fmt: skip
@click.option("--whole-twin", is_flag=True, help="On the twin, the whole suite: about ten minutes.")
@click.option("--trust", is_flag=True, help="Take folders, too: checkouts that you trust.")
@click.option("--report", type=click.Path(file_okay=False, path_type=Path), default=REPORT,
              show_default=True, help="Folder for gate.json, gate.md and gate.html.")  # fmt: skip
@click.pass_obj
def gate_command(
    given: dict[str, object] | None,
    baseline: str,
    candidate: str,
    subjects: tuple[str, ...],
    policy: Path | None,
    results: tuple[Path, ...],
    tiers: tuple[str, ...],
    whole_twin: bool,
    trust: bool,
    report: Path,
) -> None:
    """Say whether FlashInfer may go from BASELINE to CANDIDATE.

    Each is a version of the index, a wheel file, or with --trust a checkout. Nothing is installed.
    Their code and the subjects' is executed, in child processes (SECURITY.md).

    Exit codes: 0 GO, which takes a Hopper GPU's evidence for each subject; 1 NO-GO; 2 INCOMPLETE:
    the tiers that ran object to nothing; 3 asked wrongly, or the suite failed. Of several subjects,
    the worst.
    """
    chosen = settings.load(given)
    console = Console(soft_wrap=True, highlight=False)
    cache = Cache.of(chosen)
    if results and tiers and "hopper" not in tiers:
        raise click.UsageError("--results is evidence for the hopper tier, which --tier leaves out")
    # What costs least is looked at first.
    tolerated = policies.read(policy) if policy is not None else policies.Policy()
    factories = {name: factory_of(name) for name in subjects}
    before, after = (resolve(asked, cache, trust=trust) for asked in (baseline, candidate))
    named = [
        Named(name, factory, own_identity(name) or identify(factory, name))
        for name, factory in factories.items()
    ]
    asked = Asked(
        baseline=before,
        candidate=after,
        subjects=tuple(named),
        policy=tolerated,
        results=results,
        tiers=frozenset(tiers or TIERS),
        whole_twin=whole_twin,
        report=report,
        cache=cache,
    )
    claim_report(report)
    judged, stale = gate(asked, lambda line: console.print(line, markup=False))
    for one in judged:
        result = one.result
        console.print(
            f"\n{VERDICT_SIGNS[result.verdict]} {result.verdict}  {title(result)}", markup=False
        )
        for tier in result.tiers:
            console.print(f"  {tier.tier:8} {tier.status:8} {summary(tier)}", markup=False)
            if tier.status is Status.NOT_RUN and tier.command:
                console.print(f"           {tier.command}", markup=False)
        console.print(one.decision.paragraph, markup=False)
    for line in stale:
        console.print(f"policy: {line}", markup=False)
    console.print(f"\nreport: {report / store.PAGE}", markup=False)
    sys.exit(verdict.worst(one.decision.exit for one in judged))
