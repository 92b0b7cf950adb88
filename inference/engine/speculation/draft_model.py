"""Drafts of a second, smaller model that shares the tokenizer.

    token_ids     [ prompt ............ | output ....... ]▏
    answering     [ keys and values in blocks ......... ]
    drafting      [ in the same blocks ..... ) num_read      ─▶ fill ─▶ draft ▏a b c

It reads a sequence behind the model that answers, and only while drafts pay. Blocks of shared
prefixes that it has read serve other sequences. Wrong keys and values cost drafts, never an answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from inference.engine.kv_cache import KVCache
from inference.engine.pace import StepTimeModel, untried_step_time
from inference.engine.sequence import Sequence
from inference.engine.speculation.speculator import (
    DEFAULT_DRAFT_TOKENS,
    MOST_DRAFT_TOKENS,
    MOST_SEQUENCES,
    Acceptance,
    Offer,
    Origin,
    best_length,
    most_drafts,
)

log = logging.getLogger(__name__)

READ_AT_ONCE = 512
"""The most unread tokens that one step reads, so that other sequences wait little for it."""
MOST_UNREAD = 4
"""The most unread tokens of a sequence that is drafted for: they are read with its last."""
PROBE_STEPS = 64
"""After so many steps without drafts some are tried, to measure how many are right."""
PROBE_LENGTH = 2
MOST_FAILURES = 3
UNTRIED_DRAFT = 0.15
"""The assumed cost of a draft token before one was made, in parts of a step."""
OF_A_MODEL = 1
"""The class of ``Acceptance`` that a draft model's drafts count in: they follow no match."""


@dataclass(frozen=True, slots=True)
class DraftRow:
    sequence: Sequence
    start: int
    length: int
    """Tokens to draft, at least 1. There are blocks for them."""


class Drafter(Protocol):
    @property
    def num_positions(self) -> int:
        """The length of the longest text that it reads."""
        ...

    @property
    def follows(self) -> bool:
        """Whether it reads computed tokens without a call of ``fill``."""
        ...

    def fill(self, sequence: Sequence, start: int, end: int) -> None: ...

    def draft(self, rows: Ordered[DraftRow]) -> list[list[int]]: ...


@dataclass(slots=True)
class _Reading:
    acceptance: Acceptance
    block_ids: list[int] = field(default_factory=list)
    """The sequence's list of blocks that the numbers below count; a preempted one gets another."""
    num_read: int = 0
    num_noted: int = 0
    draft: list[int] = field(default_factory=list)
    length_then: int = 0


class DraftModelSpeculator(Origin):
    def __init__(
        self,
        drafter: Drafter,
        kv_cache: KVCache,
        most_tokens: int = DEFAULT_DRAFT_TOKENS,
        name: str = "draft model",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.name = name
        self._drafter = drafter
        self._kv_cache = kv_cache
        self._most_tokens = min(most_tokens, MOST_DRAFT_TOKENS)
        self._clock = clock
        self._acceptance = Acceptance()
        self._costs = DraftCosts(untried_step_time())
        self._read_blocks: dict[int, int] = {}
        """Block id -> content id of the block that it has read whole."""
        self._num_steps_without = 0
        self._num_failures = 0
        self._spent_s = 0.0

    def offer(self, sequences: list[Sequence]) -> Offer | None:
        """Counts the step if it returns none."""
        able = self._able(sequences)
        candidates = self._candidates(able)
        if candidates:
            length, worth = best_length(len(sequences), candidates, self._costs)
            is_trial = not length and self._num_steps_without >= PROBE_STEPS
            if length or is_trial:
                make = partial(self._drafts_of, able, length or PROBE_LENGTH)
                return Offer(worth, is_trial, make)
        self._num_steps_without += 1
        return None

    def _drafts_of(self, able: list[Sequence], length: int) -> dict[Sequence, list[int]]:
        started_s = self._clock()
        try:
            return self._made(able, length)
        except Exception:  # whatever an operator raises: answers need no drafts
            self._num_failures += 1
            log.exception("the draft model failed, %d times now", self._num_failures)
            return {}
        finally:
            self._spent_s += self._clock() - started_s

    def record(self, sequence: Sequence, sampled: list[int]) -> None:
        reading = sequence.drafting.get(self.name)
        if not isinstance(reading, _Reading) or not reading.draft:
            return
        draft, reading.draft = reading.draft, []
        if reading.length_then != len(sequence.token_ids):
            return
        reading.acceptance.record(OF_A_MODEL, draft, sampled)
        # A draft's last token was written and not read; the step's last is read with the next one.
        num_right = _num_equal(draft[:-1], sampled[:-1])
        if reading.block_ids is sequence.block_ids:
            reading.num_read += num_right

    def weigh_by(self, step_time: StepTimeModel) -> None:
        self._costs.steps = step_time

    def take_drafting_s(self) -> float:
        spent_s, self._spent_s = self._spent_s, 0.0
        return spent_s

    def _able(self, sequences: list[Sequence]) -> list[Sequence]:
        if len(sequences) > MOST_SEQUENCES or self._num_failures >= MOST_FAILURES:
            return []
        room = self._drafter.num_positions - self._most_tokens
        return [s for s in sequences if s.images is None and len(s.token_ids) < room]

    def _candidates(self, able: list[Sequence]) -> list[tuple[int, float]]:
        return [
            (most, self._reading_of(sequence).acceptance.rates[OF_A_MODEL])
            for sequence in able
            if (most := min(self._most_tokens, most_drafts(sequence))) > 0
        ]

    def _made(self, able: list[Sequence], length: int) -> dict[Sequence, list[int]]:
        rows: list[DraftRow] = []
        num_left = READ_AT_ONCE
        for sequence in able:
            most = min(length, most_drafts(sequence))
            if most < 1:
                continue
            start = len(sequence.token_ids) - 1
            if not self._drafter.follows:
                num_left -= self._read(sequence, num_left)
                start = self._reading_of(sequence).num_read
            most = min(most, self._num_slots(sequence, most))
            if most >= 1 and len(sequence.token_ids) - start <= MOST_UNREAD:
                rows.append(DraftRow(sequence, start, most))
        if not rows:
            return {}
        self._num_steps_without = 0
        started_s = self._clock()
        made = self._drafter.draft(rows)
        longest = max(row.length for row in rows)
        self._costs.record_draft(len(rows), (self._clock() - started_s) / longest)
        drafts = {}
        for row, token_ids in zip(rows, made, strict=True):
            reading = self._reading_of(row.sequence)
            reading.draft, reading.length_then = token_ids, len(row.sequence.token_ids)
            reading.num_read = reading.length_then
            self._note(row.sequence, reading)
            if token_ids:
                drafts[row.sequence] = token_ids
        return drafts

    def _read(self, sequence: Sequence, most: int) -> int:
        reading = self._reading_of(sequence)
        start, last = reading.num_read, len(sequence.token_ids) - 1
        if last - start < MOST_UNREAD:
            return 0
        end = min(last, start + most)
        if end > start:
            self._drafter.fill(sequence, start, end)
            reading.num_read = end
            self._note(sequence, reading)
        return end - start

    def _num_slots(self, sequence: Sequence, wanted: int) -> int:
        num_tokens = len(sequence.token_ids)
        self._kv_cache.grow(sequence, num_tokens + wanted)
        return len(sequence.block_ids) * self._kv_cache.block_tokens - num_tokens

    def _note(self, sequence: Sequence, reading: _Reading) -> None:
        num_full = reading.num_read // self._kv_cache.block_tokens
        for index in range(reading.num_noted, min(num_full, sequence.num_registered_blocks)):
            block_id = sequence.block_ids[index]
            content_id = self._kv_cache.allocator.content_of(block_id)
            if content_id is not None:
                self._read_blocks[block_id] = content_id
            reading.num_noted = index + 1

    def _reading_of(self, sequence: Sequence) -> _Reading:
        reading = sequence.drafting.get(self.name)
        if not isinstance(reading, _Reading):
            reading = sequence.drafting[self.name] = _Reading(Acceptance(self._acceptance))
        if reading.block_ids is not sequence.block_ids:
            reading.block_ids = sequence.block_ids
            reading.num_noted = self._num_known(sequence)
            reading.num_read = reading.num_noted * self._kv_cache.block_tokens
        return reading

    def _num_known(self, sequence: Sequence) -> int:
        content_of = self._kv_cache.allocator.content_of
        for index in range(sequence.num_registered_blocks):
            block_id = sequence.block_ids[index]
            content_id = content_of(block_id)
            if content_id is None or self._read_blocks.get(block_id) != content_id:
                return index
        return sequence.num_registered_blocks


class DraftCosts:
    """The cost of a step with drafts against one without.

    without   [ step of n rows ]
    with      [ draft ][ draft ] … [ step of n + drafted rows ]    a draft step for each token
    """

    def __init__(self, steps: StepTimeModel) -> None:
        self.steps = steps
        self._drafts = untried_step_time()

    def record_draft(self, num_sequences: int, token_s: float) -> None:
        """``token_s``: seconds of one more token for each sequence."""
        self._drafts.record(num_sequences, 0, token_s)

    def ratio(self, num_rows: int, num_base_rows: int) -> float:
        verifying = self.steps.ratio(num_rows, num_base_rows)
        longest = -(-(num_rows - num_base_rows) // num_base_rows)
        return verifying + longest * self._of_a_token(num_base_rows)

    def _of_a_token(self, num_sequences: int) -> float:
        step_s = self.steps.seconds(num_sequences, 0)
        if not (self.steps.is_measured and self._drafts.is_measured) or step_s <= 0:
            return UNTRIED_DRAFT
        return self._drafts.seconds(num_sequences, 0) / step_s


def _num_equal(left: Ordered[int], right: Ordered[int]) -> int:
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))
