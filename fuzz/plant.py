"""Plants a fault in a frame, or around it, and says which rows may suffer."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from conformance.core.bench import Bench
from conformance.core.case import Step, valid_count
from conformance.core.catalogue import PLAN_SLACK
from conformance.core.inputs import INT32_MAX, INT32_MIN, StepInputs
from conformance.core.lab import Lab
from fuzz.faults import FAULTS
from fuzz.history import Fault, HistoryError

_NO_IDS = (-1, INT32_MIN, INT32_MAX)


class Plant:
    """A fault and its frame. step, inputs: as the subject is given them.

    spared: rows that need not be right; rows: none behind these may be written. moves_table: the
    block table is to be another tensor than captured graphs read.
    Raises HistoryError where the frame has no place for the fault.
    """

    def __init__(
        self,
        fault: Fault,
        lab: Lab,
        bench: Bench,
        step: Step,
        inputs: StepInputs,
        graphs: Sequence[int],
    ) -> None:
        self.fault, self.kind = fault, FAULTS[fault.kind]
        self.step, self.inputs, self.spared = step, inputs, frozenset[int]()
        self.moves_table = fault.kind == "moved-table"
        self._bench, self._graphs = bench, graphs
        if self.moves_table and not graphs:
            raise self._misplaced("no graph was captured before")
        if fault.kind == "small-graph" and not self._smaller():
            raise self._misplaced(f"{step.rows} rows, and graphs of {[*graphs]}")
        if fault.kind == "other-scale":
            if not bench.config.fp8:
                raise self._misplaced("a BF16 cache")
            lab.needs("scale-check")
        plants: dict[str, Callable[[], None]] = {
            "garbage-tail": self._garbage_tail,
            "garbage-entry": self._garbage_entry,
            "low-bound": self._low_bound,
        }
        plants.get(fault.kind, lambda: None)()
        self.rows = min(self.graph_size(step.padded_rows), step.rows)

    def before(self) -> None:
        """Change what lies outside of the frame."""
        word = self.fault.kind.removesuffix("-elsewhere")
        if word != self.fault.kind:
            world = self._bench.world
            slots = world.unselected(self.step, self.inputs.tokens)
            self._bench.set_cache(world.poisoned(slots, word))
        elif self.fault.kind == "other-scale":
            self._bench.set_scale(self._bench.config.k_scale * 2)

    def after(self) -> None:
        """Change it back, where a history goes on."""
        if self.fault.kind.endswith("-elsewhere"):
            self._bench.set_cache(self._bench.world.raw)

    def graph_size(self, size: int) -> int:
        """Return the rows of the graph to replay where one of `size` rows is due."""
        return max(self._smaller()) if self.fault.kind == "small-graph" else size

    def _smaller(self) -> list[int]:
        return [size for size in self._graphs if size < self.step.rows]

    def _misplaced(self, found: str) -> HistoryError:
        return HistoryError(
            f"fault {self.fault.kind}",
            found=found,
            allowed="a turn that has a place for it",
            remedy="take it out, or plant it in another turn",
        )

    def _row(self, fits: Callable[[int], bool]) -> int:
        """Return the fault's row of those that fit."""
        rows = [row for row in range(self.step.rows) if fits(row)]
        if not rows:
            raise self._misplaced("no row that can have it")
        return rows[self.fault.row % len(rows)]

    def _garbage_tail(self) -> None:
        topk = self.inputs.topk.clone()
        ids = (*_NO_IDS, self._bench.world.longest + 1, -2)
        counts = [tokens.numel() for tokens in self.inputs.tokens]
        counts += [0] * (topk.shape[0] - len(counts))  # of padding rows all is tail
        for row, count in enumerate(counts):
            for place in range(count, topk.shape[1]):
                topk[row, place] = ids[(self.fault.amount + row + place) % len(ids)]
        if topk.equal(self.inputs.topk):
            raise self._misplaced("no row with a tail")
        self.inputs = replace(self.inputs, topk=topk)

    def _garbage_entry(self) -> None:
        row = self._row(lambda row: self.inputs.tokens[row].numel() > 0)
        topk, amount = self.inputs.topk.clone(), self.fault.amount
        topk[row, amount % self.inputs.tokens[row].numel()] = _NO_IDS[amount % len(_NO_IDS)]
        self.inputs, self.spared = replace(self.inputs, topk=topk), frozenset({row})

    def _low_bound(self) -> None:
        step, bounds = self.step, self.step.bounds
        if bounds is None or step.device_q_lens is not None:
            raise self._misplaced("a turn without bounds of its own")
        geometry, contexts, owners = self._bench.config.geometry, step.contexts(), step.row_requests

        def fits(row: int) -> bool:
            whole = valid_count(contexts[row], geometry) == contexts[row]
            return whole and contexts[row] > step.q_lens[owners[row]] + PLAN_SLACK

        request = owners[self._row(fits)]
        mine = [row for row, owner in enumerate(owners) if owner == request]
        # The first row then sees one token more than bound and slack, the others as well.
        queries = step.q_lens[request]
        low = max(queries, contexts[mine[0]] - PLAN_SLACK + queries - 2 - self.fault.amount)
        lowered = tuple(low if n == request else bound for n, bound in enumerate(bounds))
        self.step, self.spared = replace(step, bounds=lowered), frozenset(mine)
