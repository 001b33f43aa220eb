"""A history: what an engine decided, turn by turn. Frozen, and one JSON text.

Lengths, bounds, tables and splits are not in it: they follow (`fuzz.engine`). Contents of cache,
queries and selections are drawn from its seed.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from conformance.core.case import GEOMETRIES
from fuzz.faults import FAULTS

SCHEMA = "smla-history/1"
MOST_PADDING = 8
"""Rows behind the live ones of an eager forward, at most."""
MOST_ROWS = 4096
DEVICES = ("at once", "later", "held")


class HistoryError(ValueError):
    """A history that cannot be: a text of another form, or a decision that no engine can make."""

    def __init__(self, where: str, *, found: object, allowed: str, remedy: str) -> None:
        super().__init__(f"{where}: found {found}; allowed: {allowed}; to fix: {remedy}")
        self.parts = (where, found, allowed, remedy)

    @staticmethod
    def of(path: Path, problem: "HistoryError") -> "HistoryError":
        """Return the same of a file."""
        where, found, allowed, remedy = problem.parts
        return HistoryError(f"{path}: {where}", found=found, allowed=allowed, remedy=remedy)


@dataclass(frozen=True)
class Shape:
    """What does not change in a history.

    dtype: of the cache, bf16 or fp8. geo: a name in `conformance.core.case.GEOMETRIES`.
    width: compressed width on the twin, small (64) or full (512).
    slots: most requests in a batch. budget: most rows of a turn, padding left out.
    longest: most tokens of a request, drafts included.
    drafts: most draft tokens of a request in a turn. lag: turns until the host knows what became
    of them. graphs: padded sizes that forwards are captured at.
    force_mqa: prefills are never left to dense attention.
    device: when it does its work: at once, later (on the twin, a little at a time), or held until
    all frames of a bundle are queued.
    """

    dtype: str
    kpe: int
    heads: int
    geo: str
    width: str
    slots: int
    budget: int
    longest: int
    drafts: int
    lag: int
    graphs: tuple[int, ...]
    force_mqa: bool
    device: str


@dataclass(frozen=True)
class Part:
    """A request's share of a turn. request: its number in the history.

    queries: its query tokens; of a decode one token and drafts. accepted: how many of those drafts
    the device accepts, which the host learns `lag` turns later; 0 for a prefill.
    """

    request: int
    queries: int
    accepted: int = 0


@dataclass(frozen=True)
class Fault:
    """Something planted in a turn. kind: a name in `fuzz.faults.FAULTS`. row: of the batch.

    amount: what the kind makes of it.
    """

    kind: str
    row: int = 0
    amount: int = 0


@dataclass(frozen=True)
class Turn:
    """One step of the engine.

    arrive: prompt lengths of requests that come in, numbered on. preempt: requests whose blocks are
    taken, to be computed again. parts: what is computed, decodes first; none is a step without
    rows. device: the query tokens of the decodes as the device distributed them, empty for as the
    host has it. finish: requests that end with this turn. drafting: draft steps that follow, of one
    token for each decode. graph: whether a captured forward is replayed. padding: rows behind the
    live ones, of an eager forward. known: whether the host has bounds; else it reads lengths back.
    """

    arrive: tuple[int, ...] = ()
    preempt: tuple[int, ...] = ()
    parts: tuple[Part, ...] = ()
    device: tuple[int, ...] = ()
    finish: tuple[int, ...] = ()
    drafting: int = 0
    graph: bool = False
    padding: int = 0
    known: bool = True
    fault: Fault | None = None


@dataclass(frozen=True)
class History:
    """A whole history. seed: of the contents of cache, queries and selections, not negative."""

    seed: int
    shape: Shape
    turns: tuple[Turn, ...]

    @property
    def case(self) -> str:
        """The case id that contents are drawn from, in the suite's form."""
        shape = self.shape
        pairs = f"dtype={shape.dtype},kpe={shape.kpe},heads={shape.heads},geo={shape.geo}"
        how = ",how=mqa" if shape.force_mqa else ""
        return f"FUZZ/{pairs},width={shape.width}{how}/{self.seed}"

    def dumps(self) -> str:
        """Return its JSON text; the same history has the same bytes."""
        table = {"schema": SCHEMA, **_sparse(asdict(self))}
        return json.dumps(table, indent=1, sort_keys=True) + "\n"

    @staticmethod
    def loads(text: str) -> "History":
        """Return the history of a JSON text; raise HistoryError for anything else."""
        try:
            table = json.loads(text)
        except (ValueError, RecursionError) as problem:
            raise HistoryError(
                "history",
                found=f"no JSON ({problem})",
                allowed="a JSON object",
                remedy="take the text that `python -m fuzz run` wrote",
            ) from problem
        schema = table.pop("schema", None) if isinstance(table, dict) else None
        if schema != SCHEMA:
            raise HistoryError(
                "history, schema",
                found=repr(schema),
                allowed=repr(SCHEMA),
                remedy="play it with the version that wrote it",
            )
        history: History = _read(History, table, "history")
        history.check()
        return history

    def check(self) -> None:
        """Raise HistoryError for words and numbers that mean nothing here.

        Whether its decisions can be made one after the other, `fuzz.engine` finds out.
        """
        shape = self.shape
        if self.seed < 0:
            raise HistoryError(
                "history, seed", found=self.seed, allowed="0 and above", remedy="take another one"
            )
        allowed: Mapping[str, Any] = {
            "dtype": ("bf16", "fp8"), "kpe": (0, 64), "geo": tuple(GEOMETRIES),
            "width": ("small", "full"), "heads": range(1, 129), "slots": range(1, 65),
            "budget": range(1, MOST_ROWS + 1),
            "lag": range(9), "device": DEVICES, "drafts": range(17), "longest": range(1, 1 << 16),
        }  # fmt: skip
        for name, values in allowed.items():
            if getattr(shape, name) not in values:
                raise HistoryError(
                    f"history {self.seed}, shape, {name}",
                    found=repr(getattr(shape, name)),
                    allowed=str(values),
                    remedy="take one of these",
                )
        if not all(1 <= size <= MOST_ROWS for size in shape.graphs):
            raise HistoryError(
                f"history {self.seed}, shape, graphs",
                found=shape.graphs,
                allowed=f"sizes from 1 to {MOST_ROWS}",
                remedy="take one of these",
            )
        for number, turn in enumerate(self.turns):
            fault = turn.fault or Fault("")
            numbers = {
                "padding": (turn.padding, MOST_PADDING),
                "drafting": (turn.drafting, shape.drafts),
                "fault, row": (fault.row, MOST_ROWS),
                "fault, amount": (fault.amount, MOST_ROWS),
            }
            for name, (value, most) in numbers.items():
                if not 0 <= value <= most:
                    raise HistoryError(
                        f"history {self.seed}, turn {number}, {name}",
                        found=value,
                        allowed=f"0 to {most}",
                        remedy="take one of these",
                    )
            if turn.fault is not None and turn.fault.kind not in FAULTS:
                raise HistoryError(
                    f"history {self.seed}, turn {number}, fault",
                    found=repr(turn.fault.kind),
                    allowed=", ".join(FAULTS),
                    remedy="take one of these",
                )
            last = number == len(self.turns) - 1 and not turn.drafting
            if turn.fault is not None and FAULTS[turn.fault.kind].flag and not last:
                raise HistoryError(
                    f"history {self.seed}, turn {number}, fault",
                    found=turn.fault.kind,
                    allowed="what raises a flag in the last turn alone, draft steps left out",
                    remedy="cut the history behind it",
                )


def _sparse(value: Any) -> Any:
    """Return a table without what is as it is by default."""
    if isinstance(value, Mapping):
        kept = {key: _sparse(inner) for key, inner in value.items()}
        return {key: inner for key, inner in kept.items() if inner != _PLAIN.get(key, _ABSENT)}
    return [_sparse(inner) for inner in value] if isinstance(value, list | tuple) else value


_ABSENT = object()
_PLAIN: dict[str, Any] = {
    f.name: _sparse(f.default) for kind in (Part, Fault, Turn) for f in fields(kind)
    if f.name not in ("request", "queries", "kind")
}  # fmt: skip


def _read(kind: Any, value: Any, where: str) -> Any:
    """Return a value of an annotated kind; raise HistoryError unless JSON's value is one."""
    if isinstance(kind, UnionType):
        inner = next(k for k in get_args(kind) if k is not NoneType)
        return None if value is None else _read(inner, value, where)
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise _misfit(where, value, "a list")
        item = get_args(kind)[0]
        return tuple(_read(item, inner, f"{where}[{n}]") for n, inner in enumerate(value))
    if kind in (int, str, bool):
        if type(value) is not kind:
            raise _misfit(where, value, kind.__name__)
        return value
    names = {f.name: f for f in fields(kind)}
    if not isinstance(value, dict) or set(value) - set(names):
        raise _misfit(where, value, f"an object of {', '.join(names)}")
    try:
        return kind(**{k: _read(names[k].type, v, f"{where}.{k}") for k, v in value.items()})
    except TypeError as problem:
        raise _misfit(where, value, str(problem)) from problem


def _misfit(where: str, value: Any, allowed: str) -> HistoryError:
    shown = repr(value)
    return HistoryError(
        where,
        found=shown if len(shown) < 80 else f"{shown[:80]}...",
        allowed=allowed,
        remedy="correct it, or take the text that `python -m fuzz run` wrote",
    )
