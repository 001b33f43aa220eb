"""A paged key/value cache as raw bytes, decoded without the help of torch's narrow types."""

import functools
import math
from dataclasses import dataclass, field, replace

import torch

from golden.refusal import refusal

_BYTES = {"bf16": 2, "e4m3": 1, "e4m3_group": 1}
GROUP = 128  # channels of the compressed part that share a scale in "e4m3_group"
FORMATS = frozenset(_BYTES)


@functools.cache
def _e4m3_table(device: torch.device) -> torch.Tensor:
    """float64 [256]: the value of each E4M3 code (no infinities; 0x7f and 0xff are NaN)."""

    def value(code: int) -> float:
        exponent, mantissa = code >> 3 & 15, code & 7
        if exponent == 15 and mantissa == 7:
            return math.nan
        magnitude = math.ldexp(mantissa + (8 if exponent else 0), max(exponent, 1) - 10)
        return -magnitude if code & 0x80 else magnitude

    return torch.tensor([value(code) for code in range(256)], dtype=torch.float64, device=device)


@dataclass(frozen=True, eq=False)
class PagedBytes:
    """The storage of a cache and how to read it.

    Row `r` of the storage is one token's latent followed by its rope part, and starts at byte
    `r * row_bytes`; the rows between the end of a block and the start of the next one (where
    `block_stride_rows` exceeds `block_size`) belong to somebody else.

    data: uint8, contiguous, any shape; bytes behind the last whole row are not used.
    fmt: "bf16"; "e4m3" (FP8 with a per-tensor scale for both parts); or "e4m3_group" (FP8 with
        a scale for each row and 128 channels of the compressed part).
    head_dim_ckv, head_dim_kpe: elements of the two parts of a row; kpe may be 0.
    block_size: tokens in a block. block_stride_rows: rows between the starts of blocks.
    scale: what a stored value is multiplied by, taken as exact; 1.0 for "bf16"; of the rope
        part alone in "e4m3_group".
    group_scales: float32 [rows, head_dim_ckv // 128], contiguous, for "e4m3_group" alone: a line
        for each row of the storage, the rows between blocks included. Any values; what is not
        finite goes to whoever gathers that row.

    Raises ValueError, naming what was found, for anything else.
    """

    data: torch.Tensor
    fmt: str
    head_dim_ckv: int
    head_dim_kpe: int
    block_size: int
    block_stride_rows: int
    scale: float = 1.0
    group_scales: torch.Tensor | None = None
    # Not of the constructor's fields, so that `replace` never takes it to other bytes or scales.
    _decoded: tuple[tuple[int, int], torch.Tensor] | None = field(
        default=None, init=False, repr=False
    )

    def __post_init__(self) -> None:
        if self.fmt not in _BYTES:
            raise ValueError(
                refusal("cache format", repr(self.fmt), f"one of {sorted(_BYTES)}", "name one")
            )
        if self.data.dtype != torch.uint8 or not self.data.is_contiguous():
            raise ValueError(
                refusal(
                    "cache data",
                    f"{self.data.dtype}, contiguous {self.data.is_contiguous()}",
                    "contiguous uint8",
                    "pass the raw storage, data.contiguous().view(torch.uint8)",
                )
            )
        if self.head_dim_ckv < 1 or self.head_dim_kpe < 0:
            raise ValueError(
                refusal(
                    "head_dim_ckv, head_dim_kpe",
                    f"{self.head_dim_ckv}, {self.head_dim_kpe}",
                    "1 or more, 0 or more",
                    "pass the elements of a row's two parts",
                )
            )
        if not 1 <= self.block_size <= self.block_stride_rows:
            raise ValueError(
                refusal(
                    "block_size, block_stride_rows",
                    f"{self.block_size}, {self.block_stride_rows}",
                    "1 <= block_size <= block_stride_rows",
                    "pass the stride in rows, not in bytes or blocks",
                )
            )
        if not (0 < self.scale < math.inf) or (self.fmt == "bf16" and self.scale != 1.0):
            raise ValueError(
                refusal(
                    f"scale for {self.fmt}",
                    self.scale,
                    "positive and finite, 1.0 for bf16",
                    "pass what stored values are multiplied by",
                )
            )
        if self.fmt == "e4m3_group":
            self._check_groups()
        elif self.group_scales is not None:
            raise ValueError(
                refusal(
                    f"group_scales for {self.fmt}", "some", "those of 'e4m3_group' alone",
                    "leave them out, or name that format",
                )
            )  # fmt: skip

    def _check_groups(self) -> None:
        """Raises ValueError unless the scales have the storage's shape."""
        if self.head_dim_ckv % GROUP:
            raise ValueError(
                refusal(
                    "head_dim_ckv for e4m3_group", self.head_dim_ckv,
                    f"a multiple of {GROUP}, the channels of a scale", "pass such a dimension",
                )
            )  # fmt: skip
        scales, shape = self.group_scales, (self.rows, self.head_dim_ckv // GROUP)
        allowed = f"contiguous float32 {[*shape]}"
        if scales is None:
            raise ValueError(refusal("group_scales", "none", allowed, "pass them with e4m3_group"))
        if scales.dtype != torch.float32 or scales.shape != shape or not scales.is_contiguous():
            raise ValueError(
                refusal(
                    "group_scales",
                    f"{scales.dtype} {[*scales.shape]}, contiguous {scales.is_contiguous()}",
                    allowed,
                    "pass a line for each row of the storage, the rows between blocks included",
                )
            )
        if scales.device != self.data.device:
            raise ValueError(
                refusal(
                    "group_scales", f"on {scales.device}", f"on {self.data.device}, as the data",
                    "move them there",
                )
            )  # fmt: skip

    @property
    def decodes_exactly(self) -> bool:
        """Whether an engine that computes in BF16 decodes every element without rounding: BF16,
        or a power of two as the one scale."""
        return self.fmt == "bf16" or (self.fmt == "e4m3" and is_power_of_two(self.scale))

    @property
    def head_dim(self) -> int:
        """Elements of a row, both parts together."""
        return self.head_dim_ckv + self.head_dim_kpe

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.head_dim * _BYTES[self.fmt]

    @property
    def rows(self) -> int:
        """Whole rows in the storage."""
        return self.data.numel() // self.row_bytes

    def decoded(self) -> "PagedBytes":
        """The same, with every row decoded already, for many calls of `gather`.

        Bytes that torch changes afterwards are noticed, and decoded at each call as ever; so is
        whatever `dataclasses.replace` makes of it.
        """
        every = self.gather(torch.arange(self.rows, device=self.data.device))
        known = replace(self)
        object.__setattr__(known, "_decoded", (self._versions, every))  # frozen for all others
        return known

    def gather(self, slots: torch.Tensor) -> torch.Tensor:
        """float64 `[*slots.shape, head_dim]`: the decoded rows at `slots` (int64), scaled.

        E4M3 NaN codes decode to NaN. Raises IndexError for a slot outside the storage.
        """
        flat = slots.reshape(-1)
        if flat.numel() and not 0 <= int(flat.min()) <= int(flat.max()) < self.rows:
            raise IndexError(
                refusal(
                    "slots",
                    f"{int(flat.min())}..{int(flat.max())}",
                    f"0..{self.rows - 1}, for the cache has {self.rows} rows",
                    "pass rows of the storage",
                )
            )
        if self._decoded is not None and self._decoded[0] == self._versions:
            return self._decoded[1].index_select(0, flat).view(*slots.shape, self.head_dim)
        stored = self.data.view(-1)[: self.rows * self.row_bytes].view(self.rows, self.row_bytes)
        raw = stored.index_select(0, flat)
        if self.fmt == "bf16":  # a BF16 value is the upper half of a float32
            values = (raw.view(torch.int16).int() << 16).view(torch.float32).double()
        elif self.group_scales is not None:
            values = _e4m3_table(raw.device).index_select(0, raw.view(-1).int())
            values = values.view(-1, self.head_dim)
            scales = self.group_scales.index_select(0, flat).double()
            values[:, : self.head_dim_ckv] *= scales.repeat_interleave(GROUP, 1)
            values[:, self.head_dim_ckv :] *= self.scale
        else:
            table = _e4m3_table(raw.device) * self.scale
            values = table.index_select(0, raw.view(-1).int())
        return values.view(*slots.shape, self.head_dim)

    @property
    def _versions(self) -> tuple[int, int]:
        """Counts of torch's changes to the storage and to the group scales."""
        scales = self.group_scales
        return self.data._version, -1 if scales is None else scales._version


def is_power_of_two(x: float) -> bool:
    """Whether a positive number is a power of two."""
    return math.frexp(x)[0] == 0.5
