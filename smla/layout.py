"""A step's batch: how many query tokens and how much context each request has, host and device.

vLLM knows this as CommonAttentionMetadata.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from smla import errors
from smla.lengths import Ints

_DECODE_THRESHOLDS = ((32, 128), (64, 256))
_LARGEST_DECODE_THRESHOLD = 1024
_HOST = torch.device("cpu")


def decode_threshold(num_heads: int) -> int:
    """Return the most query tokens a request may have to count as a decode.

    The fewer heads a rank has, the sooner dense MHA pays: 128 tokens up to 32 heads, 256 up to
    64, else 1024 (figures of vLLM 0.33.0's sparse MLA builder).
    """
    for heads, threshold in _DECODE_THRESHOLDS:
        if num_heads <= heads:
            return threshold
    return _LARGEST_DECODE_THRESHOLD


@dataclass(frozen=True)
class BatchLayout:
    """One step's requests, decodes first.

    query_start_loc_cpu: int32 [requests + 1] on the host, 0 first, monotone.
    query_start_loc: int32 [requests + 1] on the device; may distribute the rows differently
        among the verification requests when `adaptive` (same total, same decode/prefill border).
    seq_lens: int32 [requests] on the device: all tokens of each request, this step's included.
    block_table: int32 [requests, blocks] on the device.
    seq_lens_cpu_upper_bound: int32 [requests] on the host, at least seq_lens each and exact for
        prefills; None makes the builder read the exact lengths from the device, which waits.
    num_padded_tokens: rows that the tensors of this step have, padding included (graphs); None
        for as many as are live.
    adaptive: the device redistributed the draft budget (adaptive verification).
    eager: no captured graph is replayed for this step, so its block table may be another tensor
        than the one that captured graphs read.

    Padding requests have no query tokens, length 0 and bound 0.
    """

    query_start_loc_cpu: Tensor
    query_start_loc: Tensor
    seq_lens: Tensor
    block_table: Tensor
    seq_lens_cpu_upper_bound: Tensor | None = None
    num_padded_tokens: int | None = None
    adaptive: bool = False
    eager: bool = False

    @property
    def num_requests(self) -> int:
        """Requests, padding requests included."""
        return self.query_start_loc_cpu.numel() - 1

    @property
    def num_tokens(self) -> int:
        """Live rows."""
        return int(self.query_start_loc_cpu[-1])

    @property
    def padded_tokens(self) -> int:
        """Rows of this step's tensors."""
        return self.num_tokens if self.num_padded_tokens is None else self.num_padded_tokens

    def check(self, max_tokens: int, device: torch.device) -> "HostLengths":
        """Return what the host knows of this batch's lengths.

        Raises the error that fits, before anything is written, unless the batch is sound. Values
        that live on the device are not looked at: that would wait for it.
        """
        _check_vector("query_start_loc_cpu", self.query_start_loc_cpu, None, _HOST)
        starts = self.query_start_loc_cpu.numpy()
        count = starts.size - 1
        if count < 0:
            raise errors.ShapeError(
                "query_start_loc_cpu",
                found="no entry",
                allowed="[requests + 1], 0 first",
                remedy="pass at least the leading 0",
            )
        live = int(starts[-1])
        q_lens = query_lengths("query_start_loc_cpu", starts, total=live)
        _check_vector("query_start_loc", self.query_start_loc, count + 1, device)
        _check_vector("seq_lens", self.seq_lens, count, device)
        table = self.block_table
        if table.dim() != 2 or table.shape[0] < count:
            raise errors.ShapeError(
                "block_table",
                found=tuple(table.shape),
                allowed=f"[>= {count} requests, blocks]",
                remedy="pass one row of block numbers per request",
            )
        _check_kind("block_table", table, device)
        if table.shape[1] and table.stride(1) != 1:
            raise errors.StrideError(
                "block_table",
                found=table.stride(),
                allowed="unit stride within a row",
                remedy="pass a row-major table",
            )
        padded = live if self.num_padded_tokens is None else self.num_padded_tokens
        if not live <= padded <= max_tokens:
            raise errors.CapacityError(
                "rows of the batch",
                found=f"{live} live, {padded} padded",
                allowed=f"live <= padded <= max_tokens = {max_tokens}",
                remedy="split the batch, or construct with a larger max_tokens",
            )
        longest = int(q_lens.max()) if count else 0
        bounds = self.seq_lens_cpu_upper_bound
        if bounds is None:
            return HostLengths(starts, q_lens, None, live, padded, longest)
        _check_vector("seq_lens_cpu_upper_bound", bounds, count, _HOST)
        known = bounds.numpy()
        check_lengths(q_lens, known)
        return HostLengths(starts, q_lens, known, live, padded, longest)


@dataclass(frozen=True, slots=True)
class HostLengths:
    """What the host knows of a batch, checked.

    starts [requests + 1], q_lens [requests]: int32. seq_lens: int32 [requests], upper bounds of
    the lengths, or None. num_tokens: live rows; padded_tokens: rows of the step's tensors.
    longest: the most query tokens of a request.
    """

    starts: Ints
    q_lens: Ints
    seq_lens: Ints | None
    num_tokens: int
    padded_tokens: int
    longest: int

    def split(self, threshold: int) -> tuple[int, int]:
        """Return how many leading requests are decodes, and how many rows those have.

        The decodes are the longest prefix of requests with at most `threshold` query tokens.
        """
        if self.longest <= threshold:
            return self.q_lens.size, self.num_tokens
        requests = int((self.q_lens > threshold).argmax())
        return requests, int(self.starts[requests])


def query_lengths(name: str, starts: Ints, *, total: int) -> Ints:
    """Return each request's query tokens.

    Raises errors.QueryStartLocError unless `starts` is a running sum from 0 to `total`.
    """
    q_lens = starts[1:] - starts[:-1]
    if starts[0] != 0 or starts[-1] != total or (q_lens.size and q_lens.min() < 0):
        count = starts.size
        raise errors.QueryStartLocError(
            name,
            found=starts.tolist() if count <= 17 else f"{count} values, {int(starts[-1])} last",
            allowed=f"a running sum: 0 first, never falling, {total} rows last",
            remedy="build it as the cumulative sum of query lengths",
        )
    return q_lens


def check_lengths(q_lens: Ints, lengths: Ints) -> None:
    """Raise errors.SequenceLengthError where a length is below its query count or negative."""
    short = lengths < q_lens
    if short.any():
        request = int(np.argmax(short))
        raise errors.SequenceLengthError(
            f"length of request {request}",
            found=int(lengths[request]),
            allowed=f"at least its {int(q_lens[request])} query tokens of this step",
            remedy="count this step's tokens in seq_lens (and in its upper bound)",
        )


def _check_vector(name: str, tensor: Tensor, length: int | None, device: torch.device) -> None:
    _check_kind(name, tensor, device)
    if tensor.dim() != 1 or (length is not None and tensor.numel() != length):
        raise errors.ShapeError(
            name,
            found=tuple(tensor.shape),
            allowed="one dimension" if length is None else f"[{length}]",
            remedy="slice the buffer to this step's requests",
        )
    if tensor.numel() > 1 and tensor.stride(0) != 1:
        raise errors.StrideError(
            name,
            found=tensor.stride(),
            allowed="contiguous",
            remedy="pass a contiguous tensor",
        )


def _check_kind(name: str, tensor: Tensor, device: torch.device) -> None:
    if tensor.dtype != torch.int32:
        raise errors.DtypeError(
            name, found=tensor.dtype, allowed="torch.int32", remedy="convert it once, upstream"
        )
    if tensor.device != device:
        raise errors.DeviceError(
            name, found=tensor.device, allowed=str(device), remedy=f"keep it on {device}"
        )
