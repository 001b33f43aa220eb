"""A case: one string from which everything about it follows.

`NUM-1/dtype=bf16,heads=16,lens=edge/7` names a requirement, the dimensions its cases vary over,
and a number. It is the id of the case, its selector, its seed, and with `--case` its reproduction.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from golden import Draw


class CaseError(ValueError):
    """A case id that cannot be read, or names a value its dimension does not have."""


@dataclass(frozen=True)
class Geometry:
    """How the indexer selects and how the cache is paged. gap_rows: rows between blocks."""

    index_topk: int
    index_kpool: int
    topk_width: int
    block_size: int = 64
    gap_rows: int = 0


GEOMETRIES = {
    "tiny": Geometry(16, 4, 24),
    "flat": Geometry(64, 1, 64, gap_rows=3),
    "pool": Geometry(128, 64, 192),
    "odd": Geometry(96, 2, 97, block_size=128),
    "wide": Geometry(256, 4, 320, gap_rows=64),
    "serve": Geometry(64, 4, 68),
    "glm": Geometry(2048, 4, 2176),
    "v32": Geometry(2048, 1, 2048),
}

DIMENSIONS: dict[str, tuple[str, ...]] = {
    "dtype": ("bf16", "fp8", "fp8g"),
    "kpe": ("0", "64"),
    "heads": ("16", *(str(n) for n in range(1, 129) if n != 16)),
    "geo": tuple(GEOMETRIES),
    "lens": ("mixed", "edge", "short", "full", "long", "dead", "vast"),
    "loss": ("draft", "none", "far"),
    "rows": ("few", "many"),
    "width": ("small", "full"),
    "how": (),
}
"""Each dimension's values, the default first. dtype: of the cache; fp8 has a scale per tensor, fp8g
one per row and 128 channels. width: the compressed width on the twin, 64 (fp8g: 256) or 512 (a GPU
always has 512). how: a word that the requirement's own test explains."""

SCALE_GROUP = 128
"""Channels of the compressed part that share a scale in an fp8g cache."""


@dataclass(frozen=True)
class Config:
    """What a subject is constructed for. head dims in elements, fp8 is E4M3 stored as uint8.

    group_scales: an fp8 cache's compressed part has a float32 scale per row and SCALE_GROUP
    channels; k_scale is then the rope part's alone, a power of two.
    kv_dtype_name: the name of a torch dtype to ask for instead of those two, to see it refused.
    """

    num_heads: int
    head_dim_ckv: int
    head_dim_kpe: int
    fp8: bool
    geometry: Geometry
    max_tokens: int
    sm_scale: float
    k_scale: float
    force_mqa: bool = False
    kv_dtype_name: str = ""
    group_scales: bool = False

    @property
    def fmt(self) -> str:
        """The cache's format, as golden names it."""
        if self.group_scales:
            return "e4m3_group"
        return "e4m3" if self.fp8 else "bf16"

    @property
    def groups(self) -> int:
        """Scales of a cache row."""
        return self.head_dim_ckv // SCALE_GROUP


@dataclass(frozen=True)
class Step:
    """One step's lengths, per request. bounds: what the host knows, None for nothing.

    seq_lens below q_lens leave rows without context: a request that ended on the device.
    device_q_lens: the query tokens as the device distributed them, where that differs from the
    host's q_lens (adaptive verification; same total).
    """

    q_lens: tuple[int, ...]
    seq_lens: tuple[int, ...]
    bounds: tuple[int, ...] | None
    padded_rows: int
    device_q_lens: tuple[int, ...] | None = None

    @property
    def rows(self) -> int:
        """Live rows."""
        return sum(self.q_lens)

    @property
    def true_q_lens(self) -> tuple[int, ...]:
        """Query tokens of each request as the device has them."""
        return self.q_lens if self.device_q_lens is None else self.device_q_lens

    @property
    def row_requests(self) -> list[int]:
        """The request of each live row."""
        return [i for i, count in enumerate(self.true_q_lens) for _ in range(count)]

    def contexts(self, lengths: Sequence[int] | None = None) -> list[int]:
        """Each live row's context on the device; under other `lengths`, with the host's split."""
        counts = self.true_q_lens if lengths is None else self.q_lens
        lengths = self.seq_lens if lengths is None else lengths
        return [
            max(length - count + j + 1, 0)
            for length, count in zip(lengths, counts, strict=True)
            for j in range(count)
        ]


def valid_count(context: int, geometry: Geometry) -> int:
    """How many tokens the indexer selects for a context."""
    if context <= geometry.index_topk:
        return context
    return geometry.index_topk + context % geometry.index_kpool


@dataclass(frozen=True)
class Case:
    """A parsed id; `draw` is its source of everything random."""

    id: str
    requirement: str
    values: Mapping[str, str] = field(hash=False)
    number: int

    def __getitem__(self, dimension: str) -> str:
        """Return a dimension's value, or its default."""
        if dimension in self.values:
            return self.values[dimension]
        choices = DIMENSIONS[dimension]
        return choices[0] if choices else ""

    @property
    def draw(self) -> Draw:
        """A fresh generator; the same for the same id on any machine."""
        return Draw(self.id)

    @property
    def geometry(self) -> Geometry:
        """The case's geometry."""
        return GEOMETRIES[self["geo"]]


def parse(text: str) -> Case:
    """Return the case of an id; raise CaseError, naming the part, when there is none."""
    parts = text.split("/")
    if len(parts) != 3 or not parts[2].isdigit():
        raise CaseError(f"case id {text!r}: expected REQUIREMENT/dimension=value,.../NUMBER")
    values: dict[str, str] = {}
    for pair in filter(None, parts[1].split(",")):
        name, _, value = pair.partition("=")
        if name not in DIMENSIONS:
            raise CaseError(f"case id {text!r}: no dimension {name!r}; known: {[*DIMENSIONS]}")
        if DIMENSIONS[name] and value not in DIMENSIONS[name]:
            raise CaseError(f"case id {text!r}: {name} has no value {value!r}")
        values[name] = value
    return Case(text, parts[0], values, int(parts[2]))


def spread(requirement: str, count: int, vary: Mapping[str, Sequence[object]]) -> Iterator[str]:
    """Yield `count` ids over the product of `vary`, every value as often as any other.

    The product is walked in a stride coprime to its size, so that few cases already mix values.
    """
    names = list(vary)
    product = list(itertools.product(*(vary[name] for name in names)))
    stride = next(s for s in _STRIDES if len(product) % s)
    for number in range(count):
        chosen = product[number * stride % len(product)]
        pairs = ",".join(f"{n}={v}" for n, v in zip(names, chosen, strict=True))
        yield f"{requirement}/{pairs}/{number}"


_STRIDES = (7, 11, 13, 17, 19, 23, 29, 31)
