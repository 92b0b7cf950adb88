"""The rows of one step: one or more of each decoding sequence, and chunks of prompts. Long prompts
are cut, so that steps stay short. Plain integers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from inference.engine.sequence import Sequence, SequenceState

CHUNK_MULTIPLE = 16
"""Rows that products take at once: two tiles on CPU (``native/cpp/activations.h``), an operand of a
matrix instruction on CUDA. A chunk that ends elsewhere pays for the rest."""

SMALLEST_CHUNK = 32
"""Fewer rows are not worth reading a projection's weights."""


def end_of_chunk(start: int, length: int, budget: int) -> int:
    """Returns the end of a chunk of at most ``budget`` tokens that begins at ``start`` of
    ``length``. The rest of the prompt is divided evenly over its steps: a short last step reads all
    the weights for few rows."""
    left = length - start
    num_steps = -(-left // budget)
    end = start + -(-left // num_steps)
    if num_steps == 1:
        return end
    rounded_up = -(-end // CHUNK_MULTIPLE) * CHUNK_MULTIPLE
    if rounded_up - start <= budget:
        return min(rounded_up, length)
    rounded_down = end // CHUNK_MULTIPLE * CHUNK_MULTIPLE
    return rounded_down if rounded_down > start else end


NO_DRAFTS: Mapping[Sequence, list[int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Tokens ``[start, end)`` of a sequence; ``is_last`` when its logits are wanted."""

    sequence: Sequence
    start: int
    end: int
    is_last: bool

    @property
    def scored(self) -> range:
        """Positions whose successors' logprobs are wanted."""
        sequence = self.sequence
        first = max(self.start, sequence.num_scored_tokens)
        last = sequence.num_scored_tokens + sequence.num_tokens_to_score
        return range(first, max(first, min(self.end, last)))


@dataclass(slots=True)
class Schedule:
    """One step's rows. Valid until the next call of ``schedule``."""

    decodes: list[Sequence] = field(default_factory=list)
    prefills: list[PrefillChunk] = field(default_factory=list)
    drafts: Mapping[Sequence, list[int]] = field(default_factory=lambda: NO_DRAFTS)
    """Draft tokens of some of ``decodes``, one row each; never an empty list, and only in a step
    without prompts."""
    has_lost_rows: bool = False
    """Whether its step is under way with rows of sequences that have ended since: one of those may
    make it raise."""

    @property
    def is_empty(self) -> bool:
        return not self.decodes and not self.prefills

    @property
    def sequences(self) -> list[Sequence]:
        return self.decodes + [chunk.sequence for chunk in self.prefills]

    @property
    def has_ended_rows(self) -> bool:
        """Whether a sequence ended after the step was launched."""
        return any(s.state is SequenceState.ENDED for s in self.sequences)

    @property
    def has_long_queries(self) -> bool:
        """Whether a decoding sequence has several rows."""
        if self.drafts:
            return True
        if not self.decodes or self.decodes[0].state_slot is None:
            return False  # only states lag
        return any(sequence.num_lagging for sequence in self.decodes)

    @property
    def decode_query_lens(self) -> list[int]:
        """The number of rows of each of ``decodes``: those that its state lags behind, its last
        token's, and its drafts'."""
        drafts = self.drafts
        return [s.num_lagging + 1 + len(drafts.get(s, ())) for s in self.decodes]

    @property
    def decode_rows(self) -> list[Sequence]:
        """The sequence of each decode row."""
        if not self.has_long_queries:
            return self.decodes
        queries = zip(self.decodes, self.decode_query_lens, strict=True)
        return [sequence for sequence, query_len in queries for _ in range(query_len)]

    @property
    def num_decode_rows(self) -> int:
        return sum(self.decode_query_lens) if self.has_long_queries else len(self.decodes)

    def without_ended_rows(self) -> Schedule:
        ended = SequenceState.ENDED
        return Schedule(
            decodes=[s for s in self.decodes if s.state is not ended],
            prefills=[chunk for chunk in self.prefills if chunk.sequence.state is not ended],
            drafts={s: draft for s, draft in self.drafts.items() if s.state is not ended},
        )

    @property
    def num_prefill_tokens(self) -> int:
        return sum(chunk.end - chunk.start for chunk in self.prefills)

    @property
    def has_image_rows(self) -> bool:
        return any(
            chunk.sequence.images is not None
            and bool(chunk.sequence.images.overlapping(chunk.start, chunk.end))
            for chunk in self.prefills
        )

    @property
    def num_scored_tokens(self) -> int:
        return sum(len(chunk.scored) for chunk in self.prefills)

    @property
    def sampled(self) -> list[Sequence]:
        """Sequences that get a token from this step, in the order of the logits' rows."""
        return self.decodes + [chunk.sequence for chunk in self.prefills if chunk.is_last]
