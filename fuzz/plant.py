"""Plants a fault in a frame, or around it, and says which rows may suffer."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from conformance.core.bench import Bench
from conformance.core.bench import Frame as Buffers
from conformance.core.case import Step, valid_count
from conformance.core.catalogue import PLAN_SLACK
from conformance.core.inputs import INT32_MAX, INT32_MIN, StepInputs
from conformance.core.lab import Lab
from fuzz.faults import FAULTS
from fuzz.history import Fault, HistoryError
from fuzz.places import beyond_slack, shows_skipped, untold_splits

_NO_IDS = (-1, INT32_MIN, INT32_MAX)
_STALE_TURNS = 4
_LAYER_SCALES = (0.5, 1.375, 3.0)


class Layer:
    """A second layer on a frame's plan: a bench with a scale of its own, inputs and buffers."""

    def __init__(self, bench: Bench, step: Step, fault: Fault) -> None:
        fp8 = bench.config.fp8
        factor = _LAYER_SCALES[fault.amount % len(_LAYER_SCALES)] if fp8 else 1.0
        self.bench = bench.layer(bench.config.k_scale * factor)
        self.inputs = self.bench.world.draw_step(step, label=f"layer {fault.amount}")
        self.buffers: Buffers = self.bench.frame(step, self.inputs)
        self.first = fault.row % 2 == 0


class Plant:
    """A fault and its frame. step, inputs: as the subject is given them.

    before: the step of the frame before, None for the first. drafts: most drafts of a request.
    spared: rows that need not be right; rows: none behind these may be written. contexts: each
    live row's, as the device has them. layer: a second one that runs on the same plan.
    Raises HistoryError where the frame has no place for the fault, and Unobservable where the
    subject does not offer to notice it.
    """

    def __init__(
        self,
        fault: Fault,
        lab: Lab,
        bench: Bench,
        step: Step,
        inputs: StepInputs,
        graphs: Sequence[int],
        before: Step | None,
        drafts: int,
    ) -> None:
        self.fault, self.kind = fault, FAULTS[fault.kind]
        self.step, self.inputs, self.spared = step, inputs, frozenset[int]()
        self.contexts = step.contexts()
        self.layer: Layer | None = None
        self._bench, self._graphs, self._before, self._drafts = bench, graphs, before, drafts
        self._late: list[int] = []
        if self.is_("moved-table") and not graphs:
            raise self._misplaced("no graph was captured before")
        if self.is_("small-graph"):
            if not self._smaller():
                raise self._misplaced(f"{step.rows} rows, and graphs of {[*graphs]}")
            self.spared = frozenset(range(step.rows))  # it may as well compute nothing
        if self.is_("other-scale"):
            if not bench.config.fp8:
                raise self._misplaced("a BF16 cache")
            lab.needs("scale-check")
        if self.is_("second-stream"):
            lab.needs("one-stream")
        if self.kind.flag:
            bench.observe().need("flags")
        plants: dict[str, Callable[[], None]] = {
            "garbage-tail": self._garbage_tail,
            "garbage-entry": self._garbage_entry,
            "low-bound": self._low_bound,
            "stale-bounds": self._stale_bounds,
            "late-frame": self._late_frame,
            "layers": self._layers,
            "untold-split": self._untold_split,
            "skipped-plan": self._skipped_plan,
            "over-capacity": self._over_capacity,
        }
        plants.get(fault.kind, lambda: None)()
        self.rows = min(self.graph_size(step.padded_rows), step.rows)

    def is_(self, kind: str) -> bool:
        """Whether the fault is of this kind."""
        return self.fault.kind == kind

    @property
    def replaces_cache(self) -> bool:
        """Whether `before` and `after` replace the cache's bytes."""
        return bool(self._late) or self.fault.kind.endswith("-elsewhere")

    @property
    def flags(self) -> list[str]:
        """Names of the flags that the device must raise, and no others, in order."""
        found = {self.kind.flag} - {""}
        if self.is_("untold-split") or self.is_("skipped-plan"):
            geometry = self._bench.config.geometry
            for context, tokens in zip(self.contexts, self.inputs.tokens, strict=True):
                counted, due = int((tokens < context).sum()), valid_count(context, geometry)
                found |= {"count_below_formula"} if counted < due else set()
                found |= {"count_above_formula"} if counted > due else set()
        return sorted(found)

    def valid(self) -> list[int]:
        """Return how many entries of each live row the device may read."""
        geometry = self._bench.config.geometry
        return [valid_count(context, geometry) for context in self.contexts]

    def before(self) -> None:
        """Change what lies outside of the frame."""
        word = self.fault.kind.removesuffix("-elsewhere")
        world = self._bench.world
        if word != self.fault.kind:
            slots = world.unselected(self.step, self.inputs.tokens)
            self._bench.set_cache(world.poisoned(slots, word))
        elif self._late:
            self._bench.set_cache(world.poisoned(self._late, "nan"))
        elif self.is_("other-scale"):
            self._bench.set_scale(self._bench.config.k_scale * 2)

    def after(self) -> None:
        """Change it back, where a history goes on."""
        if self.replaces_cache:
            self._bench.set_cache(self._bench.world.raw)

    def graph_size(self, size: int) -> int:
        """Return the rows of the graph to replay where one of `size` rows is due."""
        return max(self._smaller()) if self.is_("small-graph") else size

    def _smaller(self) -> list[int]:
        return [size for size in self._graphs if size < self.step.rows]

    def _misplaced(self, found: str) -> HistoryError:
        return HistoryError(
            f"fault {self.fault.kind}",
            found=found,
            allowed="a turn that has a place for it",
            remedy="take it out, or plant it in another turn",
        )

    def _chosen(self, rows: Sequence[int]) -> int:
        """Return the fault's row of those that can have it."""
        if not rows:
            raise self._misplaced("no row that can have it")
        return rows[self.fault.row % len(rows)]

    def _told(self) -> tuple[int, ...]:
        """Return the host's bounds, of a step that it splits itself."""
        if self.step.bounds is None or self.step.device_q_lens is not None:
            raise self._misplaced("a turn without bounds of its own")
        return self.step.bounds

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
        row = self._chosen([n for n, t in enumerate(self.inputs.tokens) if t.numel()])
        topk, amount = self.inputs.topk.clone(), self.fault.amount
        ids = (*_NO_IDS, self.contexts[row])  # the last: a token that comes later
        topk[row, amount % self.inputs.tokens[row].numel()] = ids[amount % len(ids)]
        self.inputs, self.spared = replace(self.inputs, topk=topk), frozenset({row})

    def _low_bound(self) -> None:
        step, bounds = self.step, self._told()
        owners = step.row_requests
        request = owners[self._chosen(beyond_slack(step, self._bench.config.geometry))]
        mine = [row for row, owner in enumerate(owners) if owner == request]
        # The first row then sees one token more than bound and slack, the others as well.
        queries = step.q_lens[request]
        low = self.contexts[mine[0]] - PLAN_SLACK + queries - 2 - self.fault.amount
        low = max(queries, low)
        lowered = tuple(low if n == request else bound for n, bound in enumerate(bounds))
        self.step, self.spared = replace(step, bounds=lowered), frozenset(mine)

    def _stale_bounds(self) -> None:
        bounds = self.step.bounds
        if bounds is None or not self.step.rows:
            raise self._misplaced("a turn without bounds, or without rows")
        more = (1 + self.fault.amount % _STALE_TURNS) * (1 + self._drafts)
        pairs = zip(bounds, self.step.q_lens, strict=True)
        self.step = replace(self.step, bounds=tuple(b + more * (q > 0) for b, q in pairs))

    def _late_frame(self) -> None:
        owners = self.step.row_requests
        if len(set(owners)) < 2:
            raise self._misplaced("fewer than two requests with rows")
        request = owners[self._chosen(range(self.step.rows))]
        mine = [row for row, owner in enumerate(owners) if owner == request]
        chosen = {token for row in mine for token in self.inputs.tokens[row].tolist()}
        self._late = [self._bench.world.slot(request, token) for token in sorted(chosen)]
        self.spared = frozenset(mine)

    def _layers(self) -> None:
        if not self.step.rows:
            raise self._misplaced("no row")
        self.layer = Layer(self._bench, self.step, self.fault)

    def _untold_split(self) -> None:
        self._told()
        splits = untold_splits(self.step, self._bench.config.geometry)
        if not splits:
            raise self._misplaced("no split that outgrows the plan")
        split = splits[self.fault.amount % len(splits)]
        told = zip(self.step.row_requests, self.contexts, strict=True)
        self.step = replace(self.step, device_q_lens=split)
        self.contexts = self.step.contexts()
        true = zip(self.step.row_requests, self.contexts, strict=True)
        pairs = enumerate(zip(told, true, strict=True))
        self.spared = frozenset(row for row, (host, device) in pairs if host != device)

    def _skipped_plan(self) -> None:
        if not shows_skipped(self.step, self._before, self._bench.config.geometry):
            raise self._misplaced("selections that do not show it")
        assert self._before is not None
        self.contexts, self.spared = self._before.contexts(), frozenset(range(self.step.rows))

    def _over_capacity(self) -> None:
        self.step = replace(self.step, padded_rows=self._bench.config.max_tokens + 1)
