"""The command `bench`."""

import sys
import time
from pathlib import Path

import click
from rich.console import Console

from conformance import settings
from conformance.bench import device, errors, identity, machine, memory, planning, writes
from conformance.bench.results import Results
from conformance.clean import claim_report
from conformance.core import environment
from conformance.core.run import Exit

SECTIONS = ("plan", "device", "write", "memory", "bytes", "error")
MAX_TOKENS = (256, 1024, 8192, 16384, 32768, 131072)
FILE = "bench.json"
_MOST_TOKENS = 1 << 19
_MOST_HEADS = 128
_WIDTH = 120  # of tables in a log


class Several(click.ParamType):
    """Values between commas, each of another type, none twice."""

    name = "list"

    def __init__(self, each: click.ParamType) -> None:
        self._each = each

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[object, ...]:
        if isinstance(value, tuple):
            return value
        words = [word.strip() for word in str(value).split(",")]
        return tuple(dict.fromkeys(self._each.convert(word, param, ctx) for word in words))


@click.command("bench")
@click.option("--only", type=Several(click.Choice(SECTIONS)), default=",".join(SECTIONS),
              show_default=True, help="What to measure.")  # fmt: skip
@click.option("--heads", type=Several(click.IntRange(1, _MOST_HEADS)), default=None,
              help="Head counts. Default: 64 for plans, 64 and 128 for all else.")  # fmt: skip
@click.option("--max-tokens", type=Several(click.IntRange(1, _MOST_TOKENS)),
              default=",".join(map(str, MAX_TOKENS)), show_default=True,
              help="Capacities to plan for.")  # fmt: skip
@click.option("--steps", type=click.IntRange(1), default=10_000, show_default=True,
              help="Steps that memory is watched over.")  # fmt: skip
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path),
              help="JSON file. Default: bench.json in the report folder.")  # fmt: skip
@click.option("--rehearse", is_flag=True, help="Tiny sizes on the CPU; nothing is timed.")
@click.pass_obj
def bench_command(
    given: dict[str, object] | None,
    only: tuple[str, ...],
    heads: tuple[int, ...] | None,
    max_tokens: tuple[int, ...],
    steps: int,
    out: Path | None,
    rehearse: bool,
) -> None:
    """Measure what planning and the kernels around FlashInfer's cost, beside its own wrapper, and
    the cache writes beside a plain copy, and how far canonical cases lie from exact attention.

    Speed is told and not judged. Exit codes: 0 measured, 1 a plan's bytes differ from the native
    planner's, memory grows, or an output is beyond its bound, 2 no Hopper GPU or a measure
    failed, 3 asked wrongly.
    """
    chosen = settings.load(given)
    console = Console(soft_wrap=True, highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH
    if not rehearse and (reason := machine.obstacle()) is not None:
        console.print(f"not run: bench: {reason}; to rehearse it: --rehearse", markup=False)
        sys.exit(Exit.INCOMPLETE)
    if out is None:
        claim_report(chosen.report)
        out = chosen.report / FILE
    options = {"only": only, "heads": heads, "max_tokens": max_tokens, "steps": steps}
    results = Results(console, out, rehearse, environment.describe(), options)
    results.write()
    began = time.monotonic()
    with results.attempt("setting up"):
        where = machine.rehearsal() if rehearse else machine.gpu()
        measures = {
            "plan": lambda: planning.measure(where, results, heads or (64,), max_tokens),
            "device": lambda: device.measure(where, results, heads or (64, 128)),
            "write": lambda: writes.measure(where, results),
            "memory": lambda: memory.measure(where, results, steps),
            "error": lambda: errors.measure(where, results),
            "bytes": lambda: identity.measure(where, results, heads or (64, 128)),
        }
        for name in SECTIONS:
            if name in only:
                with results.attempt(name):
                    measures[name]()
                results.write()
    results.write()
    took = "rehearsed" if rehearse else f"measured in {time.monotonic() - began:.0f} s"
    results.line(f"{took}; all of it: {out}")
    if results.failures:
        results.line(f"measures that failed: {len(results.failures)}; the others stand")
    sys.exit(results.exit)
