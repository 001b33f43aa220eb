"""Attention, its error bound and the drawn bits once more, the plain way: numpy, a row and a head.

Shares nothing with golden but the texts of its docstrings. Narrow types are torch's own here, sums
are float64, integers Python's.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from conformance.core.case import SCALE_GROUP, Config, Step
from conformance.core.inputs import StepInputs, World

Floats = NDArray[np.float64]

BF16, FP16, F32_STEP = 2.0**-8, 2.0**-11, 2.0**-23
K = 8.0
_WORDS = 1 << 64


@dataclass(frozen=True)
class Head:
    """One row's attention of one head. keys [n, dim] as stored times their scales; p, s [n]."""

    sm_scale: float
    query: Floats
    keys: Floats
    s: Floats
    p: Floats
    out: Floats
    lse: float


@dataclass(frozen=True)
class Decoding:
    """What the error model knows of a cache format.

    e, w: centre and largest deviation of a decoded element's relative error. unit, floor: of
    another rounding of the output. parts: of a row, those decoded by factors of their own, all
    that is not in one of them exactly; none where the whole row has one factor.
    """

    e: float = 0.0
    w: float = 0.0
    unit: float = 0.0
    floor: float = 0.0
    parts: tuple[slice, ...] = ()

    @classmethod
    def of(cls, config: Config) -> "Decoding":
        """The format's of a configuration."""
        scale, ckv = config.k_scale, config.head_dim_ckv
        if not config.fp8:
            return cls()
        e, w = decoding(scale)
        if not config.group_scales:
            rest = scale / 2.0 ** min(max(math.floor(math.log2(scale)), -12), 7)
            return cls(e, w, FP16, 2.0**-25 * rest)
        parts = [slice(at * SCALE_GROUP, (at + 1) * SCALE_GROUP) for at in range(config.groups)]
        if e + w:
            parts.append(slice(ckv, ckv + config.head_dim_kpe))
        return cls(w=max(BF16 + F32_STEP, e + w), parts=tuple(parts))


def keys_of(world: World, request: int, tokens: Sequence[int]) -> tuple[Floats, Floats]:
    """The decoded cache rows of a request's tokens without their scales, and these: [n, dim]."""
    config = world.config
    dim = config.head_dim_ckv + config.head_dim_kpe
    stored = world.raw.view(torch.float8_e4m3fn if config.fp8 else torch.bfloat16).view(-1, dim)
    size = config.geometry.block_size
    blocks = world.block_table[request].tolist()
    slots = [blocks[token // size] * world.stride_rows + token % size for token in tokens]
    keys = _floats(stored[torch.tensor(slots, dtype=torch.int64)])
    scales = np.full_like(keys, config.k_scale)
    if world.scales is not None:
        group_of = np.arange(config.head_dim_ckv) // SCALE_GROUP
        scales[:, : config.head_dim_ckv] = _floats(world.scales[slots])[:, group_of]
    return keys, scales


def heads_of(world: World, step: Step, inputs: StepInputs, row: int) -> Iterator[Head]:
    """Yield the exact attention of each head of a row that selects something."""
    config = world.config
    tokens = inputs.tokens[row].tolist()
    stored, scales = keys_of(world, step.row_requests[row], tokens)
    keys = stored * scales
    for head in range(config.num_heads):
        parts = inputs.q_nope[row, head], inputs.q_pe[row, head]
        query = np.concatenate([_floats(part) for part in parts])
        s = keys @ query * config.sm_scale
        top = s.max()
        weights = np.exp(s - top)
        total = weights.sum()
        p = weights / total
        out = p @ keys[:, : config.head_dim_ckv]
        yield Head(config.sm_scale, query, keys, s, p, out, float(top + math.log(total)))


def rounded_engine(world: World, head: Head, request: int, tokens: list[int], split: int) -> Tensor:
    """What an engine makes that rounds as the error model says: BF16 [ckv].

    A scale per tensor is rounded to BF16, one of a group is not; each decoded element is BF16, and
    so are weights and the results of the pieces of a split row.
    """
    config = world.config
    keys, scales = (torch.from_numpy(part).float() for part in keys_of(world, request, tokens))
    per_tensor = scales[:, config.head_dim_ckv if config.group_scales else 0 :]
    per_tensor.copy_(per_tensor.bfloat16())
    keys = (keys * scales).bfloat16().float()
    s = keys @ torch.from_numpy(head.query).float() * config.sm_scale
    outs, logs = [], []
    for piece, logits in zip(keys.split(split), s.split(split), strict=True):
        p = (logits - logits.max()).exp()
        values = p.bfloat16().float() @ piece[:, : config.head_dim_ckv] / p.sum()
        outs.append(values.bfloat16().float() if len(tokens) > split else values)
        logs.append(logits.max() + p.sum().log())
    weights = torch.stack(logs).softmax(0)
    return (weights[:, None] * torch.stack(outs)).sum(0).bfloat16()


def bound_of(head: Head, split: int, decode: Decoding) -> Floats:
    """The largest error [ckv] that `golden.tolerance` says it allows."""
    p, v, o = head.p[:, None], head.keys[:, : len(head.out)], head.out
    n, dim = head.keys.shape
    e, w = decode.e, decode.w
    value = np.sqrt((p * v * v).sum(0))
    spread = np.sqrt(np.maximum((p * v * v).sum(0) - o * o, 0))
    norms = np.linalg.norm(head.keys, axis=1)
    reach = head.sm_scale * float(np.linalg.norm(head.query)) * float(norms.max())
    logit = (dim / 16 + 4) * F32_STEP * reach
    centred = (head.s - head.p @ head.s)[:, None]
    shift, c_sq = errs_in_common(head, decode)
    total = (BF16 + decode.unit + e) * np.abs(o) + logit * spread + (n / 4 + 8) * F32_STEP * value
    total = total + (e + w) * shift
    total = total + e * e / 2 * math.sqrt((p * centred**4).sum()) * spread
    noise = w * w * (1 + w * math.sqrt(c_sq.max())) ** 2 * (p * p * c_sq * (v - o) ** 2).sum(0)
    variance = (BF16 * BF16 / 3 + w * w) * (p * p * v * v).sum(0) + noise
    pieces = [slice(at, at + split) for at in range(0, n, split)]
    sums = np.stack([(p * v)[piece].sum(0) for piece in pieces]) * (n > split)
    linear = BF16 * np.abs(sums).sum(0)
    common = (BF16 + w) * np.abs(o)
    total = total + np.minimum.reduce(
        [
            (BF16 + w) * value + linear + K * np.sqrt(noise),
            common + linear + K * np.sqrt(variance),
            common + K * np.sqrt(variance + BF16 * BF16 / 3 * (sums * sums).sum(0)),
        ]
    )
    return np.asarray((total + decode.floor + 2.0**-133) * (1 + 2.0**-6))


def errs_in_common(head: Head, decode: Decoding) -> tuple[Floats, Floats]:
    """What logits do where decoded elements err together [ckv], and apart [n, 1]; per unit error.

    Apart is a variance: of the elements of a row, and of its parts with factors of their own.
    """
    v = head.keys[:, : len(head.out)]
    terms = head.sm_scale * head.keys * head.query
    inexact = np.zeros(len(head.query), bool)
    together, apart = np.zeros(len(head.out)), np.zeros(len(v))
    for part in decode.parts or (slice(None),):
        inexact[part] = True
        share = terms[:, part].sum(1)
        together += np.abs((head.p * (share - head.p @ share)) @ v)
        apart += share**2 * bool(decode.parts)
    return together, ((terms[:, inexact] ** 2).sum(1) + apart)[:, None]


def decoding(k_scale: float) -> tuple[float, float]:
    """Centre and largest deviation of the relative errors of decoded elements (term 4)."""
    factor = torch.tensor(k_scale, dtype=torch.float32).bfloat16().float()
    mantissas = torch.arange(8, 16).float()
    made = (mantissas * factor).bfloat16().double() / (mantissas.double() * k_scale) - 1
    if math.frexp(k_scale)[0] == 0.5:
        return 0.0, 0.0
    low, high = float(made.min()), float(made.max())
    return abs((high + low) / 2), (high - low) / 2


class Words:
    """The stream of 64-bit words of a name, after SplitMix64's publication, in Python integers."""

    def __init__(self, key: bytes) -> None:
        self.key, self.place = int.from_bytes(key, "little"), 0

    @classmethod
    def of(cls, *labels: str) -> "Words":
        """The stream of `Draw(labels[0]).fork(labels[1])...`."""
        digest = b""
        for label in labels:
            digest = hashlib.blake2b(label.encode(), digest_size=8, key=digest).digest()
        return cls(digest)

    def word(self) -> int:
        """The next word."""
        self.place += 1
        z = (self.key + self.place * 0x9E3779B97F4A7C15) % _WORDS
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % _WORDS
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % _WORDS
        return z ^ (z >> 31)

    def parts(self, count: int, bits: int) -> list[int]:
        """The next `count` parts of words of so many bits, the lowest first."""
        each = 64 // bits
        words = [self.word() for _ in range(-(-count // each))]
        return [w >> bits * i & (1 << bits) - 1 for w in words for i in range(each)][:count]


def bells() -> Floats:
    """The 65536 values that bell-shaped draws are looked up in, before they are rounded."""
    stream = Words.of("golden.draw bells")
    half = []
    for _ in range(1 << 15):
        word = stream.word()
        half.append(2 * sum(word >> shift & 1023 for shift in (0, 10, 20)) - 3069)
    return np.array([*half, *(-value for value in reversed(half))], np.float64) / 1024


def _floats(tensor: Tensor) -> Floats:
    return np.asarray(tensor.double().cpu().numpy())
