"""Draws: the same bytes for ever, shaped as promised, independent where forked."""

import pytest
import torch

from golden import Draw


def test_splitmix64_reference_values():
    # The published sequence of SplitMix64 seeded with 1234567.
    draw = Draw("x")
    draw._key = 1234567
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [int(word) % 2**64 for word in draw.bits([3])] == expected


def test_bytes_never_change():
    draw = Draw("stable")
    assert [draw.randint(0, 1000) for _ in range(4)] == [526, 604, 913, 924]
    assert draw.bits([2]).tolist() == [-8830660797580879603, 4448146839979933628]
    assert draw.ints([5], -3, 100).tolist() == [27, 59, 94, 24, 4]
    assert draw.bf16([6]).view(torch.int16).tolist() == [
        16269,
        15889,
        -16628,
        -16583,
        -16366,
        16008,
    ]
    assert draw.e4m3([6]).tolist() == [189, 192, 60, 163, 175, 184]
    assert draw.permutation(8).tolist() == [5, 3, 7, 6, 2, 1, 4, 0]
    assert draw.sample(100, 5) == [62, 81, 40, 74, 1]
    assert draw.shuffle("abcdef") == ["a", "c", "e", "d", "f", "b"]
    assert draw.fork("child").randint(0, 10**9) == 417380209


def test_forks_ignore_what_was_drawn_and_differ_by_label():
    fresh, used = Draw("k"), Draw("k")
    used.bits([7])
    assert fresh.fork("a").bits([4]).equal(used.fork("a").bits([4]))
    streams = [Draw("k"), Draw("k/a"), Draw("k").fork("a"), Draw("k").fork("b"), Draw("ka")]
    streams.append(Draw("k").fork("a").fork("b"))
    assert len({stream.randint(0, 2**63) for stream in streams}) == len(streams)


def test_large_draws_are_the_stream_cut_in_blocks():
    assert Draw("k").bits([70_000])[40_000:].equal(_after(Draw("k"), 40_000).bits([30_000]))
    values = Draw("k").bf16([3, 100_001])
    assert values.flatten()[:8].equal(Draw("k").bf16([8]))


def _after(draw, words):
    draw.bits([words])
    return draw


def test_python_and_tensor_words_are_one_stream():
    one, other = Draw("k"), Draw("k")
    words = [one.randint(0, 2**64) for _ in range(3)]
    assert words == [int(word) % 2**64 for word in other.bits([3])]


@pytest.mark.parametrize("scale_exp", [0, 5, -20])
def test_bf16_is_a_bell(scale_exp):
    x = Draw("bell").bf16([300, 1000], scale_exp=scale_exp).double() * 2.0**-scale_exp
    assert abs(x.mean()) < 0.01 and abs(x.std() - 1) < 0.01
    assert x.abs().max() <= 3 and x.abs().min() > 0
    assert 0.66 < (x.abs() < 1).double().mean() < 0.69  # normal: 0.683; flat: 0.58
    assert len(x.unique()) > 1000


def test_e4m3_is_the_bell_rounded():
    codes = Draw("bell").e4m3([300, 1000])
    values = codes.view(torch.float8_e4m3fn).float()
    exact = Draw("bell").bf16([300, 1000]).float()
    assert values.isfinite().all()
    assert abs(values.double().mean()) < 0.01 and abs(values.double().std() - 1) < 0.01
    # Rounded once, not from BF16: at most half a step and BF16's own half step away.
    assert ((values - exact).abs() <= exact.abs() / 16 * 1.1 + 2.0**-10).all()
    assert len(codes.unique()) > 120


def test_ints_fill_their_range_evenly():
    x = Draw("ints").ints([60_000], -2, 4)
    counts = x.add(2).bincount(minlength=6)
    assert len(counts) == 6 and (counts - 10_000).abs().max() < 500
    assert Draw("ints").ints([4096], 0, 2**31).max() > 2**30


@pytest.mark.parametrize("lengths", [[], [0], [5], [7, 0, 1, 300, 2]])
def test_permutations_are_those_of_as_many_calls(lengths):
    together, apart = Draw("several"), Draw("several")
    drawn = together.permutations(lengths)
    assert len(drawn) == len(lengths)
    for n, permutation in zip(lengths, drawn, strict=True):
        assert permutation.equal(apart.permutation(n))
    assert together.randint(0, 2**60) == apart.randint(0, 2**60)


def test_samples_and_permutations_are_what_they_say():
    draw = Draw("sample")
    assert sorted(draw.permutation(1000).tolist()) == [*range(1000)]
    assert sorted(draw.shuffle(range(50))) == [*range(50)]
    firsts = set()
    for _ in range(200):
        picked = draw.sample(9, 4)
        assert len({*picked}) == 4 and {*picked} <= {*range(9)}
        firsts.add(picked[0])
    assert firsts == {*range(9)}
    assert draw.sample(5, 0) == []
    assert draw.choice(["only"]) == "only"


@pytest.mark.parametrize("shape", [[0], [3, 0, 2], [1], [5], []])
def test_shapes_of_all_kinds(shape):
    draw = Draw("shape")
    for drawn in (draw.bits(shape), draw.ints(shape, 0, 9), draw.bf16(shape), draw.e4m3(shape)):
        assert drawn.shape == tuple(shape)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda d: d.randint(3, 3),
        lambda d: d.choice([]),
        lambda d: d.sample(3, 4),
        lambda d: d.ints([1], 5, 5),
        lambda d: d.ints([1], 0, 2**31 + 1),
        lambda d: d.bf16([1], scale_exp=101),
    ],
)
def test_impossible_draws_are_refused(wrong):
    with pytest.raises(ValueError) as caught:
        wrong(Draw("wrong"))
    assert all(word in str(caught.value) for word in ("found", "allowed", "to fix"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_draws_the_same_bytes():
    here, there = Draw("device"), Draw("device")
    assert here.bits([999]).equal(there.bits([999], "cuda").cpu())
    assert here.ints([999], -5, 77).equal(there.ints([999], -5, 77, "cuda").cpu())
    assert here.bf16([7, 99_999]).equal(there.bf16([7, 99_999], "cuda").cpu())
    assert here.e4m3([999]).equal(there.e4m3([999], "cuda").cpu())
    assert here.permutation(999).equal(there.permutation(999, "cuda").cpu())
