"""Dense attention in float64 from token lists and raw cache bytes.

Per row and head, over the selected tokens i of the row's request, with k_i the decoded cache
row and v_i its compressed part::

    s_i = sm_scale * (q_nope, q_pe) . k_i        p = softmax(s)        out = sum p_i v_i

NaN and Inf in selected rows go wherever this arithmetic takes them. Beside the answer stand
the sums from which `golden.tolerance` bounds an honest engine's error. Three digits of those
are plenty: they are formed in float32, from values normalised per row and dimension so that
squares neither overflow nor vanish.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields

import torch

from golden.answer import DecodeSums, Golden
from golden.cache import PagedBytes

_CHUNK_ELEMENTS = 2**23  # decoded cache elements held at a time: 64 MiB as float64


def attend(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    cache: PagedBytes,
    block_table: torch.Tensor,
    request: torch.Tensor,
    tokens: Sequence[torch.Tensor],
    sm_scale: float,
    *,
    split: int | None,
    chunk_rows: int = 64,
) -> Golden:
    """Attention of each row over its selected tokens.

    q_nope [rows, heads, ckv] and q_pe [rows, heads, kpe], any float type, taken as exact, on
        the cache's device, where everything happens; the other tensors may be elsewhere.
    block_table [requests, blocks], request [rows]: integers. Token t of request r is cache row
        `block_table[r, t // block_size] * block_stride_rows + t % block_size`.
    tokens: for each row the selected token positions, a 1-D integer tensor in the engine's
        order (the order decides the pieces, nothing else); repeats count as often as they
        stand there; may be empty.
    split: the engine cuts a row's token list into pieces this wide and keeps a piece's result
        in BF16; a width not below the list's length means one piece. None where the width is
        not known: then any cut is allowed for, at a price in sharpness.
    chunk_rows: at most so many rows are decoded at a time, fewer where they are long.

    Raises ValueError for shapes that do not fit together, tokens outside the block table or
    requests outside its rows; IndexError for a block outside the cache.
    """
    _check(q_nope, q_pe, cache, block_table, request, tokens, split, chunk_rows)
    device = q_nope.device
    block_table, request = block_table.to(device), request.to(device)
    rows, heads, ckv = q_nope.shape
    q = torch.cat([q_nope.double(), q_pe.double()], dim=-1)
    lengths = [len(row) for row in tokens]
    exact = cache.fmt == "bf16" or math.frexp(cache.scale)[0] == 0.5  # a power of two

    def full(*tail: int) -> torch.Tensor:
        return torch.zeros(rows, heads, *tail, dtype=torch.float64, device=device)

    golden = Golden(
        out=full(ckv),
        lse=full() - torch.inf,
        count=torch.tensor(lengths, dtype=torch.int64, device=device),
        value_sq=full(ckv),
        value_sq_p=full(ckv),
        partials=full(ckv),
        partials_sq=full(ckv),
        logit_reach=full(),
        decode=None if exact else DecodeSums(full(ckv), full(ckv), full(), full()),
        head_dim=cache.head_dim,
    )
    for chosen in _chunks(lengths, cache.head_dim, chunk_rows):
        index = torch.tensor(chosen, device=device)
        slots, used = _slots(cache, block_table, request[index], [tokens[i] for i in chosen])
        keys = cache.gather(slots)
        keys[(~used).nonzero(as_tuple=True)] = 0.0
        part = _attend_chunk(q[index], keys, used, ckv, sm_scale, split, exact)
        _scatter(golden, index, part)
    return golden


def _attend_chunk(
    q: torch.Tensor,  # [r, heads, head_dim]
    keys: torch.Tensor,  # [r, n, head_dim], 0 where unused
    used: torch.Tensor,  # bool [r, n], at least one in each row
    ckv: int,
    sm_scale: float,
    split: int | None,
    exact: bool,
) -> dict[str, torch.Tensor]:
    """Golden's and DecodeSums' fields, by name, for rows that have tokens."""
    values = keys[..., :ckv]
    s = (q @ keys.mT).mul_(sm_scale).masked_fill_(~used[:, None], -torch.inf)
    lse = s.logsumexp(-1)
    p = (s - lse[..., None]).exp_()

    unit_values = values.float()
    unit = torch.maximum(unit_values.amax(1, keepdim=True), -unit_values.amin(1, keepdim=True))
    unit = torch.where(unit > 0, unit, 1.0)  # [r, 1, ckv]
    unit_values /= unit
    unit = unit.double()
    if split is None:
        out = p @ values
        partials = (p.float() @ unit_values.abs()).double() * unit
        partials_sq = partials.square()
    else:
        out, partials, partials_sq = _by_pieces(p, values, used, split)

    p32 = p.float()
    weights = [p32, p32 * p32]
    key_norm = keys.norm(dim=-1)
    # An infinite key has weight 0 or makes its row NaN: either way no bound needs its norm.
    key_norm = torch.where(key_norm.isfinite(), key_norm, 0.0)
    part = {"out": out, "lse": lse, "partials": partials, "partials_sq": partials_sq}
    part["logit_reach"] = abs(sm_scale) * q.norm(dim=-1) * key_norm.amax(-1, keepdim=True)
    if not exact:
        noise_sq = (q.square().float() @ keys.float().square_().mT).mul_(sm_scale * sm_scale)
        weights.append(weights[1] * noise_sq)
        s0 = s.masked_fill(~used[:, None], 0.0)
        centred = s0 - (p * s0).sum(-1, keepdim=True)
        part["logit_noise_max"] = noise_sq.amax(-1).sqrt().double()
        part["logit_fourth"] = (p * centred.square().square_()).sum(-1).sqrt()
        linear = torch.cat([(p * centred).float(), weights[2]], 1) @ unit_values
        shift, noise_v = (linear.double() * unit).chunk(2, 1)
        part["value_shift"] = shift
    squares = torch.cat(weights, 1) @ unit_values.square()
    moments = (squares.double() * unit * unit).chunk(len(weights), 1)
    part["value_sq"], part["value_sq_p"] = moments[:2]
    if not exact:
        total = weights[2].sum(-1, keepdim=True).double()
        noise = moments[2] - 2 * out * noise_v + out * out * total
        part["logit_noise_sq"] = noise.clamp_(min=0)
    return part


def _by_pieces(
    p: torch.Tensor, values: torch.Tensor, used: torch.Tensor, split: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """out, and the sums of its pieces' magnitudes and squares (0 in rows of one piece)."""
    n = p.shape[-1]
    if n <= split:
        out = p @ values
        return out, torch.zeros_like(out), torch.zeros_like(out)
    head, tail = n // split * split, n % split
    pieces = p[..., :head].unflatten(-1, (-1, split)).transpose(1, 2) @ (
        values[:, :head].unflatten(1, (-1, split))
    )  # [r, pieces, heads, ckv]
    out, squares, sizes = pieces.sum(1), pieces.square().sum(1), pieces.abs_().sum(1)
    if tail:
        last = p[..., head:] @ values[:, head:]
        out, squares, sizes = out + last, squares + last.square(), sizes + last.abs_()
    several = (used.sum(1) > split)[:, None, None]
    return out, torch.where(several, sizes, 0.0), torch.where(several, squares, 0.0)


def _slots(
    cache: PagedBytes,
    block_table: torch.Tensor,
    request: torch.Tensor,
    tokens: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cache rows [r, n] int64 of the rows' tokens, padded at the end, and which are used."""
    device = block_table.device
    lists = [row.to(device, torch.int64) for row in tokens]
    padded = torch.nn.utils.rnn.pad_sequence(lists, batch_first=True)
    sizes = torch.tensor([len(row) for row in tokens], device=device)
    used = torch.arange(padded.shape[1], device=device) < sizes[:, None]
    position = torch.where(used, padded, padded[:, :1])  # padding repeats a token of the row
    limit = block_table.shape[1] * cache.block_size
    if not 0 <= int(position.min()) <= int(position.max()) < limit:
        raise ValueError(
            f"tokens {int(position.min())}..{int(position.max())}: a block table of "
            f"{block_table.shape[1]} blocks of {cache.block_size} holds 0..{limit - 1}"
        )
    block = block_table[request.long()[:, None], position // cache.block_size].long()
    return block * cache.block_stride_rows + position % cache.block_size, used


def _chunks(lengths: Sequence[int], head_dim: int, chunk_rows: int) -> Iterator[list[int]]:
    """Rows with tokens, longest first, in groups; a row far shorter than the longest of its
    group starts a new one, for padding costs as much as tokens do."""
    group: list[int] = []
    longest = 0
    for row in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        length = lengths[row]
        full = len(group) == chunk_rows or (len(group) + 1) * longest * head_dim > _CHUNK_ELEMENTS
        if group and (full or not length or 4 * length < longest - 128):
            yield group
            group = []
        if not length:
            return
        longest = longest if group else length
        group.append(row)
    if group:
        yield group


def _scatter(golden: Golden, index: torch.Tensor, part: dict[str, torch.Tensor]) -> None:
    for target in (golden, golden.decode):
        for field in fields(target) if target else ():
            if field.name in part:
                getattr(target, field.name)[index] = part[field.name]


def _check(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    cache: PagedBytes,
    block_table: torch.Tensor,
    request: torch.Tensor,
    tokens: Sequence[torch.Tensor],
    split: int | None,
    chunk_rows: int,
) -> None:
    if q_nope.shape[2:] != (cache.head_dim_ckv,):
        raise ValueError(f"q_nope {[*q_nope.shape]}: need [rows, heads, {cache.head_dim_ckv}]")
    if q_pe.shape != (*q_nope.shape[:2], cache.head_dim_kpe):
        raise ValueError(
            f"q_pe {[*q_pe.shape]}: need {[*q_nope.shape[:2], cache.head_dim_kpe]} "
            f"for q_nope {[*q_nope.shape]}"
        )
    rows = q_nope.shape[0]
    if block_table.ndim != 2 or request.shape != (rows,) or len(tokens) != rows:
        raise ValueError(
            f"block_table {[*block_table.shape]}, request {[*request.shape]}, {len(tokens)} "
            f"token lists: need [requests, blocks], [{rows}] and {rows}"
        )
    for row, picked in enumerate(tokens):
        if picked.ndim != 1 or picked.is_floating_point():
            raise ValueError(
                f"tokens of row {row}: {picked.dtype} {[*picked.shape]}, need 1-D integers"
            )
    if rows and not 0 <= int(request.min()) <= int(request.max()) < block_table.shape[0]:
        raise ValueError(
            f"requests {int(request.min())}..{int(request.max())}: the block table has "
            f"{block_table.shape[0]}"
        )
    if (split is not None and split < 1) or chunk_rows < 1:
        raise ValueError(f"split {split}, chunk_rows {chunk_rows}: at least 1 (split may be None)")
