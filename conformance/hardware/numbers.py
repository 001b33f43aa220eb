"""The judge of a record's numbers: the twin's kernel runs the recorded schedule on what was drawn.

Three things must hold of each output and each partial output: the record is within golden's bound,
so is the twin, and they are no further from each other than one of them may be from golden. The
bound has room for that: both round the weights and the cache alike, so that they differ by their
last rounding and by the order of float32 sums, while it counts every rounding of one.

What the native run wrote is held against golden with the scales that the run was given. Where that
was FP16 (an FP8 cache), what became of it afterwards is held against golden with the cache's own.
An LSE may differ by what float32 does to the logits and to their sum, see `lse_bound`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from conformance.core.bench import UNWRITTEN, WORST
from conformance.hardware.inputs import Drawn
from conformance.hardware.pieces import kept_places, pieces_of, place_in_words
from conformance.hardware.recording import SceneRecord
from conformance.hardware.rerun import (
    Rerun,
    engine_cache,
    engine_roundings,
    golden_of,
    golden_of_pieces,
)
from conformance.hardware.scenes import Scene
from conformance.hardware.schedule import Difference, valid_counts
from conformance.twin.access import AccessLog
from conformance.twin.semantics import Semantics
from golden import Golden, Roundings, bound, compare

_F32 = 2.0**-23
_MMA_K = 16
_LOG2E = math.log2(math.e)


@dataclass
class Judged:
    """What differs, and the worst error over bound that golden saw of the record."""

    differences: list[Difference]
    ratio: float = 0.0


def judge(scene: Scene, drawn: Drawn, found: SceneRecord, semantics: Semantics) -> Judged:
    """Judge a scene whose integers are as expected (`conformance.hardware.schedule`)."""
    twin = Rerun(drawn, found, semantics)
    judged = Judged([])
    if twin.fault:
        judged.differences.append(Difference(scene.name, "clamped", twin.fault))
        return judged
    judged.differences += _touched(scene, twin.log)
    _partials(scene, drawn, found, twin, judged)
    _outputs(scene, drawn, found, twin, judged)
    return judged


def lse_bound(golden: Golden) -> Tensor:
    """[rows, heads]: how far a base-2 LSE computed in float32 may lie from golden's.

    Each logit errs by its float32 steps (term 5 of `golden.tolerance`), the sum by its own, and the
    result is rounded, with its parts the largest logit and a logarithm.
    """
    logit = (golden.head_dim / _MMA_K + 4) * _F32 * golden.logit_reach
    steps = (golden.count.double() / 4 + 8)[:, None] * _F32
    size = golden.lse.nan_to_num(neginf=0.0).abs() + golden.logit_reach
    return (logit + steps + 4 * _F32 * size) * _LOG2E


def _touched(scene: Scene, log: AccessLog) -> list[Difference]:
    """The twin must read each row's valid entries to the last, and nothing behind them."""
    valid, reach = valid_counts(scene), log.reach()
    for touch in log.behind(valid)[:1]:
        text = f"row {touch.row}: the twin reads position {touch.position}, behind its valid ones"
        return [Difference(scene.name, "touched", text)]
    for row, count in enumerate(valid):
        if reach.get(row, 0) != count:
            text = f"row {row}: the twin reads up to {reach.get(row, 0)}, expected {count}"
            return [Difference(scene.name, "touched", text)]
    return []


def _partials(scene: Scene, drawn: Drawn, found: SceneRecord, twin: Rerun, judged: Judged) -> None:
    outs, lses = kept_places(twin.schedule, found.call.num_heads)
    got_o, got_lse = found.tensors["partial_o"], found.tensors["partial_lse"]
    if _misshapen(scene, "partial_o", got_o, (len(outs), found.call.head_dim), twin.dtype, judged):
        return
    if _misshapen(scene, "partial_lse", got_lse, (len(lses),), torch.float32, judged):
        return
    if not outs:
        return
    twin_o, twin_lse = twin.partials(outs, lses)
    pieces = pieces_of(twin.schedule, found.call.num_heads)
    golden, at, heads = golden_of_pieces(drawn, found, pieces, [*outs, *lses])
    count = len(outs)
    exact = pick(golden, at[:count], heads[:count])
    names = [place_in_words(place, pieces[place]) for place in outs]
    roundings = engine_roundings(drawn, found)
    _near(scene, "partial_o", got_o, twin_o, exact, roundings, names, judged)
    at, heads = at[count:], heads[count:]
    allowed = lse_bound(golden)[at, heads]
    right = (golden.lse * _LOG2E)[at, heads]
    wanted = [("the twin", twin_lse.double(), 2 * allowed)]
    if golden.decode is None:
        wanted.append(("golden", right, allowed))
    for who, expected, limit in wanted:
        difference = (got_lse.double() - expected).abs()
        wrong = ~((difference <= limit) | (got_lse.double() == expected))
        for place in wrong.nonzero().flatten().tolist()[:1]:
            text = (
                f"{place_in_words(lses[place], pieces[lses[place]])}: the record holds "
                f"{float(got_lse[place]):.9g}, {who} {float(expected[place]):.9g}, allowed "
                f"{float(limit[place]):.3g} ({int(wrong.sum())} of {len(lses)} differ)"
            )
            judged.differences.append(Difference(scene.name, "partial_lse", text))
            return


def _outputs(scene: Scene, drawn: Drawn, found: SceneRecord, twin: Rerun, judged: Judged) -> None:
    pairs, step, world = scene.pairs(), scene.step, drawn.world
    shape = (len(pairs), found.call.head_dim)
    live = [at for at, (row, _) in enumerate(pairs) if row < step.rows]
    rows, heads = [pairs[at][0] for at in live], [pairs[at][1] for at in live]
    split = twin.schedule.split_limit() or int(WORST)
    unique = sorted(set(rows))
    at = [unique.index(row) for row in rows]
    names = [f"row {row} head {head}" for row, head in zip(rows, heads, strict=True)]
    cache, sm_scale = engine_cache(drawn, found)
    tokens = [drawn.inputs.tokens[row] for row in unique]
    engine = golden_of(drawn, cache, sm_scale, unique, tokens, split)
    own = twin.out[rows, heads]
    kinds: list[tuple[str, torch.dtype, Golden, Roundings, Tensor | None]] = [
        ("engine_out", twin.dtype, engine, engine_roundings(drawn, found), own)
    ]
    if "out" in found.tensors:
        whole = world.golden(step, drawn.inputs, split=split, rows=unique)
        roundings = Roundings.of(world.config.fmt, world.config.k_scale)
        kinds.append(("out", torch.bfloat16, whole, roundings, None))
    for name, dtype, golden, roundings, beside in kinds:
        got = found.tensors[name]
        if _misshapen(scene, name, got, shape, dtype, judged):
            continue
        bits = got.view(torch.int16)
        for place in sorted(set(range(len(pairs))) - set(live)):
            if not bool((bits[place] == UNWRITTEN).all()):
                text = f"padding row {pairs[place][0]} head {pairs[place][1]}: written"
                judged.differences.append(Difference(scene.name, name, text))
                break
        exact = pick(golden, at, heads)
        _near(scene, name, got[live], beside, exact, roundings, names, judged)


def pick(golden: Golden, rows: Sequence[int], heads: Sequence[int]) -> Golden:
    """Return an answer's (row, head) pairs as rows of one head each."""

    def some(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value[[*rows]] if value.dim() == 1 else value[[*rows], [*heads]][:, None]
        if value is None or isinstance(value, int):
            return value
        return replace(value, **{f.name: some(getattr(value, f.name)) for f in fields(value)})

    picked: Golden = some(golden)
    return picked


def _near(
    scene: Scene,
    name: str,
    got: Tensor,
    twin: Tensor | None,
    exact: Golden,
    roundings: Roundings,
    places: Sequence[str],
    judged: Judged,
) -> None:
    """Hold [n, dim] of the record, and of the twin, against golden and each other."""
    verdict = compare(got[:, None], exact, roundings)
    judged.ratio = max(judged.ratio, verdict.max_ratio)
    problem = ""
    if not verdict.ok:
        at, _, dim, seen, expected, limit = verdict.worst[0]
        problem = (
            f"{places[at]} channel {dim}: the record holds {seen:.9g}, golden {expected:.9g}, "
            f"allowed {limit:.3g}"
        )
    elif twin is not None:
        own = compare(twin[:, None], exact, roundings)
        limits = bound(exact, roundings)[:, 0]
        apart = (got.double() - twin.double()).abs()
        wrong = ~(apart <= limits).all(1)
        if not own.ok:
            problem = f"the twin itself differs from golden: {own.message.splitlines()[0]}"
        elif bool(wrong.any()):
            at = int(wrong.nonzero()[0])
            dim = int((apart[at] - limits[at]).argmax())
            problem = (
                f"{places[at]} channel {dim}: the record holds {float(got[at, dim]):.9g}, the twin "
                f"{float(twin[at, dim]):.9g}, allowed {float(limits[at, dim]):.3g}"
            )
    if problem:
        judged.differences.append(Difference(scene.name, name, problem))


def _misshapen(
    scene: Scene,
    name: str,
    got: Tensor,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    judged: Judged,
) -> bool:
    if (tuple(got.shape), got.dtype) == (shape, dtype):
        return False
    text = f"the record holds {got.dtype} {[*got.shape]}, expected {dtype} {[*shape]}"
    judged.differences.append(Difference(scene.name, name, text))
    return True
