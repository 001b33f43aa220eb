"""Where in a turn each kind of fault has a place: what a generator asks before it plants one."""

from collections.abc import Collection
from dataclasses import replace

from conformance.core.case import GEOMETRIES, Geometry, Step, valid_count
from conformance.core.catalogue import PLAN_SLACK
from fuzz.faults import FAULTS
from fuzz.history import Shape, Turn

DENSE = 128
"""Query tokens of a request above which some head count leaves it to dense attention."""


def beyond_slack(step: Step, geometry: Geometry) -> list[int]:
    """Return the rows whose bound can be lowered by more than any plan's slack hides."""
    contexts, owners = step.contexts(), step.row_requests
    return [
        row
        for row, context in enumerate(contexts)
        if valid_count(context, geometry) == context
        and context > step.q_lens[owners[row]] + PLAN_SLACK
    ]


def untold_splits(step: Step, geometry: Geometry) -> list[tuple[int, ...]]:
    """Return splits of the rows between two requests after which some row outgrows every plan.

    Every plan: what the host's bounds and the slack allow. step: one with bounds, split as told.
    """
    found, counts = [], step.q_lens
    covered = [bound + PLAN_SLACK for bound in step.contexts(step.bounds)]
    for giver, count in enumerate(counts):
        for taker, had in enumerate(counts):
            for moved in range(1, count if giver != taker and had else 0):
                split = list(counts)
                split[giver] -= moved
                split[taker] += moved
                if split[taker] > step.seq_lens[taker]:
                    break
                contexts = replace(step, device_q_lens=tuple(split)).contexts()
                pairs = zip(contexts, covered, strict=True)
                if any(valid_count(context, geometry) > most for context, most in pairs):
                    found.append(tuple(split))
    return found


def shows_skipped(step: Step, before: Step | None, geometry: Geometry) -> bool:
    """Return whether a step's selections show that it runs on the plan of the step before.

    They do where a row has fewer entries than its place had tokens then. Where each has as many or
    more, what lies behind the older length selects nothing, and nobody can tell.
    """
    if before is None or (step.rows, step.padded_rows) != (before.rows, before.padded_rows):
        return False
    pairs = zip(step.contexts(), before.contexts(), strict=True)
    return any(valid_count(new, geometry) < valid_count(old, geometry) for new, old in pairs)


def may_be_dense(step: Step) -> bool:
    """Return whether a subject may leave rows of a step to dense attention."""
    return any(count > DENSE for count in step.q_lens)


def places_in(
    turn: Turn,
    step: Step,
    shape: Shape,
    captured: Collection[int],
    before: Step | None,
    *,
    last: bool,
) -> list[str]:
    """Return the kinds of fault that a turn has a place for.

    step: of its own frame. captured: sizes of the graphs so far. before: the step of the frame
    before, None without one that was planned. last: whether the history may end here.
    """
    geometry, eager, bounded = GEOMETRIES[shape.geo], not turn.graph, step.bounds is not None
    told = bounded and step.device_q_lens is None
    fits = {
        "garbage-tail": any(
            valid_count(context, geometry) < geometry.topk_width - 1 for context in step.contexts()
        ),
        "stale-bounds": bounded and step.rows > 0,
        "late-frame": sum(count > 0 for count in step.true_q_lens) > 1,
        "warm-up": step.rows > 0,
        "layers": eager and step.rows > 0,
        "low-bound": told and bool(beyond_slack(step, geometry)),
        "untold-split": told and last and bool(untold_splits(step, geometry)),
        "skipped-plan": eager and last and shows_skipped(step, before, geometry),
        "garbage-entry": step.rows > 0,
        "small-graph": turn.graph and any(size < step.rows for size in captured),
        "other-scale": shape.dtype == "fp8" and step.rows > 0,
        "moved-table": turn.graph and bool(captured) and step.rows > 0,
        "second-stream": eager and step.rows > 0,
        "over-capacity": eager,
    }
    flagged = last and not may_be_dense(step)
    ours = [name for name, kind in FAULTS.items() if flagged or not kind.flag]
    return [name for name in ours if fits.get(name, True)]
