"""Cache bytes: decoded like torch's own types, found where the layout says, refused otherwise."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from golden import Draw, PagedBytes


def test_all_e4m3_codes_decode_as_torch_does():
    codes = torch.arange(256, dtype=torch.uint8)
    decoded = PagedBytes(codes, "e4m3", 1, 0, 1, 1).gather(torch.arange(256))[:, 0]
    expected = codes.view(torch.float8_e4m3fn).double()
    assert decoded.dtype == torch.float64
    assert decoded.isnan().nonzero().flatten().tolist() == [0x7F, 0xFF]
    assert torch.equal(decoded.nan_to_num(), expected.nan_to_num())
    assert torch.equal(decoded.nan_to_num().signbit(), expected.nan_to_num().signbit())


def test_all_bf16_patterns_decode_as_torch_does():
    patterns = torch.arange(-(2**15), 2**15).to(torch.int16)
    cache = PagedBytes(patterns.view(torch.uint8), "bf16", 4, 0, 1, 1)
    decoded = cache.gather(torch.arange(2**14)).flatten()
    expected = patterns.view(torch.bfloat16).double()
    assert torch.equal(decoded.isnan(), expected.isnan())
    assert torch.equal(decoded.nan_to_num(posinf=1e99), expected.nan_to_num(posinf=1e99))


def test_the_scale_multiplies_both_parts_exactly():
    data = Draw("scale").e4m3([8, 6])
    slots = torch.tensor([[3, 0], [7, 3]])
    plain = PagedBytes(data, "e4m3", 4, 2, 4, 4).gather(slots)
    scaled = PagedBytes(data, "e4m3", 4, 2, 4, 4, scale=0.0123).gather(slots)
    assert plain.shape == (2, 2, 6)
    assert torch.equal(scaled, plain * 0.0123)


def test_each_row_and_128_channels_have_their_scale():
    """Against a loop over rows and channels that takes torch's own E4M3."""
    rows, ckv, kpe = 7, 256, 3
    data = Draw("groups").e4m3([rows, ckv + kpe])
    scales = Draw("scales").bits([rows * 2]).float().abs().mul_(2.0**-60).view(rows, 2)
    cache = PagedBytes(data, "e4m3_group", ckv, kpe, 2, 3, scale=0.25, group_scales=scales)
    plain = data.view(torch.float8_e4m3fn).double().tolist()
    slots = [6, 0, 3, 6]
    decoded = cache.gather(torch.tensor(slots)).tolist()
    assert scales.unique().numel() == 2 * rows
    for row, slot in enumerate(slots):
        for channel, code in enumerate(plain[slot]):
            factor = scales[slot, channel // 128].item() if channel < ckv else 0.25
            assert decoded[row][channel] == code * factor, (slot, channel)


def test_what_is_not_finite_in_a_scale_stays_with_its_group_of_its_row():
    scales = torch.ones(3, 2)
    scales[1, 1] = float("nan")
    data = torch.full((3, 256), 0x38, dtype=torch.uint8)
    cache = PagedBytes(data, "e4m3_group", 256, 0, 1, 1, group_scales=scales)
    bad = cache.gather(torch.arange(3)).isnan()
    assert bad[1, 128:].all() and bad.sum() == 128


def test_a_scale_that_changes_is_noticed_by_a_decoded_cache():
    scales, data = torch.ones(2, 1), torch.full((2, 128), 0x38, dtype=torch.uint8)
    cache = PagedBytes(data, "e4m3_group", 128, 0, 1, 1, group_scales=scales).decoded()
    assert cache.gather(torch.tensor([1])).unique().tolist() == [1.0]
    scales[1] = 3.0
    assert cache.gather(torch.tensor([1])).unique().tolist() == [3.0]


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"group_scales": None}, r"found none; allowed: contiguous float32 \[4, 2\]"),
        ({"group_scales": torch.ones(4, 1)}, r"\[4, 1\].*allowed: contiguous float32 \[4, 2\]"),
        ({"group_scales": torch.ones(3, 2)}, "for each row of the storage"),
        ({"group_scales": torch.ones(4, 2).double()}, "float64"),
        ({"group_scales": torch.ones(2, 4).T}, "contiguous False"),
        ({"head_dim_ckv": 64, "head_dim_kpe": 192}, "multiple of 128"),
        ({"fmt": "e4m3"}, "those of 'e4m3_group' alone"),
        ({"scale": 0.0}, "positive"),
    ],
    ids=["none", "groups", "rows", "float64", "strides", "tiny", "tensor", "scale"],
)
def test_group_scales_that_do_not_fit_are_refused(changes, said):
    good: dict[str, Any] = {
        "data": torch.zeros(4 * 256, dtype=torch.uint8),
        "fmt": "e4m3_group",
        "head_dim_ckv": 256,
        "head_dim_kpe": 0,
        "block_size": 2,
        "block_stride_rows": 2,
        "group_scales": torch.ones(4, 2),
    }
    PagedBytes(**good)
    with pytest.raises(ValueError, match=said) as caught:
        PagedBytes(**(good | changes))
    assert all(word in str(caught.value) for word in ("found", "allowed", "to fix"))


@pytest.mark.parametrize("fmt, scale", [("bf16", 1.0), ("e4m3", 0.0123)])
def test_a_decoded_cache_is_the_same_until_its_bytes_change(fmt, scale):
    data = Draw("decoded").bits([9, 6]).view(torch.uint8).flatten()
    plain = PagedBytes(data, fmt, 4, 2, 4, 4, scale=scale)
    decoded, slots = plain.decoded(), torch.tensor([[3, 0], [plain.rows - 1, 3]])

    def same():
        return decoded.gather(slots).equal(plain.gather(slots))

    data.view(-1)[:] &= 0x3F  # no NaN, which equals nothing
    decoded = plain.decoded()
    assert same() and decoded.gather(slots).shape == (2, 2, 6)
    with pytest.raises(IndexError, match="slots"):
        decoded.gather(torch.tensor([plain.rows]))
    before = plain.gather(slots)
    data.view(plain.rows, -1)[3] += 1
    assert not before.equal(plain.gather(slots)) and same()


@pytest.mark.parametrize("changed", ["data", "scale", "group_scales", "head_dim_ckv"])
def test_what_is_made_of_a_decoded_cache_is_decoded_anew(changed):
    """Other bytes of the same version are none that torch changed."""
    data, scales = Draw("one").e4m3([4, 384]), torch.ones(4, 2)
    others: dict[str, Any] = {
        "data": Draw("other").e4m3([4, 384]),
        "scale": 2.0,
        "group_scales": torch.full((4, 2), 3.0),
        "head_dim_ckv": 128,
    }
    fields: dict[str, Any] = {
        "data": data,
        "scale": 0.5,
        "group_scales": scales,
        "head_dim_ckv": 256,
    }
    change = {changed: others[changed]}
    if changed == "head_dim_ckv":
        change |= {"head_dim_kpe": 256, "group_scales": torch.ones(4, 1)}

    def cache(**of):
        rest: dict[str, Any] = {
            "fmt": "e4m3_group",
            "head_dim_kpe": 128,
            "block_size": 2,
            "block_stride_rows": 2,
        }
        return PagedBytes(**(rest | fields | of))

    slots = torch.arange(4)
    made = replace(cache().decoded(), **change)
    assert made.gather(slots).equal(cache(**change).gather(slots))
    assert not made.gather(slots).equal(cache().gather(slots))


def test_decoded_values_cannot_be_handed_in():
    cache = PagedBytes(torch.zeros(8, dtype=torch.uint8), "e4m3", 4, 0, 1, 1)
    with pytest.raises((TypeError, ValueError), match="_decoded"):
        replace(cache, _decoded=((0, -1), torch.ones(2, 4)))


def test_a_decoded_cache_decodes_nothing_again(monkeypatch):
    from golden import cache as module

    decoded = PagedBytes(torch.zeros(8, dtype=torch.uint8), "e4m3", 4, 0, 1, 1).decoded()
    monkeypatch.setattr(module, "_e4m3_table", lambda device: 1 / 0)
    assert decoded.gather(torch.tensor([1])).shape == (1, 4)


@pytest.mark.parametrize(
    "changes",
    [
        {"fmt": "e5m2"},
        {"data": torch.zeros(8)},
        {"data": torch.zeros(8, 8, dtype=torch.uint8).T},
        {"head_dim_ckv": 0},
        {"head_dim_kpe": -1},
        {"block_size": 0},
        {"block_size": 5},
        {"scale": 0.5},
        {"fmt": "e4m3", "scale": 0.0},
        {"fmt": "e4m3", "scale": float("nan")},
        {"fmt": "e4m3", "scale": float("inf")},
    ],
    ids=str,
)
def test_other_caches_are_refused(changes):
    good: dict[str, Any] = {
        "data": torch.zeros(64, dtype=torch.uint8),
        "fmt": "bf16",
        "head_dim_ckv": 2,
        "head_dim_kpe": 2,
        "block_size": 4,
        "block_stride_rows": 4,
    }
    PagedBytes(**good)
    with pytest.raises(ValueError) as caught:
        PagedBytes(**(good | changes))
    assert all(word in str(caught.value) for word in ("found", "allowed", "to fix"))


@pytest.mark.parametrize("slot", [-1, 8])
def test_slots_outside_the_storage_are_refused(slot):
    cache = PagedBytes(torch.zeros(8 * 6 + 5, dtype=torch.uint8), "e4m3", 4, 2, 4, 4)
    assert cache.rows == 8
    with pytest.raises(IndexError, match=r"8 rows") as caught:
        cache.gather(torch.tensor([0, slot]))
    assert all(word in str(caught.value) for word in ("found", "allowed", "to fix"))
