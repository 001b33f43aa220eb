"""A canonical case as data: its geometry, lengths, cache and numerics, from which all is drawn."""

import math
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, get_args, get_origin

from golden.cache import FORMATS, GROUP
from golden.refusal import Refused

NUMERICS = (
    *("plain", "dominating", "equal", "negative"),
    *("cancelling-values", "cancelling-logits", "denormal"),
)
"""What `golden.numerics` does to what was drawn."""

_NAME = re.compile(r"[a-z0-9]+([.-][a-z0-9]+)*")


class RecipeError(Refused, ValueError):
    """A recipe that describes no case: what was found, what is allowed, what to do."""


@dataclass(frozen=True)
class Recipe:
    """One decode step. Equal recipes give equal bytes on any machine.

    name: of lower-case letters, digits, "." and "-". key: names the stream that all is drawn
        from. Cases may share one: "glm-bf16" and "glm-e4m3" then select the same tokens.
    num_heads, head_dim_ckv, head_dim_kpe: of the queries; kpe may be 0.
    index_topk, index_kpool, topk_width: the indexer's; a context c up to index_topk selects all
        tokens, a longer one index_topk + c % index_kpool; a row of the top-k buffer is topk_width
        wide.
    contexts, q_lens: for each request its tokens, those of this step included, and how many of
        them are query tokens. Row j of a request with q query tokens sees c - q + j + 1 tokens.
    fmt, scale, block_size, block_stride_rows: the cache's, as in `golden.cache.PagedBytes`.
    scale_exps: for "e4m3_group", exponents (least, largest) of the drawn scales m * 2**e with
        1 <= m < 2; () for other formats.
    blocks: physical blocks. No block is mapped twice where there are enough for all requests;
        else each entry of the block table is any of them.
    q_exp: queries are bell-shaped with a deviation of 2**q_exp. sm_scale: what dot products are
        multiplied by. numerics: one of NUMERICS.

    Raises RecipeError for anything else.
    """

    name: str
    key: str
    num_heads: int
    head_dim_ckv: int
    head_dim_kpe: int
    index_topk: int
    index_kpool: int
    topk_width: int
    contexts: tuple[int, ...]
    q_lens: tuple[int, ...]
    fmt: str
    scale: float
    scale_exps: tuple[int, ...]
    block_size: int
    block_stride_rows: int
    blocks: int
    sm_scale: float
    q_exp: int
    numerics: str

    def __post_init__(self) -> None:
        for text, fits, allowed in self._rules():
            if not fits:
                raise RecipeError(f"case {self.name!r}", text, allowed, "change the recipe")

    def _rules(self) -> list[tuple[str, bool, str]]:
        grouped = self.fmt == "e4m3_group"
        pairs = list(zip(self.contexts, self.q_lens, strict=False))
        exps = self.scale_exps
        ordered = len(exps) == 2 and -100 <= exps[0] <= exps[1] <= 100
        least = self.index_topk + self.index_kpool - 1
        counts = {
            name: getattr(self, name)
            for name in ("num_heads", "head_dim_ckv", "index_topk", "index_kpool", "blocks")
        }
        return [
            (f"name {self.name!r}", bool(_NAME.fullmatch(self.name)), f"{_NAME.pattern}"),
            (f"{counts}", min(counts.values()) >= 1, "1 or more each"),
            (f"head_dim_kpe {self.head_dim_kpe}", self.head_dim_kpe >= 0, "0 or more"),
            (f"topk_width {self.topk_width}", self.topk_width >= least, f"{least} or more"),
            (
                f"contexts {[*self.contexts]} and q_lens {[*self.q_lens]}",
                len(self.contexts) == len(self.q_lens) >= 1
                and all(1 <= queries <= context < 2**31 for context, queries in pairs),
                "as many of each, at least one, with 1 <= q_len <= context < 2**31",
            ),
            (f"format {self.fmt!r}", self.fmt in FORMATS, f"one of {sorted(FORMATS)}"),
            (
                f"head_dim_ckv {self.head_dim_ckv} for {self.fmt}",
                not grouped or self.head_dim_ckv % GROUP == 0,
                f"a multiple of {GROUP}",
            ),
            (
                f"scale {self.scale} for {self.fmt}",
                0 < self.scale < math.inf and (self.fmt != "bf16" or self.scale == 1),
                "positive and finite, 1.0 for bf16",
            ),
            (
                f"scale_exps {[*exps]} for {self.fmt}",
                ordered if grouped else not exps,
                "[least, largest] within -100..100 for e4m3_group, [] for others",
            ),
            (
                f"block_size {self.block_size}, block_stride_rows {self.block_stride_rows}",
                1 <= self.block_size <= self.block_stride_rows,
                "1 <= block_size <= block_stride_rows",
            ),
            (
                f"sm_scale {self.sm_scale}",
                0 < self.sm_scale < math.inf,
                "positive and finite",
            ),
            (f"q_exp {self.q_exp}", abs(self.q_exp) <= 100, "-100 to 100"),
            (f"numerics {self.numerics!r}", self.numerics in NUMERICS, f"one of {NUMERICS}"),
        ]

    @property
    def requests(self) -> list[int]:
        """Each row's request."""
        return [request for request, queries in enumerate(self.q_lens) for _ in range(queries)]

    @property
    def row_contexts(self) -> list[int]:
        """Tokens that each row sees, its own included."""
        pairs = zip(self.contexts, self.q_lens, strict=True)
        return [context - queries + j + 1 for context, queries in pairs for j in range(queries)]

    @property
    def rows(self) -> int:
        """Query tokens of the step."""
        return sum(self.q_lens)

    def count(self, context: int) -> int:
        """Tokens that a row of this context selects."""
        if context <= self.index_topk:
            return context
        return self.index_topk + context % self.index_kpool

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON and TOML have them."""
        return {key: [*v] if isinstance(v, tuple) else v for key, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> "Recipe":
        """The recipe that `as_dict` describes. `key` may be absent: then it is the name.

        Raises RecipeError for fields that are missing, unknown or of another type.
        """
        known = {field.name: field.type for field in fields(cls)}
        given = {"key": found.get("name"), **found}
        missing, unknown = sorted({*known} - {*given}), sorted({*given} - {*known})
        if missing or unknown:
            raise RecipeError(
                f"recipe {found.get('name')!r}",
                f"fields missing {missing}, unknown {unknown}",
                ", ".join(known),
                "add and remove these",
            )
        return cls(**{name: _typed(name, kind, given[name]) for name, kind in known.items()})


def _typed(name: str, kind: Any, value: Any) -> Any:
    """The value as its field's type; Raises RecipeError where it has another."""
    if isinstance(get_origin(kind) or kind, types.GenericAlias) or get_origin(kind) is tuple:
        element = get_args(kind)[0]
        if isinstance(value, Sequence) and not isinstance(value, str):
            return tuple(_typed(name, element, one) for one in value)
    elif kind is float and type(value) in (int, float):
        return float(value)
    elif type(value) is kind:
        return value
    wanted = getattr(kind, "__name__", str(kind))
    raise RecipeError(
        f"field {name}",
        repr(value),
        f"a list of {get_args(kind)[0].__name__}" if get_args(kind) else wanted,
        "change the recipe",
    )
