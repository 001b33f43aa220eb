"""A bad call raises the error of its kind, says what to do, and writes nothing.

Each table row spoils one thing of a good call. After the refusal every tensor of the plan state is
bitwise what it was, the step before can still be run, and so can the next one.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import smla
from smla import errors
from smla.tests.workbench import (
    CONFIG,
    INT32,
    assert_refused,
    undisturbed,
    workbench,
)

META = torch.device("meta")
WIDTH, ROWS = CONFIG.topk_width, 6


def wider(tensor: Tensor) -> Tensor:
    """The same values with a gap behind each element."""
    return torch.stack([tensor, tensor], -1)[..., 0]


BatchChange = Callable[[smla.BatchLayout], dict[str, Any]]
BAD_BATCHES: list[tuple[str, BatchChange, type[errors.SmlaError], str]] = [
    (f"{field} {what}", (lambda b, f=field, c=change: {f: c(getattr(b, f))}), kind, words)
    for field in (
        "query_start_loc_cpu",
        "query_start_loc",
        "seq_lens",
        "block_table",
        "seq_lens_cpu_upper_bound",
    )
    for what, change, kind, words in (
        ("of int64", torch.Tensor.long, errors.DtypeError, f"{field}|torch.int64|torch.int32"),
        ("of float", torch.Tensor.float, errors.DtypeError, f"{field}|torch.float32|torch.int32"),
        ("elsewhere", lambda t: t.to(META), errors.DeviceError, f"{field}|meta|cpu"),
        ("with gaps", wider, errors.StrideError, f"{field}|(2"),
        ("of rank 3", lambda t: t.reshape(1, 1, -1), errors.ShapeError, f"{field}|(1, 1, "),
    )
    if (field, what) != ("block_table", "with gaps")
] + [
    (
        "block_table column-major",
        lambda b: {"block_table": b.block_table.T.contiguous().T},
        errors.StrideError,
        "block_table|(1, 3)|row-major",
    ),
    (
        "block_table short of a request",
        lambda b: {"block_table": b.block_table[:2]},
        errors.ShapeError,
        "block_table|(2, 9)|3",
    ),
    (
        "seq_lens short of a request",
        lambda b: {"seq_lens": b.seq_lens[:2]},
        errors.ShapeError,
        "seq_lens|(2,)|[3]",
    ),
    (
        "device starts short of a request",
        lambda b: {"query_start_loc": b.query_start_loc[:3]},
        errors.ShapeError,
        "query_start_loc|(3,)|[4]",
    ),
    (
        "bounds short of a request",
        lambda b: {"seq_lens_cpu_upper_bound": b.seq_lens[:2]},
        errors.ShapeError,
        "seq_lens_cpu_upper_bound|(2,)|[3]",
    ),
    (
        "no starts at all",
        lambda b: {"query_start_loc_cpu": torch.empty(0, dtype=INT32)},
        errors.ShapeError,
        "query_start_loc_cpu|no entry",
    ),
    (
        "starts that fall",
        lambda b: {"query_start_loc_cpu": torch.tensor([0, 4, 1, 6], dtype=INT32)},
        errors.QueryStartLocError,
        "query_start_loc_cpu|[0, 4, 1, 6]|never falling",
    ),
    (
        "starts that do not start at 0",
        lambda b: {"query_start_loc_cpu": torch.tensor([1, 2, 4, 6], dtype=INT32)},
        errors.QueryStartLocError,
        "[1, 2, 4, 6]|0 first",
    ),
    (
        "a bound below the query count",
        lambda b: {"seq_lens_cpu_upper_bound": torch.tensor([7, 2, 100], dtype=INT32)},
        errors.SequenceLengthError,
        "request 1|found 2|3 query tokens",
    ),
    (
        "a negative bound",
        lambda b: {"seq_lens_cpu_upper_bound": torch.tensor([7, 40, -1], dtype=INT32)},
        errors.SequenceLengthError,
        "request 2|found -1",
    ),
    (
        "an exact length below the query count",
        lambda b: {
            "seq_lens_cpu_upper_bound": None,
            "seq_lens": torch.tensor([0, 40, 100], dtype=INT32),
        },
        errors.SequenceLengthError,
        "request 0|found 0|1 query tokens",
    ),
    (
        "device starts that fall, read on the exact path",
        lambda b: {
            "seq_lens_cpu_upper_bound": None,
            "query_start_loc": torch.tensor([0, 4, 1, 6], dtype=INT32),
        },
        errors.QueryStartLocError,
        "query_start_loc|[0, 4, 1, 6]",
    ),
    (
        "device starts with other rows than the host's, read on the exact path",
        lambda b: {
            "seq_lens_cpu_upper_bound": None,
            "query_start_loc": torch.tensor([0, 1, 4, 5], dtype=INT32),
        },
        errors.QueryStartLocError,
        "query_start_loc|[0, 1, 4, 5]|6",
    ),
    (
        "more rows than max_tokens",
        lambda b: {"query_start_loc_cpu": torch.tensor([0, 1, 4, 13], dtype=INT32)},
        errors.CapacityError,
        "13 live|max_tokens = 12",
    ),
    (
        "more padded rows than max_tokens",
        lambda b: {"num_padded_tokens": 13},
        errors.CapacityError,
        "13 padded|max_tokens = 12",
    ),
    (
        "fewer padded rows than live ones",
        lambda b: {"num_padded_tokens": 5},
        errors.CapacityError,
        "6 live, 5 padded",
    ),
]


@pytest.mark.parametrize(
    ("change", "kind", "words"), [c[1:] for c in BAD_BATCHES], ids=[c[0] for c in BAD_BATCHES]
)
def test_a_bad_batch_is_refused_before_anything_is_written(change, kind, words):
    bench = workbench()
    with undisturbed(bench) as step:
        bad = replace(step.batch, **change(step.batch))
        assert_refused(lambda: bench.builder.build(bad), kind, words)


def shifted(tensor: Tensor, by: int) -> Tensor:
    """The same values, contiguous, `by` elements behind an aligned address."""
    buffer = torch.empty(tensor.numel() + 64, dtype=tensor.dtype)
    aligned = -buffer.data_ptr() % 64 // tensor.element_size()
    place = buffer[aligned + by :][: tensor.numel()].view(tensor.shape)
    return place.copy_(tensor)


def gapped_rows(tensor: Tensor) -> Tensor:
    """The same values with rows that are 3 elements too far apart."""
    return torch.nn.functional.pad(tensor, (0, 3))[..., : tensor.shape[-1]]


CallChange = Callable[[dict[str, Any]], dict[str, Any]]
BAD_CALLS: list[tuple[str, CallChange, type[errors.SmlaError], str]] = [
    (f"{name} {what}", (lambda c, n=name, f=change: {n: f(c[n])}), kind, f"{name}|{words}")
    for name in ("q_nope", "q_pe", "out", "kv_cache")
    for what, change, kind, words in (
        ("of float16", torch.Tensor.half, errors.DtypeError, "torch.float16|torch.bfloat16"),
        ("elsewhere", lambda t: t.to(META), errors.DeviceError, "meta|cpu"),
        ("of rank 2", lambda t: t.flatten(1), errors.ShapeError, "("),
        ("cut", lambda t: t[..., :-8], errors.ShapeError, "("),
        ("with gaps", wider, errors.StrideError, "2)"),
        (
            "with unaligned rows",
            gapped_rows,
            errors.StrideError,
            "131" if name == "kv_cache" else "67",
        ),
        ("at an odd address", lambda t: shifted(t, 1), errors.StrideError, "aligned|16"),
    )
] + [
    (
        "topk_indices of int64",
        lambda c: {"topk_indices": c["topk_indices"].long()},
        errors.DtypeError,
        "topk_indices|torch.int64|torch.int32",
    ),
    (
        "out whose rows are one",
        lambda c: {"out": c["out"][:1].expand(c["out"].shape)},
        errors.StrideError,
        "out|(0,",
    ),
    (
        "topk_indices elsewhere",
        lambda c: {"topk_indices": c["topk_indices"].to(META)},
        errors.DeviceError,
        "topk_indices|meta|cpu",
    ),
    (
        "topk_indices narrower than constructed for",
        lambda c: {"topk_indices": c["topk_indices"][:, : WIDTH - 1]},
        errors.ShapeError,
        f"topk_indices|({ROWS}, {WIDTH - 1})|({ROWS}, {WIDTH})",
    ),
    (
        "topk_indices column-major",
        lambda c: {"topk_indices": c["topk_indices"].T.contiguous().T},
        errors.StrideError,
        f"topk_indices|(1, {ROWS})",
    ),
    (
        "topk_indices with fewer rows than queries",
        lambda c: {"topk_indices": c["topk_indices"][:-1]},
        errors.ShapeError,
        f"topk_indices|({ROWS - 1}, {WIDTH})|({ROWS}, {WIDTH})",
    ),
    (
        "fewer rows than planned",
        lambda c: {k: v[:5] for k, v in c.items() if k != "kv_cache"},
        errors.CapacityError,
        "q_nope|found 5|6 planned to 12",
    ),
    (
        "more rows than max_tokens",
        lambda c: {
            k: v[:1].expand(13, *v.shape[1:]).contiguous() for k, v in c.items() if k != "kv_cache"
        },
        errors.CapacityError,
        "q_nope|found 13|max_tokens",
    ),
    (
        "a cache of another block size",
        lambda c: {"kv_cache": c["kv_cache"][:, :32]},
        errors.ShapeError,
        "kv_cache|(9, 32, 128)|64",
    ),
    (
        "a cache without blocks",
        lambda c: {"kv_cache": c["kv_cache"][:0]},
        errors.ShapeError,
        "kv_cache|(0, 64, 128)|num_blocks >= 1",
    ),
    (
        "a cache whose blocks start within rows",
        lambda c: {"kv_cache": c["kv_cache"].as_strided((2, 64, 128), (64 * 128 + 8, 128, 1))},
        errors.StrideError,
        "kv_cache|(8200, 128, 1)",
    ),
    (
        "a cache whose blocks overlap",
        lambda c: {"kv_cache": c["kv_cache"].as_strided((2, 64, 128), (63 * 128, 128, 1))},
        errors.StrideError,
        "kv_cache|n >= 64",
    ),
    ("a scale for a BF16 cache", lambda c: {"k_scale": 0.5}, errors.ScaleError, "k_scale|0.5|None"),
    (
        "a scale on the device for a BF16 cache",
        lambda c: {"device_k_scale": torch.ones(1)},
        errors.ScaleError,
        "device_k_scale|found Tensor|None",
    ),
]


@pytest.mark.parametrize(
    ("change", "kind", "words"), [c[1:] for c in BAD_CALLS], ids=[c[0] for c in BAD_CALLS]
)
def test_a_bad_call_is_refused_before_anything_is_written(change, kind, words):
    bench = workbench()
    with undisturbed(bench) as step:
        good = {"kv_cache": bench.cache, **step.call}
        bad = {**good, **change(good)}
        assert_refused(lambda: bench.forward(bad, step.metadata), kind, words)
        with bench.runtime.capture() as graph:
            assert_refused(lambda: bench.forward(bad, step.metadata), kind, words)
        graph.replay()
