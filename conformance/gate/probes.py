"""What callers meet of FlashInfer's MLA wrapper: a table of calls and of what comes of each.

The same calls are made to the real class on a pretended device and to the simulated one. Below is a
recorder in place of the native module, so Python code alone runs.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch

ROWS, WIDTH, SMS = 64, 16, 132
INFO = [1, SMS] + [0] * 16
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
Place = Callable[[torch.Tensor], torch.Tensor]
Problem = Callable[[str, Exception], None]
_KINDS = (ValueError, TypeError, AttributeError, IndexError, RuntimeError)


class Recorder:
    """Stands for the native module. fail: plan raises."""

    num_sms = SMS
    fail = False

    def __init__(self, returns_size: bool = True) -> None:
        self._returns_size = returns_size

    def plan(self, *args: Any) -> Any:
        if Recorder.fail:
            raise RuntimeError("the native plan failed")
        return (INFO, 0) if self._returns_size else INFO

    def run(self, *args: Any) -> None:
        pass


class Setup:
    """A wrapper in graph mode with reserved buffers for so many rows, or without any.

    place: puts a tensor on the device.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        rows: int = ROWS,
        place: Place = lambda tensor: tensor,
        **changes: Any,
    ) -> None:
        self._place = place

        def zeros(size: int) -> torch.Tensor:
            return place(torch.zeros(size, dtype=torch.int32))

        self.reserved: dict[str, Any] = {
            "qo_indptr": zeros(rows + 1),
            "kv_indptr": zeros(rows + 1),
            "kv_indices": zeros(rows * WIDTH).fill_(3),
            "kv_len_arr": zeros(rows),
        }
        workspace = changes.pop("workspace", 20 << 20)
        graph = changes.pop("use_cuda_graph", True)
        given = {**self.reserved, **changes} if graph else {}
        room = place(torch.empty(workspace, dtype=torch.uint8))
        self.wrapper = make(room, use_cuda_graph=graph, backend="fa3", **given)
        live = min(5, rows)
        self.lens = torch.zeros(rows, dtype=torch.int32)
        self.lens[:live] = 10
        self.offsets = torch.nn.functional.pad(self.lens.cumsum(0), (1, 0)).int()
        self.starts = torch.arange(rows + 1, dtype=torch.int32).clamp(max=live)
        self.indices = self.reserved["kv_indices"][: 10 * live]

    def plan(self, **changes: Any) -> None:
        given = {
            "qo_indptr": self.starts,
            "kv_indptr": self.offsets,
            "kv_indices": self.indices,
            "kv_len_arr": self.lens,
            "num_heads": 64,
            "head_dim_ckv": 512,
            "head_dim_kpe": 0,
            "page_size": 1,
            "causal": False,
            "sm_scale": 0.04,
            "q_data_type": BF16,
            "kv_data_type": BF16,
        } | changes
        self.wrapper.plan(*given.values())

    def run(self, rows: int = 5, pages: int = 100, cache: torch.dtype = BF16, **more: Any) -> Any:
        flat = self._place(torch.zeros(pages, 1, 512, dtype=BF16).to(cache))
        q = self._place(torch.zeros(rows, 64, 512, dtype=more.pop("q_type", BF16)))
        if "out" in more:
            more["out"] = self._place(more["out"])
        return self.wrapper.run(q, q[..., :0], flat, flat[..., :0], **more)


def _said(work: Callable[[], Any], name: str, problem_seen: Problem) -> str:
    try:
        work()
    except Exception as problem:
        problem_seen(name, problem)
        for kind in _KINDS:
            if isinstance(problem, kind):
                return kind.__name__
        return type(problem).__name__
    return "ok"


def _flags(values: Any) -> list[bool]:
    return [bool(value) for value in values]


def _nothing(name: str, problem: Exception) -> None:
    pass


def observe(
    make: Callable[..., Any],
    reads: Callable[[Any], int],
    *,
    place: Place = lambda tensor: tensor,
    problem_seen: Problem = _nothing,
) -> dict[str, Any]:
    """Outcomes by name: "ok" or what was raised of a call, else a fact.

    make: the class. reads: device tensors' values read on the host by a wrapper so far. place: puts
    a tensor on the device. problem_seen: told each exception, with the outcome's name.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _observe(make, reads, place, problem_seen)


def _observe(
    make: Callable[..., Any], reads: Callable[[Any], int], place: Place, problem_seen: Problem
) -> dict[str, Any]:
    seen: dict[str, Any] = {}

    def said(name: str, work: Callable[[], Any]) -> None:
        seen[name] = _said(work, name, problem_seen)

    def planned(name: str, setup: dict[str, Any] | None = None, **changes: Any) -> None:
        said(f"plan {name}", lambda: Setup(make, place=place, **(setup or {})).plan(**changes))

    def ran(name: str, plan: dict[str, Any] | None = None, **changes: Any) -> None:
        case = Setup(make, place=place)

        def work() -> None:
            case.plan(**(plan or {}))
            case.run(**changes)

        said(f"run {name}", work)

    case = Setup(make, place=place)
    seen["int workspace before a plan"] = hasattr(case.wrapper, "_int_workspace_buffer")
    said("run before a plan", case.run)
    before = reads(case.wrapper)
    case.plan()
    seen["reads of a plan"] = reads(case.wrapper) - before
    seen["plan_info"] = list(case.wrapper._plan_info) == INFO
    seen["backend object"] = hasattr(case.wrapper, "_planned_backend")
    seen["copied"] = _flags(
        reserved[: len(given)].equal(given)
        for reserved, given in zip(
            case.reserved.values(), (case.starts, case.offsets, case.indices, case.lens),
            strict=True,
        )
    )  # fmt: skip
    first = case.wrapper._int_workspace_buffer.data_ptr()
    case.plan()
    second = case.wrapper._int_workspace_buffer.data_ptr()
    seen["int workspace of a graph stays"] = first == second
    free = Setup(make, place=place, use_cuda_graph=False)
    free.plan(kv_indices=free.indices.clone())
    held = free.wrapper._int_workspace_buffer
    free.plan(kv_indices=free.indices.clone())
    seen["int workspace without a graph stays"] = held is free.wrapper._int_workspace_buffer

    lens, offsets = case.lens, case.offsets
    planned("an unpacked CSR", kv_indptr=offsets.clamp(max=49))
    planned("loose offsets", kv_indptr=(offsets * 2).int(), kv_indices=torch.zeros(100).int())
    planned("int64 lengths", kv_len_arr=lens.long())
    planned("int64 starts", qo_indptr=case.starts.long())
    planned("rank 2", kv_indices=case.indices.view(1, -1))
    planned("a strided vector", kv_len_arr=torch.stack([lens, lens], 1)[:, 0])
    planned("offsets from one", kv_indptr=offsets + 1)
    planned("falling starts", qo_indptr=case.starts.flip(0) - case.starts[-1])
    planned("too few indices", kv_indices=case.indices[:20])
    planned("negative lengths", kv_len_arr=-lens, kv_indptr=torch.zeros_like(offsets))
    planned("fewer rows than reserved", qo_indptr=case.starts[:9], kv_indptr=offsets[:9],
            kv_len_arr=lens[:8])  # fmt: skip
    planned("more indices than reserved", kv_indices=torch.zeros(ROWS * WIDTH + 1).int())
    planned("no reserved lengths", {"kv_len_arr": None})
    planned("reserved of int64", {"kv_len_arr": place(torch.zeros(ROWS).long())})
    shared = place(torch.zeros(2 * ROWS + 2, dtype=torch.int32))
    planned("reserved that overlap",
            {"qo_indptr": shared[: ROWS + 1], "kv_indptr": shared[1 : ROWS + 2]})  # fmt: skip
    planned("no rows", {"rows": 1, "use_cuda_graph": False}, qo_indptr=case.starts[:1],
            kv_indptr=offsets[:1], kv_len_arr=lens[:0])  # fmt: skip
    planned("an E5M2 cache", kv_data_type=torch.float8_e5m2)
    planned("FP8 for FP16 queries", kv_data_type=FP8, q_data_type=torch.float16)
    planned("FP8 of 256 channels", kv_data_type=FP8, head_dim_ckv=256)
    planned("FP8", kv_data_type=FP8)
    planned("an FP16 cache for BF16 queries", kv_data_type=torch.float16)
    planned("BF16 of 64 channels", head_dim_ckv=64)
    planned("BF16 with 32 of rope", head_dim_kpe=32)
    planned("negative rope", head_dim_kpe=-64)
    planned("a small float workspace", {"workspace": 1 << 20})
    many = Setup(make, rows=17000, place=place)
    ones = torch.ones(17000, dtype=torch.int32)
    steps = torch.arange(17001, dtype=torch.int32)
    said(
        "plan 17000 work items",
        lambda: many.plan(
            qo_indptr=steps, kv_indptr=steps, kv_len_arr=ones, kv_indices=ones, num_heads=128
        ),
    )
    failed = Setup(make, place=place)
    failed.plan()
    Recorder.fail = True
    said("plan a native failure", lambda: failed.plan(kv_len_arr=lens * 0, kv_indptr=offsets * 0))
    Recorder.fail = False
    seen["lengths after a native failure"] = failed.reserved["kv_len_arr"].tolist() == lens.tolist()

    ran("rows as planned")
    ran("padded rows", rows=8)
    ran("a small cache", pages=3)
    ran("FP16 queries", q_type=torch.float16)
    ran("an FP8 cache unplanned", cache=FP8, ckv_scale=1.0, kpe_scale=1.0)
    fp8: dict[str, Any] = {"plan": {"kv_data_type": FP8}, "cache": FP8}
    ran("FP8", ckv_scale=0.5, kpe_scale=0.5, **fp8)
    ran("FP8 without scales", **fp8)
    ran("FP8 without kpe_scale", ckv_scale=0.5, **fp8)
    ran("FP8 of scale zero", ckv_scale=0.0, kpe_scale=0.5, **fp8)
    ran("FP8 of infinite scale", ckv_scale=0.5, kpe_scale=float("inf"), **fp8)
    ran("BF16 with scales", ckv_scale=1.0, kpe_scale=1.0)
    ran("out of another shape", out=torch.zeros(5, 64, 511, dtype=BF16))
    ran("out of another type", out=torch.zeros(5, 64, 512, dtype=torch.float16))

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        Setup(make, place=place).plan()
    seen["warns"] = any(issubclass(item.category, DeprecationWarning) for item in told)
    return seen
