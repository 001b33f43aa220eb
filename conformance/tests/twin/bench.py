"""A small decode step on the twin: an editable schedule and a float64 reference."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from conformance.twin.access import AccessLog
from conformance.twin.planner import INFO_FIELDS, MAX_WORKS
from conformance.twin.semantics import BY_VERSION
from conformance.twin.surface import NativeModule

SLOTS = 2048
BACKGROUND = 7.0  # what rows that nobody writes must keep
SM_SCALE = 0.11
VERSIONS = tuple(BY_VERSION)
RELATIVE_ERROR = 6e-3  # BF16 probabilities, partial results and outputs


@dataclass
class Step:
    """One planned step; every batch row has `q_len` query tokens.

    What stands before `first_row` and `first_entry` is drawn too, and belongs to nobody.
    """

    lengths: list[int]
    heads: int = 16
    ckv: int = 64
    kpe: int = 0
    fp8: bool = False
    num_sms: int = 132
    q_len: int = 1
    ckv_scale: float = 1.0
    kpe_scale: float = 1.0
    scales: torch.Tensor | None = None
    lse_base_e: bool = True
    seed: int = 0
    version: str = "0.7.2.post1"
    first_row: int = 0  # rows of a larger batch before those that are planned
    first_entry: int = 0  # entries of kv_indices before theirs
    log: AccessLog = field(default_factory=AccessLog)

    def __post_init__(self) -> None:
        rows = self.first_row + len(self.lengths) * self.q_len
        source = torch.Generator().manual_seed(self.seed)
        self.native = NativeModule(self.version, self.num_sms, self.log)
        self.float_ws = torch.full((24 << 20,), 0xFF, dtype=torch.uint8)  # NaN as BF16 and float32
        self.int_ws = torch.full((1 << 20,), 0xA5, dtype=torch.uint8)
        self.q_nope = torch.randn(rows, self.heads, self.ckv, generator=source).bfloat16()
        self.q_pe = torch.randn(rows, self.heads, self.kpe, generator=source).bfloat16()
        cache = torch.randn(SLOTS, 1, self.ckv + self.kpe, generator=source)
        self.cache = cache.to(torch.float8_e4m3fn if self.fp8 else torch.bfloat16)
        self.starts = [self.first_entry]
        for length in self.lengths:
            self.starts.append(self.starts[-1] + length)
        self.indices = torch.randint(
            1, SLOTS, (self.starts[-1],), generator=source, dtype=torch.int32
        )
        self.out = torch.full((rows, self.heads, self.ckv), BACKGROUND, dtype=torch.bfloat16)
        self.lse = torch.full((rows, self.heads), BACKGROUND)
        self.plan()

    def plan(self) -> None:
        count = len(self.lengths)
        pinned = self.int_ws.clone()
        planned = self.native.plan(
            self.float_ws,
            self.int_ws,
            pinned,
            self.first_row + torch.arange(count + 1, dtype=torch.int32) * self.q_len,
            torch.tensor(self.starts, dtype=torch.int32),
            torch.tensor(self.lengths, dtype=torch.int32),
            self.heads,
            self.ckv,
            False,
        )
        if isinstance(planned, tuple):
            self.info, staged = planned
            self.int_ws[:staged] = pinned[:staged]
        else:
            self.info = planned

    def array(self, name: str, count: int | None = None) -> torch.Tensor:
        """A schedule array as a writable int32 view; work arrays end at the number of items."""
        if count is None:
            clusters = self.info[1]
            count = int(self.array("work_indptr", clusters + 1)[-1])
        at = self.info[INFO_FIELDS.index(name)]
        return self.int_ws[at : at + 4 * MAX_WORKS].view(torch.int32)[:count]

    def clamp(self, valid: list[int], kv_len: bool = True) -> None:
        """What a backend does with a plan that was made from bounds: end each item at `valid`."""
        rows = (self.array("q_indptr").long() - self.first_row) // self.q_len
        counts = torch.tensor(valid, dtype=torch.int32)[rows]
        start, end, length = (self.array(x) for x in ("kv_start", "kv_end", "kv_len"))
        end.copy_(torch.maximum(start, torch.minimum(end, counts)))
        if kv_len:
            length.copy_(torch.minimum(length, counts))

    def tail(self, valid: list[int], slot: int) -> None:
        """Point every entry behind the valid prefix of each row at `slot`."""
        for row, count in enumerate(valid):
            self.indices[self.starts[row] + count : self.starts[row + 1]] = slot

    def run(self) -> torch.Tensor:
        """Run on fresh outputs and return the output."""
        self.out.fill_(BACKGROUND)
        self.lse.fill_(BACKGROUND)
        self.native.run(
            self.float_ws,
            self.int_ws,
            self.info,
            self.q_nope,
            self.q_pe,
            self.cache[..., : self.ckv],
            self.cache[..., self.ckv :],
            self.indices,
            self.out,
            self.lse,
            0,
            self.heads,
            1,
            SM_SCALE,
            self.lse_base_e,
            self.ckv_scale,
            self.kpe_scale,
            self.scales,
        )
        return self.out.clone()

    def values(self) -> torch.Tensor:
        """The cache as the kernel understands it, float64 [slots, ckv + kpe]."""
        values = self.cache[:, 0].double()
        if not self.fp8:
            return values
        ckv, kpe = values[:, : self.ckv], values[:, self.ckv :]
        ckv_scale, kpe_scale = torch.tensor([self.ckv_scale, self.kpe_scale]).bfloat16().double()
        factor = ckv_scale if self.scales is None else self.scales.repeat_interleave(128, 1)
        return torch.cat([ckv * factor, kpe * kpe_scale], 1).bfloat16().double()

    def reference(self, valid: list[int] | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Plain float64 softmax attention: output and natural-log LSE."""
        values = self.values()
        outs, lses = [], []
        for row in range(self.first_row, len(self.q_nope)):
            batch = (row - self.first_row) // self.q_len
            count = self.lengths[batch] if valid is None else valid[batch]
            start = self.starts[batch]
            k = values[self.indices[start : start + count].long()]
            q = torch.cat([self.q_nope[row], self.q_pe[row]], 1).double()
            logits = q @ k.T * SM_SCALE
            lses.append(torch.logsumexp(logits, 1))
            weights = torch.softmax(logits, 1)
            outs.append(weights @ k[:, : self.ckv])
        return torch.stack(outs), torch.stack(lses)

    def check(self, out: torch.Tensor, valid: list[int] | None = None) -> None:
        """The output is the reference's within what BF16 roundings allow; empty rows are zero."""
        __tracebackhide__ = True
        expected, lse = self.reference(valid)
        out = out[self.first_row :]
        error = (out.double() - expected).flatten(1).norm(dim=1)
        allowed = RELATIVE_ERROR * expected.flatten(1).norm(dim=1)
        worst = int((error - allowed).argmax())
        assert bool((error <= allowed).all()), (
            f"row {worst}: error {float(error[worst])}, allowed {float(allowed[worst])}"
        )
        if self.lse_base_e:
            torch.testing.assert_close(
                self.lse[self.first_row :].double(), lse, atol=3e-3, rtol=1e-3
            )
