"""What both planners are asked to plan: edges that are known by name, and inputs of a seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from conformance.twin.drawn import FLOAT_BYTES, SM_COUNTS, PlanInput, draw_inputs
from conformance.twin.planner import CTA_TILE_Q, MAX_WORKS, SPLIT_LIMITS, SPLIT_STEP

SEED = 20_000
DRAWN = 240

_DIM = 512
_SMS = SM_COUNTS[0]
_HEADS = (1, 16, 64, 65, 128)


@dataclass(frozen=True)
class Asked:
    """One plan to make. name: the same in every run, for a reader. float_bytes: of workspace."""

    name: str
    given: PlanInput
    float_bytes: int = FLOAT_BYTES


def inputs(drawn: int = DRAWN, seed: int = SEED) -> list[Asked]:
    """All of them, the named ones first; no two have one name."""
    more = draw_inputs(drawn, seed)
    return [*_named(), *(Asked(f"drawn {i} of seed {seed}", g) for i, g in enumerate(more))]


def _named() -> Iterator[Asked]:
    yield from _single_rows()
    yield from _split_limits()
    yield from _batches()
    yield from _cluster_flip()
    yield from _capacity()
    yield from _refused()


def _plan(
    q_lens: Sequence[int],
    kv_lens: Sequence[int],
    heads: int,
    num_sms: int = _SMS,
    first: tuple[int, int] = (0, 0),
) -> PlanInput:
    return PlanInput(
        tuple(accumulate(q_lens, initial=first[0])),
        tuple(accumulate(kv_lens, initial=first[1])),
        tuple(kv_lens),
        heads,
        _DIM,
        num_sms,
    )


def _single_rows() -> Iterator[Asked]:
    for num_sms in SM_COUNTS:
        for heads in _HEADS:
            for length in (0, 1, 63, 64, 65, 2048):
                name = f"one row of {length}, {heads} heads, {num_sms} SMs"
                yield Asked(name, _plan([1], [length], heads, num_sms))


def _split_limits() -> Iterator[Asked]:
    """One query tile whose KV positions per cluster stand on either side of each boundary."""
    edges = [most for most, _ in SPLIT_LIMITS] + [SPLIT_STEP, 2 * SPLIT_STEP]
    for num_sms in SM_COUNTS:
        for heads, cluster in ((16, 1), (128, 2)):
            clusters = num_sms // cluster
            for edge in edges:
                for total in (edge * clusters, edge * clusters + 1):
                    name = f"{total} positions on {clusters} clusters, {heads} heads"
                    yield Asked(f"one row of {name}", _plan([1], [total], heads, num_sms))
                    halves = [total // 2, 0, total - total // 2]
                    yield Asked(f"three rows of {name}", _plan([1] * 3, halves, heads, num_sms))


def _batches() -> Iterator[Asked]:
    for heads in _HEADS:
        equal, rising = [300] * 40, [37 * i % 701 for i in range(90)]
        yield Asked(f"40 equal rows, {heads} heads", _plan([1] * 40, equal, heads))
        yield Asked(f"90 rows of mixed lengths, {heads} heads", _plan([1] * 90, rising, heads))
        drafts = [1 + i % 4 for i in range(30)]
        yield Asked(f"drafts of 1 to 4, {heads} heads", _plan(drafts, rising[:30], heads))
        padded = [*[1] * 12, *[0] * 52]
        yield Asked(f"12 of 64 rows live, {heads} heads", _plan(padded, [257] * 64, heads))
        holes = [i % 3 and 1 for i in range(48)]
        yield Asked(f"padding among live rows, {heads} heads", _plan(holes, [129] * 48, heads))
        zeros = [0 if i % 2 else 4000 for i in range(32)]
        yield Asked(f"every other row empty, {heads} heads", _plan([1] * 32, zeros, heads))
        yield Asked(f"no row has tokens, {heads} heads", _plan([1] * 8, [0] * 8, heads))
        behind = _plan([1, 2, 1], [700, 0, 90], heads, first=(16384, 1 << 25))
        yield Asked(f"rows behind others of a larger batch, {heads} heads", behind)
    yield Asked("nothing but padding", _plan([0] * 5, [7] * 5, 16))


def _cluster_flip() -> Iterator[Asked]:
    """Padded batches whose packed pairs per row stand around one query tile."""
    for heads, rows in ((128, 64), (128, 16), (128, 512), (96, 40), (65, 32)):
        flip = -(-(CTA_TILE_Q + 1) * rows // heads)
        for live in range(max(flip - 2, 1), min(flip + 2, rows) + 1):
            q_lens = [*[1] * live, *[0] * (rows - live)]
            lengths = [*[900] * live, *[0] * (rows - live)]
            yield Asked(f"{live} of {rows} rows live, {heads} heads", _plan(q_lens, lengths, heads))
    for heads in (16, 17, 21, 22, 32, 33):
        for q_len in (2, 3, 4):
            name = f"20 rows of {q_len} tokens, {heads} heads"
            yield Asked(name, _plan([q_len] * 20, [500] * 20, heads))


def _capacity() -> Iterator[Asked]:
    """As many work items as one schedule holds."""
    rows = MAX_WORKS
    yield Asked(f"{rows} rows without tokens, 16 heads", _plan([1] * rows, [0] * rows, 16))
    yield Asked(f"{rows} rows of one token, 128 heads", _plan([1] * rows, [1] * rows, 128))
    rows = MAX_WORKS // 4
    yield Asked(f"{rows} rows of 4 query tiles, 128 heads", _plan([4] * rows, [9] * rows, 128))
    split = 8
    rows = MAX_WORKS - split + 1
    lengths = [split * SPLIT_STEP, *[1] * (rows - 1)]
    name = f"{rows} rows, the first in {split} splits, 16 heads"
    yield Asked(name, _plan([1] * rows, lengths, 16))


def _refused() -> Iterator[Asked]:
    yield Asked("falling qo_indptr", PlanInput((0, 2, 1), (0, 1, 2), (1, 1), 16, _DIM, _SMS))
    single = _plan([1], [64], 64)
    least = 2 * _SMS * CTA_TILE_Q * (2 * _DIM + 4)
    yield Asked("the least float workspace", single, least)
    yield Asked("one byte less than the least float workspace", single, least - 1)
