"""The twin's run of a recorded schedule, and golden's answers to what a native run was given."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from conformance.core.bench import UNWRITTEN, WORST
from conformance.core.schedule import FIELDS, ScheduleReader
from conformance.hardware.inputs import Drawn
from conformance.hardware.pieces import Piece
from conformance.hardware.recording import DTYPES, SceneRecord
from conformance.twin.access import AccessLog
from conformance.twin.errors import TwinDomainError, TwinFault
from conformance.twin.semantics import Semantics
from conformance.twin.surface import MASK_NONE, NativeModule
from golden import Golden, PagedBytes, Roundings, attend

_HALF_BITS, _HALF_FLOOR = 11, 2.0**-25


class Rerun:
    """The twin's run of a recorded schedule. fault: why it did not run, if it did not."""

    def __init__(self, drawn: Drawn, found: SceneRecord, semantics: Semantics) -> None:
        call, world, inputs = found.call, drawn.world, drawn.inputs
        self.dtype, self.log, self.fault = DTYPES[call.out], AccessLog(), ""
        rows, heads, ckv = inputs.q_nope.shape
        self.workspace = rebuilt(found)
        self.schedule = ScheduleReader(found.plan_info, self.workspace, call.num_sms)
        self.floats = torch.zeros(call.float_bytes, dtype=torch.uint8)
        bits = torch.full((rows, heads, ckv), UNWRITTEN, dtype=torch.int16)
        self.out = bits.view(self.dtype)
        kind = torch.float8_e4m3fn if world.config.fp8 else torch.bfloat16
        cache = world.raw.view(kind).view(-1, 1, ckv + inputs.q_pe.shape[2])
        scales = None if world.scales is None else world.flat(world.scales)
        module = NativeModule(semantics, call.num_sms, self.log)
        try:
            module.run(
                self.floats, self.workspace, found.plan_info, inputs.q_nope, inputs.q_pe,
                cache[..., :ckv], cache[..., ckv:], found.tensors["kv_indices"], self.out, None,
                MASK_NONE, heads, 1, call.sm_scale, False, call.ckv_scale, call.kpe_scale, scales,
            )  # fmt: skip
        except (TwinDomainError, TwinFault) as problem:
            self.fault = f"the twin does not run it: {problem}"

    def partials(self, outs: Sequence[int], lses: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return partial outputs and LSEs at packed rows of the float workspace."""
        info, dim = self.schedule.info, self.out.shape[2]
        o_at, lse_at = info["partial_o"], info["partial_lse"]
        partial_o = self.floats[o_at:lse_at]
        whole = partial_o[: len(partial_o) // (2 * dim) * 2 * dim].view(self.dtype).view(-1, dim)
        lse = self.floats[lse_at:][: 4 * len(whole)].view(torch.float32)
        return whole[[*outs]], lse[[*lses]]


def rebuilt(found: SceneRecord) -> Tensor:
    """Return an int workspace that holds a record's clamped arrays where its plan-info says."""
    arrays = {
        name.removeprefix("clamped."): tensor
        for name, tensor in found.tensors.items()
        if name.startswith("clamped.")
    }
    info = dict(zip(FIELDS, found.plan_info, strict=True))
    last = max(info[name] // 4 + tensor.numel() for name, tensor in arrays.items())
    words = torch.zeros(last, dtype=torch.int32)
    for name, tensor in arrays.items():
        start = info[name] // 4
        words[start : start + tensor.numel()] = tensor
    return words.view(torch.uint8)


def golden_of_pieces(
    drawn: Drawn, found: SceneRecord, pieces: dict[int, Piece], places: Sequence[int]
) -> tuple[Golden, list[int], list[int]]:
    """Return golden of the pieces at these packed rows, each once; and for each row which one."""
    keys = [(pieces[p].row, pieces[p].start, pieces[p].end) for p in places]
    unique = sorted(set(keys))
    tokens = [drawn.inputs.tokens[row][start:end] for row, start, end in unique]
    cache, sm_scale = engine_cache(drawn, found)
    golden = golden_of(drawn, cache, sm_scale, [row for row, *_ in unique], tokens, int(WORST))
    return golden, [unique.index(key) for key in keys], [pieces[p].head for p in places]


def golden_of(
    drawn: Drawn,
    cache: PagedBytes,
    sm_scale: float,
    rows: Sequence[int],
    tokens: Sequence[Tensor],
    split: int,
) -> Golden:
    inputs, of_rows = drawn.inputs, drawn.step.row_requests
    owners = torch.tensor([of_rows[row] for row in rows], dtype=torch.int32)
    return attend(
        inputs.q_nope[[*rows]], inputs.q_pe[[*rows]], cache, drawn.world.block_table, owners,
        tokens, sm_scale, split=split,
    )  # fmt: skip


def engine_cache(drawn: Drawn, found: SceneRecord) -> tuple[PagedBytes, float]:
    """Return the cache and the sm_scale as the native run was given them."""
    scale = found.call.kpe_scale if drawn.world.config.fp8 else 1.0
    return replace(drawn.world.paged(), scale=scale), found.call.sm_scale


def engine_roundings(drawn: Drawn, found: SceneRecord) -> Roundings:
    """Return the roundings of the native run alone: none of what comes behind it."""
    exact = Roundings.of(drawn.world.config.fmt, found.call.kpe_scale)
    if DTYPES[found.call.out] == torch.bfloat16:
        return replace(exact, out_unit=0.0, out_floor=0.0)
    return replace(
        exact,
        out_bits=_HALF_BITS,
        partial_bits=_HALF_BITS,
        out_unit=0.0,
        out_floor=2 * _HALF_FLOOR,  # of the pieces, and of the sum
    )
