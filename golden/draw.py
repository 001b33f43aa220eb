"""Drawn inputs: a counter-based generator in integer arithmetic, byte-equal on every device.

Word number `i` of a stream is a pure function of the stream's 64-bit key and of `i`: the
SplitMix64 finaliser (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
2014; the constants are theirs) over `key + (i + 1) * gamma`, modulo 2**64. Nothing comes from
a library's random state or from libm, so the same key gives the same bytes on a CPU, on a GPU
and under any torch version. Tensors take their words from int64, whose arithmetic wraps; its
right shift is arithmetic, so shifted-in sign bits are masked away.

Integers are reduced to a range by multiply-and-shift: the bias is below `range / 2**32` for
tensors (ranges up to 2**31) and `range / 2**64` for Python integers, and is not corrected.
Parts of words are taken lowest first (through a little-endian view).
"""

import functools
import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch

from golden.refusal import refusal

T = TypeVar("T")
Device = str | torch.device

_MASK = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31
_BLOCK = 2**15  # words mixed at a time on a CPU: they stay in its cache

# A bell value is the sum of three 10-bit integers, centred: m = 2 * sum - 3069, odd, with a
# standard deviation of 2 * sqrt(3 * (2**20 - 1) / 12), which is 1024 to six digits.
_BELL_MAX = 3 * 1023
_BELL_LOG2_STD = 10


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


def _mix(word: int) -> int:
    for shift, factor in _ROUNDS:
        word = ((word ^ (word >> shift)) * factor) & _MASK
    return word ^ (word >> _LAST_SHIFT)


def _mix_(words: torch.Tensor) -> torch.Tensor:
    """`_mix` on an int64 tensor, in place."""
    shifted = torch.empty_like(words)

    def fold(shift: int) -> None:
        torch.bitwise_right_shift(words, shift, out=shifted)
        words.bitwise_xor_(shifted.bitwise_and_(2 ** (64 - shift) - 1))

    for shift, factor in _ROUNDS:
        fold(shift)
        words.mul_(_signed(factor))
    fold(_LAST_SHIFT)
    return words


class Draw:
    """A stream of random values named by a string.

    Each call takes the next words of the stream, so the order of calls matters; `fork` gives
    a stream of its own to whatever must not depend on that order. Shapes are sequences of
    ints, `device` is where the tensor is made; the values do not depend on it.
    """

    def __init__(self, key: str) -> None:
        self._digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
        self._key = int.from_bytes(self._digest, "little")
        self._next = 0

    def fork(self, label: str) -> "Draw":
        """A new stream, a function of this one's name and `label`, not of what was drawn."""
        child = Draw.__new__(Draw)
        child._digest = hashlib.blake2b(label.encode(), digest_size=8, key=self._digest).digest()
        child._key = int.from_bytes(child._digest, "little")
        child._next = 0
        return child

    def randint(self, low: int, high: int) -> int:
        """An integer of `low <= x < high`. Raises ValueError where that range is empty."""
        if high <= low:
            found, fix = f"low {low}, high {high}", "pass a range that is not empty"
            raise ValueError(refusal("an integer to draw", found, "low < high", fix))
        self._next += 1
        word = _mix((self._key + self._next * _GAMMA) & _MASK)
        return low + (word * (high - low) >> 64)

    def choice(self, seq: Sequence[T]) -> T:
        """One element of `seq`. Raises ValueError where it has none."""
        return seq[self.randint(0, len(seq))]

    def shuffle(self, items: Sequence[T]) -> list[T]:
        """The items in drawn order, as a new list."""
        return [items[i] for i in self.sample(len(items), len(items))]

    def sample(self, n: int, k: int) -> list[int]:
        """`k` distinct integers of `range(n)` in drawn order (the start of a Fisher-Yates
        shuffle). Raises ValueError where `k` is not in 0..n."""
        if not 0 <= k <= n:
            fix = "draw fewer, or from more"
            raise ValueError(refusal(f"a sample of {n} values", k, f"0 to {max(n, 0)}", fix))
        words = [word & _MASK for word in self._words(k, "cpu").tolist()]
        moved: dict[int, int] = {}  # what stands at a place, where it is not the place's number
        drawn = []
        for i, word in enumerate(words):
            place = i + (word * (n - i) >> 64)
            drawn.append(moved.get(place, place))
            moved[place] = moved.get(i, i)
        return drawn

    def bits(self, shape: Sequence[int], device: Device = "cpu") -> torch.Tensor:
        """int64 `shape`, 64 random bits in each."""
        return self._words(math.prod(shape), device).view(tuple(shape))

    def ints(
        self, shape: Sequence[int], low: int, high: int, device: Device = "cpu"
    ) -> torch.Tensor:
        """int64 `shape` of `low <= x < high`.

        Raises ValueError where the range is empty or wider than 2**31.
        """
        span = high - low
        if not 1 <= span <= 2**31:
            found, fix = f"low {low}, high {high}", "pass a range of that size"
            raise ValueError(refusal("integers to draw", found, "1 to 2**31 values", fix))
        count = math.prod(shape)
        halves = self._words((count + 1) // 2, device).view(torch.int32)[:count].long()
        scaled = halves.bitwise_and_(2**32 - 1).mul_(span).bitwise_right_shift_(32)
        return scaled.add_(low).view(tuple(shape))

    def bf16(
        self, shape: Sequence[int], device: Device = "cpu", scale_exp: int = 0
    ) -> torch.Tensor:
        """bfloat16 `shape`: bell-shaped, mean 0, standard deviation `2**scale_exp`, never zero,
        at most three deviations wide; a 12-bit integer rounded to nearest even.

        Raises ValueError where `scale_exp` is beyond -100..100 (subnormals, overflow).
        """
        if abs(scale_exp) > 100:
            fix = "draw with 0, and scale what was drawn"
            raise ValueError(refusal("scale_exp", scale_exp, "-100 to 100", fix))
        values = self._look_up(_bf16_bells(torch.device(device)), shape)
        return values.mul_(2.0**scale_exp) if scale_exp else values

    def e4m3(self, shape: Sequence[int], device: Device = "cpu") -> torch.Tensor:
        """uint8 `shape`: codes of finite E4M3 values, bell-shaped in value with mean 0 and
        standard deviation 1 (subnormals and both zeros included, +-3 the largest)."""
        return self._look_up(_e4m3_bells(torch.device(device)), shape)

    def permutation(self, n: int, device: Device = "cpu") -> torch.Tensor:
        """int64 [n]: the integers of `range(n)` in drawn order."""
        return torch.argsort(self._words(n, device), stable=True)

    def permutations(self, lengths: Sequence[int], device: Device = "cpu") -> list[torch.Tensor]:
        """What as many calls of `permutation` return, for less work."""
        parts = self._words(sum(lengths), device).split([*lengths])
        return [torch.argsort(words, stable=True) for words in parts]

    def _words(self, count: int, device: Device) -> torch.Tensor:
        """The next `count` words, int64 [count]."""
        return torch.cat([*self._blocks(count, device)])

    def _blocks(self, count: int, device: Device) -> Iterator[torch.Tensor]:
        """The next `count` words in order, as one int64 tensor or, on a CPU, several."""
        first, self._next = self._next + 1, self._next + count
        stop = first + count
        width = _BLOCK if torch.device(device).type == "cpu" else max(count, 1)
        for start in range(first, max(stop, first + 1), width):
            words = torch.arange(start, min(start + width, stop), device=device)
            yield _mix_(words.mul_(_signed(_GAMMA)).add_(_signed(self._key)))

    def _look_up(self, table: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """`shape` of entries of `table` [2**16], on its device, four drawn by each word."""
        count = math.prod(shape)
        parts = []
        for words in self._blocks((count + 3) // 4, table.device):
            index = words.view(torch.int16).int().bitwise_and_(2**16 - 1)
            parts.append(table.index_select(0, index))
        return torch.cat(parts)[:count].view(tuple(shape))


@functools.cache
def _bells() -> torch.Tensor:
    """int32 [2**16]: bell values, each with its negative at the other end of the table.

    Half of them are drawn, once and for all, 30 bits for each; a table's draw then needs 16.
    """
    half = Draw("golden.draw bells")._words(2**15, "cpu")
    total = (half & 1023) + (half >> 10 & 1023) + (half >> 20 & 1023)
    drawn = (total * 2 - _BELL_MAX).int()
    return torch.cat([drawn, -drawn.flip(0)])


@functools.cache
def _bf16_bells(device: torch.device) -> torch.Tensor:
    """bfloat16 [2**16]: the bell values in units of their standard deviation."""
    return _bells().float().mul_(2.0**-_BELL_LOG2_STD).bfloat16().to(device)


@functools.cache
def _e4m3_bells(device: torch.device) -> torch.Tensor:
    """uint8 [2**16]: the E4M3 codes nearest to them, ties to even."""
    codes = torch.tensor([_e4m3_code(m) for m in range(-_BELL_MAX, _BELL_MAX + 1)])
    return codes[(_bells() + _BELL_MAX).long()].to(device, torch.uint8)


def _e4m3_code(units: int) -> int:
    """The code nearest to `units * 2**-10` (at most 448): 4 exponent bits with bias 7, 3 bits
    of mantissa; below 2**-6 the step is 2**-9."""
    magnitude = abs(units)
    exponent = max(magnitude.bit_length() - 1 - _BELL_LOG2_STD, -6)
    step = 1 << (exponent - 3 + _BELL_LOG2_STD)  # in units, between neighbouring values
    quotient, rest = divmod(magnitude, step)
    if 2 * rest > step or (2 * rest == step and quotient % 2 == 1):
        quotient += 1
    code = (exponent + 6) * 8 + quotient  # a carry walks into the exponent by itself
    return code | (0x80 if units < 0 else 0)
