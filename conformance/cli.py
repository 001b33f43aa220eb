"""The command line: `python -m conformance COMMAND`, which owns the exit codes 0 to 3."""

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import click
from rich.console import Console

from conformance import logs, settings
from conformance.cache import CacheError
from conformance.clean import claim_report
from conformance.core.catalogue import ALIVE
from conformance.core.ledger import LedgerError
from conformance.core.record import RecordError
from conformance.core.request import INSTALLED, known
from conformance.core.run import Exit, Request, SuiteError, identify, run
from conformance.installed import stands_on_the_twin
from conformance.lazy import LazyGroup
from conformance.ledger.files import ledger_of
from conformance.report.terminal import last_line, show
from conformance.settings import SETTINGS, SettingsError
from conformance.several import folders, placed, run_each
from conformance.subjects import ALLOWED, DEFAULT, factory_of, own_identity
from conformance.twin.semantics import BY_VERSION

LEVELS = click.Choice(["debug", "info", "warning", "error"])


class Commands(LazyGroup):
    """The suite's commands beside `run`."""

    elsewhere: ClassVar[dict[str, str]] = {
        "bench": "conformance.bench.cli:bench_command",
        "bundle": "conformance.bundle.cli:bundle_command",
        "clean": "conformance.clean:clean_command",
        "doctor": "conformance.doctor:doctor_command",
        "gate-host": "conformance.gate.host:host_command",
        "explain": "conformance.explain:explain_command",
        "gate": "conformance.gate.cli:gate_command",
        "ledger": "conformance.ledger.cli:ledger_command",
        "list": "conformance.listing:list_command",
        "merge": "conformance.report.cli:merge_command",
        "mutants": "conformance.mutants.cli:mutants_command",
        "record": "conformance.hardware.cli:record_command",
        "replay": "conformance.hardware.cli:replay_command",
        "report": "conformance.report.cli:report_command",
        "sanitize": "conformance.sanitize.cli:sanitize_command",
        "versions": "conformance.gate.versions:versions_command",
    }


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--cache-root", type=click.Path(path_type=Path), help="Folder of the cache.")
@click.option("--log-level", type=LEVELS, help="What to log to standard error.")
@click.pass_context
def main(context: click.Context, cache_root: Path | None, log_level: str | None) -> None:
    """Prove a sparse-MLA decode attention backend right.

    Exit codes: 0 conforms, 1 does not, 2 incomplete, 3 the suite failed or was asked wrongly.
    Options win over environment variables SMLA_*, these over [tool.smla] in pyproject.toml; the
    table is in conformance/settings.py, and doctor shows what is in force.
    """
    context.obj = {"cache_root": cache_root, "log_level": log_level}
    chosen = settings.load(context.obj)
    logs.configure(chosen.log_level)
    # The processes that a command starts read the same settings by themselves.
    for key, value in context.obj.items():
        if value is not None:
            os.environ[SETTINGS[key].variable] = str(getattr(chosen, key))


@main.command("run")
@click.option("--tier", type=click.Choice(["auto", "twin", "hopper"]), help="Default: auto.")
@click.option(
    "--subject",
    "subjects",
    multiple=True,
    default=(DEFAULT,),
    show_default=True,
    help=f"{ALLOWED}; several times for more.",
)
@click.option("--case", "cases", multiple=True, help="A case id; may be given several times.")
@click.option("--requirement", "requirements", multiple=True, help="A requirement id.")
@click.option("--smoke", is_flag=True, help="Only see whether suite and subject are alive.")
@click.option(
    "--require",
    multiple=True,
    type=click.Choice(["hopper", "planner"]),
    help="Exit with 2 when this did not run.",
)
@click.option("--report", type=click.Path(path_type=Path), help="Default: conformance-report.")
@click.option("-n", "--workers", help="Processes of the twin tier. Default: auto.")
@click.option("--kernels", type=click.Choice(["auto", "torch", "interpret"]), help="Default: auto.")
@click.option(
    "--flashinfer",
    type=click.Choice(["auto", *BY_VERSION, INSTALLED]),
    default="auto",
    show_default=True,
    help="Version that the twin simulates; auto: each in turn, installed: the one on the path.",
)
@click.option("-x", "--first-failure", is_flag=True, help="Stop at the first failure.")
@click.option(
    "--first-failure-each", is_flag=True, help="Skip the rest of a requirement once it failed."
)
@click.option("--shuffle", type=int, metavar="SEED", help="Run cases in another order.")
@click.option(
    "--watchdog", type=click.FloatRange(0), help="Seconds a case may take on any tier; 0: no limit."
)
@click.option(
    "--junit",
    type=click.Path(dir_okay=False, path_type=Path),
    help="JUnit files, one per tier: X.xml gives X-twin.xml.",
)
@click.option(
    "--ledger",
    "ledgers",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A file of known deviations beside the suite's own; several times for more.",
)
@click.option("--no-ledger", is_flag=True, help="Excuse nothing: no known deviations.")
@click.pass_obj
def run_command(
    given: dict[str, object],
    tier: str | None,
    subjects: tuple[str, ...],
    cases: tuple[str, ...],
    requirements: tuple[str, ...],
    smoke: bool,
    require: tuple[str, ...],
    report: Path | None,
    workers: str | None,
    kernels: str | None,
    flashinfer: str,
    first_failure: bool,
    first_failure_each: bool,
    shuffle: int | None,
    watchdog: float | None,
    junit: Path | None,
    ledgers: tuple[Path, ...],
    no_ledger: bool,
) -> None:
    """Run the suite on a subject and give a verdict.

    Running a subject executes its code. Several subjects run one after the other, each into a
    folder of its own in the report folder; the exit code is the worst of 3, 1, 2, 0, in that order.
    """
    if no_ledger and ledgers:
        raise click.UsageError("--no-ledger excuses nothing, so it takes no --ledger beside it")
    options = {"tier": tier, "report": report, "workers": workers, "kernels": kernels}
    chosen = settings.load({**given, **options})
    _check_cases(cases)
    for requirement in requirements:
        known(requirement)
    if flashinfer == INSTALLED and chosen.tier != "hopper":
        stands_on_the_twin()
    places = folders(chosen.report, subjects)
    whole = Request(
        tier=chosen.tier,
        subject="",
        cases=cases,
        requirements=(*requirements, ALIVE) if smoke else requirements,
        require=frozenset(require),
        report=chosen.report,
        workers=chosen.workers,
        kernels=chosen.kernels,
        flashinfer=flashinfer,
        first_failure=first_failure,
        first_failure_each=first_failure_each,
        shuffle=shuffle,
        limit_s=watchdog,
        limits_s={"twin": chosen.watchdog_twin, "hopper": chosen.watchdog_hopper},
        junit=junit,
    )
    # All subjects are looked at before the first one runs.
    factories = [factory_of(name) for name in subjects]
    who = [
        own_identity(name) or identify(f, name) for name, f in zip(subjects, factories, strict=True)
    ]
    known_of = {identity.name for identity in who}
    whole = replace(whole, ledger=[] if no_ledger else ledger_of(ledgers, subjects=known_of))
    requests = [
        replace(placed(whole, place), subject=factory, given=name, identity=identity)
        for name, factory, identity, place in zip(subjects, factories, who, places, strict=True)
    ]
    # Without emoji=False, rich makes a picture of the middle of module:factory: here.
    console = Console(soft_wrap=True, highlight=False, emoji=False)
    for line in chosen.changed():
        console.print(f"setting: {line}", markup=False)
    claim_report(chosen.report)
    if len(requests) > 1:
        sys.exit(run_each(requests, run, show, last_line, console))
    verdict = run(requests[0])
    show(verdict, subjects[0], console)
    sys.exit(verdict.exit)


def _check_cases(cases: tuple[str, ...]) -> None:
    if not cases:
        return
    from conformance.core.case import CaseError, parse  # torch stands behind it

    for case in cases:
        try:
            known(parse(case).requirement)
        except CaseError as problem:
            raise SuiteError(str(problem)) from problem


def entry() -> None:
    """Run the command line; every way out is one of the suite's exit codes."""
    # As an interrupt: the processes that a run has started end with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(Exit.SUITE_FAILED))
    try:
        code = main(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else Exit.CONFORMS)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.ClickException as problem:
        problem.show()
        sys.exit(Exit.SUITE_FAILED)
    except (SuiteError, SettingsError, CacheError, LedgerError, RecordError) as problem:
        Console(stderr=True, soft_wrap=True).print(f"error: {problem}", markup=False)
        sys.exit(Exit.SUITE_FAILED)
    except click.Abort:
        sys.exit(Exit.SUITE_FAILED)
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(Exit.SUITE_FAILED)
    except Exception:  # Python's own exit code for these would read as "does not conform"
        Console(stderr=True).print_exception()
        sys.exit(Exit.SUITE_FAILED)
