"""The builder: from a step's batch to lengths, a plan and the metadata all layers share.

vLLM knows these as FlashInferMLASparseSM90Builder and -Metadata.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from smla import errors, lengths
from smla.config import SparseMLAConfig
from smla.engines.base import Engine
from smla.layout import BatchLayout, HostLengths, check_lengths, decode_threshold, query_lengths
from smla.plan_state import PlanState
from smla.runtime import Runtime


@dataclass(frozen=True)
class SparseMLAMetadata:
    """What a step's forwards need; belongs to the newest build of its plan state only.

    num_rows: rows that smla computes (the decode prefix when prefills go to dense MHA, else all
        live rows). num_padded_tokens: rows of the step's tensors.
    num_decodes, num_decode_tokens: leading requests that are decodes, and their rows.
    prefill_to_mha: the caller computes the rows behind num_decode_tokens with dense MHA.
    """

    state: PlanState
    serial: int
    num_rows: int
    num_tokens: int
    num_padded_tokens: int
    num_decodes: int
    num_decode_tokens: int
    prefill_to_mha: bool
    block_table: Tensor

    @property
    def num_prefill_tokens(self) -> int:
        """Live rows behind the decode prefix."""
        return self.num_tokens - self.num_decode_tokens


def routes_prefill_to_mha(config: SparseMLAConfig, largest_prefill_bound: int) -> bool:
    """Return whether the prefill rows of a batch go to dense MHA.

    The one predicate for builder and layer. For contexts up to index_topk everything is
    selected, so dense attention gives the same result and is faster.
    largest_prefill_bound: the largest upper bound of a prefill request's length; 0 without any.
    """
    return not config.force_mqa and 0 < largest_prefill_bound <= config.index_topk


class SparseMLABuilder:
    """Owns the plan state of one attention group and refreshes it every step.

    Not thread-safe. A build and the forwards of its metadata belong to one stream: forward refuses
    another one. A later build may be on another stream, and then queues behind what stands on the
    former build's. Replays of graphs are the engine's, and so is the stream that they run on.
    """

    def __init__(self, config: SparseMLAConfig, runtime: Runtime, engine: Engine) -> None:
        self.config, self.runtime = config, runtime
        self.state = PlanState(config, runtime, engine)
        self.decode_threshold = decode_threshold(config.num_heads)

    def build(self, batch: BatchLayout) -> SparseMLAMetadata:
        """Plan this step and return its metadata; outside of graph capture, once per step.

        Raises one of smla.errors (see BatchLayout.check, PlanState.update and Captures.check)
        before anything is written, and leaves the state of the step before usable (see
        `smla.errors` for the one exception).
        """
        self.state.refuse_capture()
        host = batch.check(self.config.max_tokens, self.runtime.device)
        if not batch.eager:
            self.state.captures.check(batch.block_table)
        exact = host.seq_lens is None
        if exact:
            host = self._read_lengths(batch, host)
        seq_lens = host.seq_lens
        assert seq_lens is not None
        decodes, decode_rows = host.split(self.decode_threshold)
        largest = 0
        if decodes < host.q_lens.size:
            prefills = seq_lens[decodes:][host.q_lens[decodes:] > 0]
            largest = int(prefills.max()) if prefills.size else 0
        to_mha = routes_prefill_to_mha(self.config, largest)
        rows = decode_rows if to_mha else host.num_tokens
        if exact:
            contexts = lengths.row_contexts(host.starts, seq_lens)
            wanted = lengths.valid_counts(contexts, self.config.index_topk, self.config.index_kpool)
        else:
            wanted = lengths.row_bounds(
                host.starts,
                seq_lens,
                max_valid=self.config.max_valid,
                num_decode_requests=decodes,
                adaptive=batch.adaptive,
            )
        self.state.update(
            wanted[:rows].astype(np.int32),
            exact=exact,
            query_start_loc=batch.query_start_loc,
            seq_lens=batch.seq_lens,
        )
        return SparseMLAMetadata(
            state=self.state,
            serial=self.state.serial,
            num_rows=rows,
            num_tokens=host.num_tokens,
            num_padded_tokens=host.padded_tokens,
            num_decodes=decodes,
            num_decode_tokens=decode_rows,
            prefill_to_mha=to_mha,
            block_table=batch.block_table,
        )

    def _read_lengths(self, batch: BatchLayout, host: HostLengths) -> HostLengths:
        """Return the exact lengths, read from the device."""
        starts = self.runtime.read(batch.query_start_loc).numpy()
        exact = self.runtime.read(batch.seq_lens).numpy()
        q_lens = query_lengths("query_start_loc", starts, total=host.num_tokens)
        if not batch.adaptive and not np.array_equal(starts, host.starts):
            raise errors.QueryStartLocError(
                "query_start_loc",
                found="another split on the device than on the host",
                allowed="the same, unless the batch is adaptive",
                remedy="upload the host's, or say adaptive=True",
            )
        check_lengths(q_lens, exact)
        longest = int(q_lens.max()) if q_lens.size else 0
        return HostLengths(starts, q_lens, exact, host.num_tokens, host.padded_tokens, longest)
