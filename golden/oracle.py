"""Dense attention in float64 from token lists and raw cache bytes.

Per row and head, over the selected tokens i of the row's request, with k_i the decoded cache
row and v_i its compressed part::

    s_i = sm_scale * (q_nope, q_pe) . k_i        p = softmax(s)        out = sum p_i v_i

NaN and Inf in selected rows go wherever this arithmetic takes them. Beside the answer stand
the sums from which `golden.tolerance` bounds an honest engine's error. Three digits of those
are plenty: they are formed in float32, from values that are normalised per row and dimension
where squares would overflow or vanish.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import NoReturn

import torch

from golden.answer import DecodeSums, Golden
from golden.cache import GROUP, PagedBytes, is_power_of_two
from golden.refusal import refusal

_CHUNK_ELEMENTS = 2**23  # decoded cache elements held at a time: 64 MiB as float64
_FINE = (2.0**-20, 2.0**20)  # largest values of a dimension that float32 needs no normalising for


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
    rows, _, ckv = q_nope.shape
    q = torch.cat([q_nope.double(), q_pe.double()], dim=-1)
    lengths = [len(row) for row in tokens]
    exact, factors = cache.decodes_exactly, _factors(cache)
    order, parts = [], []
    for chosen in _chunks(lengths, cache.head_dim, chunk_rows):
        whole = len(chosen) == rows
        index = torch.arange(rows) if whole else torch.tensor(chosen)
        index = index.to(device)
        owners = request if whole else request[index]
        picked = tokens if whole else [tokens[i] for i in chosen]
        slots, used = _slots(cache, block_table, owners, picked)
        keys = cache.gather(slots)
        q_part = q if whole else q[index]
        part = _attend_chunk(q_part, keys, used, ckv, sm_scale, split, exact, factors)
        order.append(index)
        parts.append(part)
    total = parts[0] if len(parts) == 1 and len(order[0]) == rows else None
    if total is None:
        blank = _blank(torch.tensor([not n for n in lengths], device=device), q, ckv, exact)
        order.append(blank.pop("rows"))
        place = torch.cat(order).argsort()
        total = {
            name: torch.cat([part[name] for part in (*parts, blank)]).index_select(0, place)
            for name in blank
        }
    decode = {field.name: total.pop(field.name) for field in fields(DecodeSums) if not exact}
    return Golden(
        **total,
        count=torch.tensor(lengths, dtype=torch.int64, device=device),
        decode=None if exact else DecodeSums(**decode),
        head_dim=cache.head_dim,
    )


def _factors(cache: PagedBytes) -> list[slice]:
    """The parts of a row that are decoded with rounding and by factors of their own: each group,
    and the rope part; none where all parts have one factor."""
    if cache.fmt != "e4m3_group":
        return []
    parts = [slice(at, at + GROUP) for at in range(0, cache.head_dim_ckv, GROUP)]
    if cache.head_dim_kpe and not is_power_of_two(cache.scale):
        parts.append(slice(cache.head_dim_ckv, cache.head_dim))
    return parts


def _blank(none: torch.Tensor, q: torch.Tensor, ckv: int, exact: bool) -> dict[str, torch.Tensor]:
    """What `_attend_chunk` returns, for rows without tokens, and their numbers as "rows"."""
    rows, heads = none.nonzero().flatten(), q.shape[1]
    of_heads = q.new_zeros(len(rows), heads)
    of_values = torch.zeros((len(rows), heads, ckv), dtype=torch.float32, device=q.device)
    blank = {"rows": rows, "out": of_values.double(), "lse": of_heads - torch.inf}
    blank["logit_reach"] = of_heads
    blank |= dict.fromkeys(("value_sq", "value_sq_p", "partials", "partials_sq"), of_values)
    if not exact:
        blank |= dict.fromkeys(("value_shift", "logit_noise_sq"), of_values)
        blank |= dict.fromkeys(("logit_noise_max", "logit_fourth"), of_heads)
    return blank


def _attend_chunk(
    q: torch.Tensor,  # [r, heads, head_dim]
    keys: torch.Tensor,  # [r, n, head_dim]; a token of the row where unused
    used: torch.Tensor,  # bool [r, n], at least one in each row
    ckv: int,
    sm_scale: float,
    split: int | None,
    exact: bool,
    factors: Sequence[slice] = (),
) -> dict[str, torch.Tensor]:
    """Golden's and DecodeSums' fields, by name, for rows that have tokens."""
    unused = None if bool(used.all()) else ~used
    keys32 = keys.float()
    largest = keys32.abs().amax(1)  # [r, head_dim]
    if unused is not None and not bool(largest.isfinite().all()):
        # Elsewhere a weight of 0 suffices; it would make NaN of these.
        padding = unused.nonzero(as_tuple=True)
        keys[padding], keys32[padding] = 0.0, 0.0
        largest = keys32.abs().amax(1)
    values, unit_values, unit = keys[..., :ckv], keys32[..., :ckv], None
    if not bool(((largest == 0) | (largest > _FINE[0]) & (largest < _FINE[1])).all()):
        unit = largest[:, None, :ckv]
        unit = torch.where(unit > 0, unit, 1.0)  # [r, 1, ckv]
        unit_values = unit_values / unit
        unit = unit.double()

    def scaled(sums: torch.Tensor, power: int = 1) -> torch.Tensor:
        return sums if unit is None else sums.double() * unit**power

    s = (keys @ q.mT).mT.mul_(sm_scale)
    if unused is not None:
        s.masked_fill_(unused[:, None], -torch.inf)
    lse = s.logsumexp(-1)
    p = (s - lse[..., None]).exp_()
    p32 = p.float()
    if split is None:
        out = p @ values
        partials = scaled(p32 @ unit_values.abs())
        partials_sq = partials.square()
    else:
        out, partials, partials_sq = _by_pieces(p, values, used, split)

    key_norm = (keys32 if unit is None else keys).norm(dim=-1)
    # An infinite key has weight 0 or makes its row NaN: either way no bound needs its norm.
    key_norm = torch.where(key_norm.isfinite(), key_norm, 0.0).amax(-1, keepdim=True).double()
    part = {"out": out, "lse": lse, "partials": partials, "partials_sq": partials_sq}
    part["logit_reach"] = abs(sm_scale) * q.norm(dim=-1) * key_norm
    moments = scaled(torch.cat([p32, p32 * p32], 1) @ unit_values.square(), 2)
    part["value_sq"], part["value_sq_p"] = moments.chunk(2, 1)
    if not exact:
        unit_out = out if unit is None else out / unit
        sums = _decode_sums(p, s, q, keys, unit_values, unit_out, sm_scale, unused, factors)
        sums["value_shift"] = scaled(sums["value_shift"])
        sums["logit_noise_sq"] = scaled(sums["logit_noise_sq"], 2)
        part |= sums
    return part


def _decode_sums(
    p: torch.Tensor,  # [r, heads, n]
    s: torch.Tensor,  # [r, heads, n]
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,  # float32 [r, n, ckv]
    out: torch.Tensor,  # [r, heads, ckv], of those values
    sm_scale: float,
    unused: torch.Tensor | None,
    factors: Sequence[slice],
) -> dict[str, torch.Tensor]:
    """DecodeSums' fields by name."""
    # With many factors one token may weigh all, and the noise is what two large sums leave.
    kind = torch.float64 if factors else torch.float32
    inexact = slice(0, factors[-1].stop if factors else None)  # a rope part behind it is exact
    squares = q[..., inexact].square().to(kind) @ keys[..., inexact].to(kind).square().mT
    noise_sq = squares.mul_(sm_scale * sm_scale)
    shares = [(keys[..., part] @ q[..., part].mT).mT.mul_(sm_scale) for part in factors]
    for share in shares:  # what each factor's part of a row adds to the logits
        noise_sq += share.square()

    def about_mean(share: torch.Tensor) -> torch.Tensor:
        s0 = share if unused is None else share.masked_fill(unused[:, None], 0.0)
        centred = s0 - (p * s0).sum(-1, keepdim=True)
        return centred

    whole = about_mean(s)
    shifts = [(p * one).float() @ values for one in map(about_mean, shares)]
    # Factors of their own err apart, so their shifts may add up.
    shift = torch.stack(shifts).abs_().sum(0) if shifts else (p * whole).float() @ values
    weights, values, out = p.to(kind).square() * noise_sq, values.to(kind), out.to(kind)
    noise = weights @ values.square() - 2 * out * (weights @ values)
    noise += out * out * weights.sum(-1, keepdim=True)
    return {
        "value_shift": shift,
        "logit_noise_sq": noise.clamp_(min=0),
        "logit_noise_max": noise_sq.amax(-1).sqrt().double(),
        "logit_fourth": (p * whole.square().square_()).sum(-1).sqrt(),
    }


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
            refusal(
                "tokens",
                f"{int(position.min())}..{int(position.max())}",
                f"0..{limit - 1}, of {block_table.shape[1]} blocks of {cache.block_size}",
                "pass positions in the request, or a longer block table",
            )
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
    def refuse(what: str, found: object, allowed: str, fix: str) -> NoReturn:
        raise ValueError(refusal(what, found, allowed, fix))

    shape, parts = [*q_nope.shape], "split the queries as the cache's rows are split"
    if shape[2:] != [cache.head_dim_ckv]:
        refuse("q_nope", shape, f"[rows, heads, {cache.head_dim_ckv}]", parts)
    if [*q_pe.shape] != [*shape[:2], cache.head_dim_kpe]:
        refuse("q_pe", [*q_pe.shape], f"{[*shape[:2], cache.head_dim_kpe]}", parts)
    rows, requests = shape[0], block_table.shape[0] if block_table.ndim == 2 else 0
    if block_table.ndim != 2 or request.shape != (rows,) or len(tokens) != rows:
        found = f"{[*block_table.shape]}, {[*request.shape]}, {len(tokens)} lists"
        allowed = f"[requests, blocks], [{rows}], {rows} lists"
        refuse("block_table, request, tokens", found, allowed, "pass a request and a list per row")
    for row, picked in enumerate(tokens):
        if picked.ndim != 1 or picked.is_floating_point():
            found, fix = f"{picked.dtype} {[*picked.shape]}", "pass the row's positions"
            refuse(f"tokens of row {row}", found, "1-D integers", fix)
    if rows and not 0 <= int(request.min()) <= int(request.max()) < requests:
        found = f"{int(request.min())}..{int(request.max())}"
        refuse("request", found, f"0..{requests - 1}", "pass a line of the block table per row")
    if (split is not None and split < 1) or chunk_rows < 1:
        found, allowed = f"{split}, {chunk_rows}", "1 or more each, split None too"
        refuse("split, chunk_rows", found, allowed, "pass tokens of a piece and rows at a time")
