"""Recipes: what they refuse, and that what is drawn from them is what they say."""

import math
from collections import Counter

import pytest
import torch

from golden import standard
from golden.inputs import digest, draw_inputs
from golden.recipe import NUMERICS, Recipe, RecipeError
from golden.tests.recipes import FORMATS, SMALL, small


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_recipe_survives_its_dictionary(fmt):
    recipe = small(fmt)
    assert Recipe.from_dict(recipe.as_dict()) == recipe and recipe.key == recipe.name


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"name": "Small"}, "name 'Small'"),
        ({"name": "../up"}, "name"),
        ({"num_heads": 0}, "num_heads"),
        ({"num_heads": True}, "field num_heads: found True; allowed: int"),
        ({"head_dim_kpe": -1}, "head_dim_kpe -1"),
        ({"topk_width": 66}, "topk_width 66; allowed: 67 or more"),
        ({"contexts": [7]}, "contexts"),
        ({"contexts": [7, 1, 67]}, "1 <= q_len <= context"),
        ({"contexts": "777"}, "a list of int"),
        ({"contexts": [7, 130.0, 67]}, "130.0"),
        ({"fmt": "e5m2"}, "format 'e5m2'"),
        ({"scale": 0.5}, "scale 0.5 for bf16"),
        ({"scale": float("nan")}, "scale nan"),
        ({"scale_exps": [0, 1]}, "scale_exps"),
        ({"fmt": "e4m3_group"}, "scale_exps"),
        ({"fmt": "e4m3_group", "scale_exps": [2, 1]}, "least, largest"),
        ({"fmt": "e4m3_group", "scale_exps": [0, 0], "head_dim_ckv": 64}, "a multiple of 128"),
        ({"block_stride_rows": 15}, "block_stride_rows 15"),
        ({"sm_scale": 0}, "sm_scale 0.0"),
        ({"q_exp": 101}, "q_exp 101"),
        ({"numerics": "odd"}, "numerics 'odd'"),
        ({"heads": 4}, r"unknown \['heads'\]"),
    ],
    ids=str,
)
def test_what_is_no_case_is_refused(changes, said):
    with pytest.raises(RecipeError, match=said) as caught:
        Recipe.from_dict({**SMALL, **changes})
    assert all(word in str(caught.value) for word in ("found", "allowed", "to fix"))


def test_a_missing_field_is_named():
    with pytest.raises(RecipeError, match=r"missing \['blocks'\]"):
        Recipe.from_dict({name: value for name, value in SMALL.items() if name != "blocks"})


@pytest.mark.parametrize("fmt", FORMATS)
def test_rows_select_what_an_indexer_would(fmt):
    inputs = draw_inputs(small(fmt))
    assert inputs.contexts.tolist() == [7, 129, 130, 67]
    assert inputs.request.tolist() == [0, 1, 1, 2]
    for context, tokens, line in zip([7, 129, 130, 67], inputs.tokens, inputs.topk, strict=True):
        count = {7: 7, 129: 65, 130: 66, 67: 67}[context]
        assert len(tokens) == count == tokens.unique().numel()
        assert tokens.min() >= 0 and tokens.max() == context - 1
        assert {*range(context - context % 4, context)} <= {*tokens.tolist()}
        assert torch.equal(line[:count].long(), tokens) and (line[count:] == -1).all()
        assert count < 7 or not torch.equal(tokens, tokens.sort().values)


def test_blocks_are_mapped_once_where_there_are_enough():
    def mapped(**changes):
        recipe = small(**changes)
        used = [-(-context // 16) for context in recipe.contexts]
        table = draw_inputs(recipe).block_table
        return Counter(
            block for line, n in zip(table.tolist(), used, strict=True) for block in line[:n]
        )

    assert max(mapped().values()) == 1
    few = mapped(blocks=3)
    assert {*few} == {0, 1, 2} and max(few.values()) >= 3


def test_all_that_is_drawn_hangs_on_the_key_alone():
    one = draw_inputs(small("group"))
    renamed = draw_inputs(small("group", name="other", key="small"))
    other = draw_inputs(small("group", key="other"))
    same = {"request", "contexts"}  # no draws
    for name, tensor in one.tensors().items():
        assert digest(tensor) == digest(renamed.tensors()[name])
        assert (digest(tensor) == digest(other.tensors()[name])) == (name in same), name
    assert one.kept() == renamed.kept() and one.kept() != other.kept()


def test_a_digest_is_of_the_elements_in_order():
    import hashlib

    tensor = torch.arange(6, dtype=torch.int32).view(2, 3)
    expected = hashlib.sha256(b"".join(n.to_bytes(4, "little") for n in (0, 3, 1, 4, 2, 5)))
    assert digest(tensor.T) == expected.hexdigest()
    assert digest(tensor[:0]) == hashlib.sha256(b"").hexdigest()


def test_group_scales_spread_over_their_exponents():
    scales = draw_inputs(small("group")).cache.group_scales
    assert scales is not None and scales.min() >= 0.25 and scales.max() < 4
    assert {*torch.frexp(scales).exponent.flatten().tolist()} == {-1, 0, 1, 2}
    assert scales.unique().numel() > 0.99 * scales.numel()


@pytest.fixture(params=FORMATS)
def hard(request):
    """A function from a kind of numerics to inputs, decoded selected keys and logits by row."""

    def of(kind, **changes):
        fields = {"contexts": [40, 64, 64], "q_lens": [1, 1, 1], "blocks": 40, "numerics": kind}
        inputs = draw_inputs(small(request.param, **fields, **changes))
        keys = [inputs.cache.gather(slots) for slots in inputs.slots()]
        q = torch.cat([inputs.q_nope, inputs.q_pe], -1).double()
        return inputs, q, keys, [q[row] @ k.T * 0.08 for row, k in enumerate(keys)]

    return of


def test_one_token_dominates(hard):
    for row in hard("dominating", q_exp=3)[3]:
        assert (row.softmax(-1).amax(-1) > 0.99).all()


def test_all_logits_are_equal_and_not_zero(hard):
    _, _, keys, logits = hard("equal")
    for key, row in zip(keys, logits, strict=True):
        assert torch.allclose(row, row[:, :1].expand(row.shape), rtol=1e-13)
        assert (row != 0).all() and key[:, 100].unique().numel() > 5


def test_all_logits_are_far_below_zero(hard):
    for row in hard("negative", q_exp=3)[3]:
        assert row.max() < -10


def test_values_cancel(hard):
    inputs, _, keys, _ = hard("cancelling-values", q_exp=-6)
    golden = inputs.attend()
    for row, key in enumerate(keys):
        assert torch.equal(key.sum(0).abs().clamp(max=1e-9), key.sum(0).abs())
        assert golden.out[row].abs().max() < 0.1 * golden.value_sq[row].sqrt().max()


def test_logits_cancel_out_of_large_sums(hard):
    _, q, keys, logits = hard("cancelling-logits")
    for row, key in enumerate(keys):
        parts = q[row][:, None] * key * 0.08
        assert torch.equal(parts[..., 1:64:2], -parts[..., 0:64:2])
        assert (parts.abs().sum(-1) > 20 * logits[row].abs()).double().mean() > 0.9


def test_elements_are_subnormal(hard):
    inputs, *_ = hard("denormal")
    data = inputs.cache.data
    if inputs.recipe.fmt == "bf16":
        bits = data.view(torch.int16).int()
        small_ones = ((bits >> 7) & 255) == 0
    else:
        small_ones = ((data >> 3) & 15) == 0
    assert 0.45 < small_ones.double().mean() < 0.65  # E4M3 has some by itself
    assert 0.2 < ((inputs.q_nope.view(torch.int16).int() >> 7 & 255) == 0).double().mean() < 0.3
    assert (inputs.attend().out.abs() > 2.0**-20).all()


def test_the_canonical_cases_meet_what_they_promise():
    recipes = standard.recipes()
    names = [recipe.name for recipe in recipes]
    assert len({*names}) == len(names)
    edges = {1, *range(2047, 2053), *range(4095, 4101)}
    for around in (32, 64, 128, 192, 131072, 131328):
        edges |= {around - 1, around, around + 1}
    for fmt in ("bf16", "e4m3", "e4m3_group"):
        of_fmt = [recipe for recipe in recipes if recipe.fmt == fmt]
        assert {r.num_heads for r in of_fmt} == {8, 16, 32, 64, 128}
        assert {*NUMERICS} == {r.numerics for r in of_fmt}
        for heads, kpe, kpool, width in [(64, 0, 4, 2176), (64, 0, 1, 2176), (128, 64, 1, 2048)]:
            model = (heads, kpe, kpool, width, 2048, 512)
            seen = {
                context
                for r in of_fmt
                if (r.num_heads, r.head_dim_kpe, r.index_kpool, r.topk_width, r.index_topk,
                    r.head_dim_ckv) == model
                for context in r.row_contexts
            }  # fmt: skip
            assert edges <= seen
        slices = {(r.head_dim_kpe, r.num_heads) for r in of_fmt if r.numerics == "plain"}
        assert {(0, 8), (0, 16), (0, 32), (64, 8), (64, 16), (64, 32)} <= slices
        assert any(r.block_stride_rows > r.block_size for r in of_fmt)
    scales = {recipe.scale for recipe in recipes if recipe.fmt == "e4m3"}
    assert 0.5 in scales and any(math.frexp(scale)[0] != 0.5 for scale in scales)
    assert any(max(r.q_lens) > 1 for r in recipes)
