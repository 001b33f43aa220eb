"""The oracle: equal to a naive one, whatever the chunks and pieces; NaN stays in its row."""

import math

import pytest
import torch

from golden import PagedBytes, attend
from golden.tests.cases import BLOCK, Case

MIXED = [5, 0, 17, 1, 200, 70]


def naive(case):
    """out and lse by loops over rows, heads and tokens in Python floats."""
    table, scale = case.block_table.tolist(), case.sm_scale
    out, lse = [], []
    for row, tokens in enumerate(case.tokens):
        blocks = table[int(case.request[row])]
        slots = [blocks[t // BLOCK] * case.stride + t % BLOCK for t in tokens.tolist()]
        keys = case.cache.gather(torch.tensor(slots, dtype=torch.int64)).tolist()
        for q in case.q[row].double().tolist():
            s = [scale * sum(a * b for a, b in zip(q, k, strict=True)) for k in keys]
            top = max(s, default=0.0)
            e = [math.exp(x - top) for x in s]
            total = math.fsum(e)
            lse.append(top + math.log(total) if s else -math.inf)
            columns = zip(*keys, strict=True) if keys else [()] * case.ckv
            sums = [math.fsum(w * v for w, v in zip(e, column, strict=True)) for column in columns]
            out.append([x / total if s else 0.0 for x in sums[: case.ckv]])
    shape = (len(case.tokens), case.heads)
    return torch.tensor(out).double().view(*shape, -1), torch.tensor(lse).double().view(shape)


@pytest.fixture(autouse=True)
def _float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("split", [None, 32, 1000])
@pytest.mark.parametrize(
    "fmt, scale, kpe, stride", [("bf16", 1.0, 0, BLOCK), ("e4m3", 0.0123, 4, BLOCK + 7)]
)
def test_equals_the_naive_oracle(fmt, scale, kpe, stride, split):
    case = Case(
        "naive", MIXED, heads=3, ckv=8, kpe=kpe, fmt=fmt, scale=scale, split=split, stride=stride
    )
    golden, (out, lse) = case.attend(), naive(case)
    torch.testing.assert_close(golden.out, out, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(golden.lse, lse, rtol=1e-12, atol=1e-14)
    assert golden.count.tolist() == MIXED


def test_tokens_are_found_by_block_size_and_stride():
    # Row r of the storage holds the value r; block b starts at row 5 * b and holds 3 tokens.
    stored = torch.arange(20.0).bfloat16().view(torch.uint8)
    cache = PagedBytes(stored, "bf16", 1, 0, block_size=3, block_stride_rows=5)
    q = torch.zeros(2, 1, 1)
    table = torch.tensor([[0, 0], [3, 1]], dtype=torch.int32)
    tokens = [torch.tensor([4]), torch.tensor([2, 3], dtype=torch.int32)]
    golden = attend(q, q[..., :0], cache, table, torch.tensor([1, 1]), tokens, 1.0, split=None)
    assert golden.out.flatten().tolist() == [6.0, (17.0 + 5.0) / 2]


@pytest.mark.parametrize("fmt, scale", [("bf16", 1.0), ("e4m3", 0.0123)])
def test_sums_equal_their_definitions(fmt, scale):
    case = Case("sums", [150, 40], heads=3, ckv=8, fmt=fmt, scale=scale, split=64)
    golden = case.attend()
    unknown = case.attend(split=None).partials
    for row, tokens in enumerate(case.tokens):
        slots = case.block_table[case.request[row]][tokens // BLOCK] * BLOCK + tokens % BLOCK
        k = case.cache.gather(slots)
        v, q = k[:, :8], case.q[row].double()
        s = q @ k.T * case.sm_scale
        p = s.softmax(1)
        weighted = p[..., None] * v  # [heads, n, ckv]
        out = weighted.sum(1)
        pieces = sum(piece.sum(1).abs() for piece in weighted.split(64, 1))
        squares = sum(piece.sum(1).square() for piece in weighted.split(64, 1))
        expected = {
            "value_sq": (weighted * v).sum(1),
            "value_sq_p": weighted.square().sum(1),
            "partials_sq": squares if len(tokens) > 64 else squares * 0,
            "partials": pieces if len(tokens) > 64 else pieces * 0,
            "logit_reach": case.sm_scale * q.norm(dim=1) * k.norm(dim=1).max(),
        }
        close(unknown[row], weighted.abs().sum(1))
        for name, value in expected.items():
            close(getattr(golden, name)[row], value)
        if fmt == "bf16":
            assert golden.decode is None
            continue
        assert golden.decode is not None
        centred = s - (p * s).sum(1, keepdim=True)
        c2 = case.sm_scale**2 * (q.square() @ k.square().T)
        noise = (p.square() * c2)[..., None] * (v - out[:, None]).square()
        close(golden.decode.value_shift[row], (centred[..., None] * weighted).sum(1))
        close(golden.decode.logit_noise_sq[row], noise.sum(1))
        close(golden.decode.logit_noise_max[row], c2.max(1).values.sqrt())
        close(golden.decode.logit_fourth[row], (p * centred**4).sum(1).sqrt())


@pytest.mark.parametrize("scale", [0.25, 0.7])
def test_sums_of_groups_equal_their_definitions(scale):
    case = Case("groups", [150, 40], 3, 256, 16, "e4m3_group", scale, split=64)
    golden, parts = case.attend(), [slice(0, 128), slice(128, 256)]
    if scale == 0.7:  # no power of two: the rope part's decoding is rounded too
        parts.append(slice(256, 272))
    assert golden.decode is not None
    for row, tokens in enumerate(case.tokens):
        slots = case.block_table[case.request[row]][tokens // BLOCK] * BLOCK + tokens % BLOCK
        k, q = case.cache.gather(slots), case.q[row].double()
        v, p = k[:, :256], (q @ k.T * case.sm_scale).softmax(1)
        out = p @ v
        c2, shift = torch.zeros_like(p), torch.zeros_like(out)
        for part in parts:
            share = q[:, part] @ k[:, part].T * case.sm_scale
            c2 += case.sm_scale**2 * (q[:, part].square() @ k[:, part].square().T) + share**2
            centred = share - (p * share).sum(1, keepdim=True)
            shift += ((p * centred) @ v).abs()
        noise = (p.square() * c2)[..., None] * (v - out[:, None]).square()
        close(golden.decode.value_shift[row], shift)
        close(golden.decode.logit_noise_sq[row], noise.sum(1))
        close(golden.decode.logit_noise_max[row], c2.max(1).values.sqrt())


def close(actual, expected):
    atol = 1e-6 * expected.abs().max().item()
    torch.testing.assert_close(actual.double(), expected, rtol=1e-4, atol=atol)


def test_chunks_change_nothing():
    case = Case("chunks", [300, 299, 20, 0, 19, 1, 1, 0], ckv=32, split=64)
    whole, rows = case.attend(), case.attend(chunk_rows=1)
    torch.testing.assert_close(whole.out, rows.out, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(whole.lse, rows.lse, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(whole.partials, rows.partials, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("lengths", [[], [0], [0, 0, 0]])
def test_batches_without_tokens(lengths):
    case = Case("empty", lengths)
    golden = case.attend()
    assert not golden.out.any() and (golden.lse == -math.inf).all()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_poisoned_cache_row_stays_with_the_rows_that_select_it(value):
    case = Case("poison", [9, 3, 9, 70], ckv=8, kpe=4)
    clean = case.attend()
    slot = case.block_table[0, case.tokens[0][2] // BLOCK] * BLOCK + case.tokens[0][2] % BLOCK
    case.cache.data.view(torch.bfloat16).view(-1, 12)[slot] = value
    case.tokens[2] = case.tokens[2][case.tokens[2] != case.tokens[0][2]]
    golden, expected = case.attend(), clean.out
    assert golden.out[0].isnan().all()
    assert torch.equal(golden.out[1], expected[1]) and torch.equal(golden.out[3], expected[3])
    assert golden.out[2].isfinite().all()


def test_extreme_values_keep_their_bounds():
    case = Case("huge", [50], ckv=8, kpe=0)
    case.cache.data.view(torch.bfloat16).mul_(2.0**120)
    golden = case.attend(sm_scale=2.0**-120)
    assert golden.value_sq.isfinite().all() and (golden.value_sq_p > 0).all()


@pytest.mark.parametrize("exponent", [-100, -40, 40, 100])
def test_a_dimension_of_any_size_has_its_sums(exponent):
    """One dimension's values are far from the others': its squares are beyond float32."""
    case, plain = Case("sizes", [50, 7], ckv=8, kpe=0), Case("sizes", [50, 7], ckv=8, kpe=0)
    stored = case.cache.data.view(torch.bfloat16).view(-1, 8)
    stored[:, 3] *= 2.0**exponent
    case.q[..., 3], plain.q[..., 3] = 0, 0
    golden, expected, factor = case.attend(), plain.attend(), torch.ones(8)
    factor[3] = 2.0**exponent
    for name in ("value_sq", "value_sq_p", "partials", "partials_sq"):
        power = 1 if name == "partials" else 2
        want = getattr(expected, name).double() * factor**power
        torch.testing.assert_close(getattr(golden, name).double(), want, rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    "changes, error",
    [
        ({"q_nope": torch.zeros(2, 16, 63)}, ValueError),
        ({"q_pe": torch.zeros(2, 15, 16)}, ValueError),
        ({"request": torch.tensor([0])}, ValueError),
        ({"request": torch.tensor([0, 2])}, ValueError),
        ({"block_table": torch.zeros(4, dtype=torch.int32)}, ValueError),
        ({"tokens": [torch.tensor([1])]}, ValueError),
        ({"tokens": [torch.tensor([1]), torch.tensor([1.0])]}, ValueError),
        ({"tokens": [torch.tensor([1]), torch.tensor([-1])]}, ValueError),
        ({"tokens": [torch.tensor([1]), torch.tensor([BLOCK])]}, ValueError),
        ({"block_table": torch.full((2, 1), 99)}, IndexError),
        ({"split": 0}, ValueError),
        ({"chunk_rows": 0}, ValueError),
    ],
    ids=[
        *("ckv", "kpe", "requests", "request", "table", "lists", "floats", "negative", "far"),
        *("block", "split", "chunk"),
    ],
)
def test_what_does_not_fit_is_refused(changes, error):
    case = Case("wrong", [10, 4])
    with pytest.raises(error) as caught:
        case.attend(**changes)
    assert all(word in str(caught.value) for word in ("found", "allowed", "to fix"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("fmt, scale", [("bf16", 1.0), ("e4m3", 0.0123)])
def test_a_gpu_agrees(fmt, scale):
    here = Case("gpu", MIXED, fmt=fmt, scale=scale).attend()
    there = Case("gpu", MIXED, fmt=fmt, scale=scale, device="cuda").attend()
    torch.testing.assert_close(here.out, there.out.cpu(), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(here.lse, there.lse.cpu(), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(here.partials, there.partials.cpu(), rtol=1e-3, atol=1e-9)
