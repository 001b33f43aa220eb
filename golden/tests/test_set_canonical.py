"""The canonical set has every standard case, and what it stores is right and is judged by."""

import math

import pytest

pytest.importorskip("click", reason="golden's command line needs click")
pytest.importorskip("safetensors", reason="golden's files need safetensors")

import torch

from golden import manifest, standard, store
from golden.canonical import cases
from golden.inputs import digest
from golden.manifest import BrokenSet
from golden.tests.cases import BLOCK
from golden.tests.damage import case_of, drop, edit, exchange, forge, nudge
from golden.tests.recipes import FORMATS, small


@pytest.fixture
def canonical(copy, monkeypatch):
    """A set that stands where the canonical one does, and of the standard recipes."""
    recipes = [entry.recipe for entry in manifest.load(copy)]
    monkeypatch.setattr(store, "DATA", copy)
    monkeypatch.setattr(standard, "recipes", lambda: recipes)
    return copy


def test_the_canonical_set_has_every_standard_case(canonical, whole, ask):
    assert ask("check", "--data", canonical)[0] == 0
    store.append(canonical, small(name="mine"))
    code, said = ask("check", "--data", canonical)
    assert code == 0 and "holds    mine" in said
    drop(canonical)
    code, said = ask("check", "--data", canonical)
    assert code == 3 and "BROKEN   e4m3  e4m3: found no such case; allowed: " in said
    assert "holds    bf16" in said and "holds    group" in said and "to fix" in said
    assert ask("check", "--data", whole)[0] == 0


@pytest.mark.parametrize("options", [[], ["--case", "e4m3"]], ids=str)
def test_a_standard_case_that_was_exchanged_is_told(canonical, ask, options):
    exchange(canonical)
    code, said = ask("check", "--data", canonical, *options)
    assert code == 3 and "BROKEN   e4m3  e4m3: found contexts [7, 8, 9]; allowed: " in said
    assert "holds    e4m3" not in said and "to fix" in said


def test_other_sets_have_the_cases_they_have(copy, ask):
    exchange(copy)
    assert ask("check", "--data", copy)[0] == 0


def test_what_is_checked_by_itself_is_the_canonical_set():
    from golden import cli

    assert cli._DATA == store.DATA


def test_a_case_judges_a_kernel(whole):
    for case in cases(whole):
        exact = case.inputs.attend().out
        assert case.judge(exact.bfloat16()).ok
        wrong = exact.clone()
        wrong[2, 1, 5] += 1.0
        verdict = case.judge(wrong)
        assert not verdict.ok and verdict.worst[0][:3] == (2, 1, 5)
        rows, heads = zip(*case.stored.kept, strict=True)
        assert torch.equal(exact[list(rows), list(heads)], case.stored.out)


def test_a_case_judges_nothing_by_other_answers_than_the_stored(copy):
    forge(copy, "e4m3", nudge("out", 3, 77, 1e-9))
    case = [*cases(copy)][1]
    with pytest.raises(BrokenSet, match="from the stored ones"):
        case.judge(case.inputs.attend().out)
    edit(copy, lambda found: case_of(found)["recipe"].update(key="other"))
    with pytest.raises(BrokenSet, match="e4m3, input") as caught:
        _ = [*cases(copy)][1].inputs
    assert all(str(caught.value).count(word) == 1 for word in ("found", "allowed", "to fix"))


def test_a_recipe_in_a_manifest_is_refused_in_one_message(copy):
    edit(copy, lambda found: case_of(found)["recipe"].update(blocks=0))
    with pytest.raises(BrokenSet, match=r"case 'e4m3'.*1 or more each.*version control") as caught:
        manifest.load(copy)
    assert all(str(caught.value).count(word) == 1 for word in ("found", "allowed", "to fix"))


def test_the_canonical_set_is_whole_and_that_of_the_recipes():
    entries = manifest.load(store.DATA)
    assert not store.strangers(store.DATA, entries)
    listed = [entry.recipe for entry in entries]
    assert listed[: len(standard.recipes())] == standard.recipes()
    assert sum(path.stat().st_size for path in store.DATA.iterdir()) < 4e6
    for one in entries:
        outputs = store.read(store.DATA, one)
        assert all(bool(tensor.isfinite().all()) for tensor in outputs.values()), one.recipe.name
        assert {row for row, _ in one.kept} == {*range(one.recipe.rows)}


PLAIN = {  # of each case the context of one row
    **{f"deepseek-heads8-{fmt}": 2049 for fmt in FORMATS},
    "deepseek-heads16-group": 4099,
    "glm-kpool4-heads16-e4m3": 2050,
    "glm-kpool4-bf16-vast": 131073,
    "glm-kpool4-group-vast": 131329,
    "deepseek-e4m3-vast": 131072,
    "cancelling-values-e4m3": 1024,
    "cancelling-values-group": 2048,
    "denormal-bf16": 1024,
    "denormal-e4m3": 66,
    "far-scales-group": 2048,
    "tiny-scale-e4m3": 1024,
}


@pytest.mark.parametrize("name, context", PLAIN.items(), ids=PLAIN)
def test_stored_outputs_are_those_of_plain_python(name, context):
    """One kept output and its LSE by a loop over tokens and torch's own number formats.

    Allowed is a part of sqrt(sum p v^2), for where values cancel nothing else is left.
    """
    (case,) = [case for case in cases() if case.name == name]
    inputs, recipe = case.inputs, case.recipe
    row = recipe.row_contexts.index(context)
    place = [at for at, _ in case.stored.kept].index(row) + 1
    head = case.stored.kept[place][1]
    assert case.stored.kept[place][0] == row and recipe.block_size == BLOCK
    ckv, width = recipe.head_dim_ckv, recipe.head_dim_ckv + recipe.head_dim_kpe
    stored = inputs.cache.data.view(-1, inputs.cache.row_bytes)
    q = torch.cat([inputs.q_nope[row, head], inputs.q_pe[row, head]]).double().tolist()
    keys, logits = [], []
    for token in inputs.topk[row].tolist():
        if token < 0:
            continue
        assert token < context
        block = int(inputs.block_table[inputs.request[row], token // BLOCK])
        slot = block * recipe.block_stride_rows + token % BLOCK
        kind = torch.bfloat16 if recipe.fmt == "bf16" else torch.float8_e4m3fn
        key = stored[slot].view(kind).double().tolist()
        scales = [recipe.scale] * width
        if inputs.cache.group_scales is not None:
            groups = inputs.cache.group_scales[slot].tolist()
            scales[:ckv] = [groups[channel // 128] for channel in range(ckv)]
        key = [value * scale for value, scale in zip(key, scales, strict=True)]
        keys.append(key)
        logits.append(recipe.sm_scale * math.fsum(a * b for a, b in zip(q, key, strict=True)))
    pooled = recipe.index_topk + context % recipe.index_kpool
    assert len(keys) == (context if context <= recipe.index_topk else pooled)
    top = max(logits)
    weights = [math.exp(s - top) for s in logits]
    total = math.fsum(weights)
    lse = top + math.log(total)
    assert abs(float(case.stored.lse[row, head]) - lse) <= 1e-13 * max(1.0, abs(lse))
    for channel in (0, 127, 128, 300, 511):
        values = [key[channel] for key in keys]
        expected = math.fsum(p * v for p, v in zip(weights, values, strict=True)) / total
        unit = math.sqrt(math.fsum(p * v * v for p, v in zip(weights, values, strict=True)) / total)
        assert unit > 0 and expected != 0
        assert abs(float(case.stored.out[place, channel]) - expected) <= 1e-13 * unit


def test_the_manifest_tells_of_inputs_as_they_are_drawn():
    (case,) = [case for case in cases() if case.name == "glm-kpool4-heads8-group"]
    for name, tensor in case.inputs.tensors().items():
        assert case.entry.inputs[name].sha256 == digest(tensor)
