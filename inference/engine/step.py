"""One step, without tensors: its rows, the tokens sampled for them, the events they become, and the
speeds of the last steps.

    Schedule ─run, sample─▶ Sampled ─emit_step─▶ PendingOutputs ─▶ the neuron

Long prompts are cut into chunks, so that steps stay short.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from inference.engine.errors import NumericalFault
from inference.engine.sequence import Sequence, SequenceState
from inference.protocol.engine import (
    EngineStats,
    SequenceCancelled,
    SequenceFailed,
    SequencesEmbedded,
    SequenceStep,
    SequenceUsage,
    StepOutputs,
    TokenLogprob,
)
from inference.protocol.load import PrefillSpeed

CHUNK_MULTIPLE = 16
"""Rows that products take at once: two tiles on CPU (``native/cpp/activations.h``), an operand of a
matrix instruction on CUDA. A chunk that ends elsewhere pays for the rest."""

SMALLEST_CHUNK = 32
"""Fewer rows are not worth reading a projection's weights."""


def end_of_chunk(start: int, length: int, budget: int) -> int:
    """The rest of the prompt is divided evenly over its steps: a short last step reads all the
    weights for few rows."""
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
    """Never has an empty list, and only in a step without prompts."""
    has_lost_rows: bool = False
    """Whether ended sequences' rows are under way: one of those may make the step raise."""

    @property
    def is_empty(self) -> bool:
        return not self.decodes and not self.prefills

    @property
    def sequences(self) -> list[Sequence]:
        return self.decodes + [chunk.sequence for chunk in self.prefills]

    @property
    def has_ended_rows(self) -> bool:
        return any(s.state is SequenceState.ENDED for s in self.sequences)

    @property
    def has_long_queries(self) -> bool:
        if self.drafts:
            return True
        if not self.decodes or self.decodes[0].state_slot is None:
            return False  # only states lag
        return any(sequence.num_lagging for sequence in self.decodes)

    @property
    def decode_query_lens(self) -> list[int]:
        """Rows for the tokens that its state lags behind, its last token and its drafts."""
        drafts = self.drafts
        return [s.num_lagging + 1 + len(drafts.get(s, ())) for s in self.decodes]

    @property
    def decode_rows(self) -> list[Sequence]:
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
        """In the order of the logits' rows."""
        return self.decodes + [chunk.sequence for chunk in self.prefills if chunk.is_last]


@dataclass(slots=True)
class AcceptedDrafts:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RowEnd:
    """Why a sequence does not go on after its row: what its grammar has of it is whole, or
    ``code`` and ``message`` for the client."""

    code: str = ""
    message: str = ""
    has_token: bool = False
    """Whether the row's token belongs to the answer."""

    @classmethod
    def of_numbers(cls, num_logits: int) -> RowEnd:
        fault = NumericalFault
        message = f"{fault.client_message}: {num_logits} logits are not finite"
        return cls(fault.code, message)

    @classmethod
    def of_grammar(cls, problem: str) -> RowEnd:
        return cls("invalid_grammar", problem)


@dataclass(frozen=True, slots=True)
class Sampled:
    """A sequence with drafts has the row of its last token that counts."""

    token_ids: list[int]
    ends: dict[int, RowEnd]
    logprobs: dict[int, TokenLogprob]
    prompt_logprobs: dict[str, list[TokenLogprob]] = field(default_factory=dict)
    """By sequence id."""
    accepted: dict[int, AcceptedDrafts] = field(default_factory=dict)

    @property
    def num_failed(self) -> int:
        """Rows whose logits were not numbers."""
        return sum(end.code == NumericalFault.code for end in self.ends.values())

    @property
    def num_accepted_drafts(self) -> int:
        return sum(len(drafts.token_ids) for drafts in self.accepted.values())


Output = SequenceStep | SequencesEmbedded | SequenceFailed | SequenceCancelled
NOTHING_USED = SequenceUsage()


class PendingOutputs:
    def __init__(self) -> None:
        self._outputs: list[Output] = []

    def __bool__(self) -> bool:
        return bool(self._outputs)

    def add(self, output: Output) -> None:
        self._outputs.append(output)

    def fail(
        self, sequence_id: str, code: str, message: str, used: SequenceUsage = NOTHING_USED
    ) -> None:
        self.add(SequenceFailed(sequence_id=sequence_id, code=code, message=message, used=used))

    def take(self, stats: EngineStats) -> StepOutputs:
        outputs, self._outputs = self._outputs, []
        return StepOutputs(outputs=outputs, stats=stats)


def emit_step(
    schedule: Schedule, sampled: Sampled, outputs: PendingOutputs, step_end_s: float
) -> tuple[list[Sequence], list[tuple[Sequence, RowEnd]]]:
    """Returns the sequences whose answer is done, and those that fail."""
    _emit_accepted(schedule, sampled, outputs)
    for sequence_id, logprobs in sampled.prompt_logprobs.items():
        outputs.add(SequenceStep(sequence_id=sequence_id, token_ids=[], prompt_logprobs=logprobs))
    ended: list[Sequence] = []
    failed: list[tuple[Sequence, RowEnd]] = []
    for row, sequence in enumerate(schedule.sampled):
        if sequence.state is SequenceState.ENDED:
            continue  # since the step was launched
        end = sampled.ends.get(row)
        if end is not None and end.code:
            failed.append((sequence, end))
            continue
        token_id = sequence.token_ids[-1]
        is_stop = token_id in sequence.stop_ids or (end is not None and not end.has_token)
        is_complete = is_stop or end is not None
        is_end = is_complete or len(sequence.token_ids) >= sequence.max_length
        num_output_tokens = sequence.num_output_tokens
        if num_output_tokens == 1:
            sequence.first_token_s = step_end_s
        logprob = sampled.logprobs.get(row)
        outputs.add(
            SequenceStep(
                sequence_id=sequence.sequence_id,
                token_ids=[] if is_stop else [token_id],
                logprobs=None if logprob is None or is_stop else [logprob],
                num_cached_tokens=sequence.num_cached_tokens if num_output_tokens == 1 else None,
                prefill_ms=sequence.prefill_ms(step_end_s) if num_output_tokens == 1 else None,
                finish_reason="stop" if is_complete else "length" if is_end else None,
                num_output_tokens=num_output_tokens if is_end else 0,
                timing=sequence.timing(step_end_s) if is_end else None,
                # The event of the accepted drafts already reported this.
                num_drafted_tokens=0
                if row in sampled.accepted
                else len(schedule.drafts.get(sequence, ())),
            )
        )
        if is_end:
            ended.append(sequence)
    return ended, failed


def _emit_accepted(schedule: Schedule, sampled: Sampled, outputs: PendingOutputs) -> None:
    for row, drafts in sampled.accepted.items():
        sequence = schedule.decodes[row]
        outputs.add(
            SequenceStep(
                sequence_id=sequence.sequence_id,
                token_ids=drafts.token_ids,
                logprobs=drafts.logprobs or None,
                num_drafted_tokens=len(schedule.drafts[sequence]),
                num_accepted_drafts=len(drafts.token_ids),
            )
        )


WINDOW_S = 10.0
AVERAGED_TOKENS = 32_768
"""A token's weight in the average decays over so many later ones."""


class TokenRates:
    """An idle engine keeps its last rates until the window has passed."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, float, int, int]] = deque()
        self._decode_s = self._prefill_s = 0.0
        self._num_decode = self._num_prefill = 0

    def record(
        self, *, now_s: float, step_s: float, num_decode_tokens: int, num_prefill_tokens: int
    ) -> None:
        self._add(step_s, num_decode_tokens, num_prefill_tokens)
        self._steps.append((now_s, step_s, num_decode_tokens, num_prefill_tokens))
        self._forget_before(now_s - WINDOW_S)

    def decode_tokens_per_s(self, now_s: float) -> float:
        self._forget_before(now_s - WINDOW_S)
        return self._num_decode / self._decode_s if self._decode_s > 0 else 0.0

    def prefill_tokens_per_s(self, now_s: float) -> float:
        self._forget_before(now_s - WINDOW_S)
        return self._num_prefill / self._prefill_s if self._prefill_s > 0 else 0.0

    def _add(self, step_s: float, num_decode: int, num_prefill: int) -> None:
        if num_decode:
            self._decode_s += step_s
            self._num_decode += num_decode
        if num_prefill:
            self._prefill_s += step_s
            self._num_prefill += num_prefill

    def _forget_before(self, then_s: float) -> None:
        while self._steps and self._steps[0][0] < then_s:
            _, step_s, num_decode, num_prefill = self._steps.popleft()
            self._add(-step_s, -num_decode, -num_prefill)
        if not self._steps:
            # Sums of floats need not return to exactly 0.
            self._decode_s = self._prefill_s = 0.0


class PrefillAverage:
    """The speed is kept as a ratio to the formula's estimate, so that prompts of any length, and
    partly cached ones, average into one. Steps that also decode do not count."""

    def __init__(self, start: PrefillSpeed) -> None:
        self._start = start
        self._slowdown = 1.0
        self.speed = start

    def record(self, spans: Iterable[tuple[int, int]], step_s: float) -> None:
        num_tokens, expected_s = 0, 0.0
        for start, end in spans:
            num_tokens += end - start
            expected_s += self._start.span_s(start, end)
        if num_tokens < SMALLEST_CHUNK or expected_s <= 0:
            return  # small remainders say little about the speed
        gain = num_tokens / AVERAGED_TOKENS
        self._slowdown += min(gain, 1.0) * (step_s / expected_s - self._slowdown)
        self.speed = self._start.slowed(self._slowdown)
