"""Decides what runs in the next step, and for whom. Plain Python over ints: no tensors, no clock
(times are arguments), no knowledge of models.

One step's rows: every decoding sequence (one token each), and prompt chunks up to a token
budget, oldest sequence first. New sequences are admitted in order of arrival while there are seats
(how many is the pace's business) and blocks. When a decoding sequence needs a block and none is
free, the newest running sequence gives its blocks up and goes back to its place in the queue, to be
recomputed.

A sequence that is held (``Sequence.is_held``) keeps its place in the queue and lets later ones
pass; once it may start it is the first of those that wait, and takes its place among those that
run. So both lists are in order of arrival, and the oldest running sequence always gets to its end.

    running (oldest … newest)      waiting (oldest … newest; preempted, held, never started)
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from typing import Protocol

from inference.engine.errors import IntegrityError
from inference.engine.kv_cache import KVCache
from inference.engine.sequence import Sequence, SequenceState

SCORED_TOKENS_PER_STEP = 128
"""Each needs a row of logits as wide as the vocabulary, which a prompt token otherwise does not."""
CHUNK_MULTIPLE = 16
"""Rows that products take at once: two tiles on CPU (``native/activations.h``), an operand of a
matrix instruction on CUDA. A chunk that ends elsewhere pays for the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    max_running: int = 256
    max_queue_depth: int = 256
    max_queue_wait_s: float = 60.0
    prefill_tokens_per_step: int = 512
    """Most prompt rows of one step, beside its decode rows."""
    target_step_s: float | None = None
    """How long a step should take: see ``inference.engine.step_pacing``."""


class Pace(Protocol):
    """How much the next step may hold."""

    @property
    def num_seats(self) -> int:
        """Most sequences to run: more keep running where they already do."""
        ...

    def prefill_tokens(self, num_decode_rows: int) -> int: ...


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

    @property
    def is_empty(self) -> bool:
        return not self.decodes and not self.prefills

    @property
    def sequences(self) -> list[Sequence]:
        return self.decodes + [chunk.sequence for chunk in self.prefills]

    @property
    def has_ended_rows(self) -> bool:
        """Whether a sequence ended after the step was launched. Prompts' never do: such a step is
        read before anything else happens."""
        return any(s.state is SequenceState.ENDED for s in self.decodes)

    def without_ended_rows(self) -> Schedule:
        live = [s for s in self.decodes if s.state is not SequenceState.ENDED]
        return Schedule(decodes=live, prefills=self.prefills)

    @property
    def num_prefill_tokens(self) -> int:
        return sum(chunk.end - chunk.start for chunk in self.prefills)

    @property
    def num_scored_tokens(self) -> int:
        return sum(len(chunk.scored) for chunk in self.prefills)

    @property
    def sampled(self) -> list[Sequence]:
        """Sequences that get a token from this step, in the order of the logits' rows."""
        return self.decodes + [chunk.sequence for chunk in self.prefills if chunk.is_last]


class Scheduler:
    def __init__(self, kv_cache: KVCache, limits: SchedulerLimits) -> None:
        self.kv_cache = kv_cache
        self.limits = limits
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.num_preemptions = 0
        self.prefix_hit_tokens = 0
        self._short_of_blocks = False
        """The head of the queue was refused blocks in the last step: free seats do not help."""

    @property
    def is_full(self) -> bool:
        """Whether one more sequence would wait deeper than ``max_queue_depth``."""
        return len(self.waiting) - self._num_free_seats >= self.limits.max_queue_depth

    @property
    def _num_free_seats(self) -> int:
        """Of ``max_running``, whether or not the pace has them in use just now. Whoever waits for
        one of these waits for short steps, not in the queue: the operator has promised the seat,
        and a slow machine takes longer to serve all of them but refuses none."""
        return 0 if self._short_of_blocks else self.limits.max_running - len(self.running)

    @property
    def has_prompts(self) -> bool:
        """Whether anybody waits or has tokens left to compute before it decodes."""
        prefilling = SequenceState.PREFILLING
        return bool(self.waiting) or any(s.state is prefilling for s in self.running)

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def schedule(self, pace: Pace) -> Schedule:
        """Choose the next step's rows. Moves sequences between queues; the KV blocks that the rows
        write to are theirs when this returns."""
        schedule = Schedule()
        self._schedule_decodes(schedule)
        budget = pace.prefill_tokens(len(schedule.decodes))
        for sequence in self.running:
            if budget <= 0:
                break
            if sequence.state is SequenceState.PREFILLING:
                budget -= self._schedule_chunk(schedule, sequence, budget)
        self._short_of_blocks = False
        num_seats = min(pace.num_seats, self.limits.max_running)
        while budget > 0 and len(self.running) < num_seats:
            if (oldest := next((s for s in self.waiting if not s.is_held), None)) is None:
                break
            if not self._admit(oldest):
                self._short_of_blocks = True
                break
            budget -= self._schedule_chunk(schedule, oldest, budget)
        return schedule

    def _schedule_decodes(self, schedule: Schedule) -> None:
        block_tokens = self.kv_cache.block_tokens
        for sequence in list(self.running):
            if sequence.state is not SequenceState.DECODING:
                continue
            # The common case, a slot in the last block, is decided here without a call.
            is_full = len(sequence.token_ids) > len(sequence.block_ids) * block_tokens
            if is_full and not self._make_room(sequence):
                break
            schedule.decodes.append(sequence)

    def foresee(self, schedule: Schedule) -> Schedule | None:
        """The step after ``schedule``, which is running and not committed: one row for each of its
        sequences that is not ended by its length. ``None`` where somebody else has a part in it,
        or a block is missing. The KV blocks that the rows write to are theirs when this returns."""
        sampled = [s for s in schedule.sampled if s.state is not SequenceState.ENDED]
        if len(sampled) != len(self.running) or self._may_admit:
            return None
        decodes = [s for s in sampled if len(s.token_ids) + 1 < s.max_length]
        for sequence in decodes:
            if not self.kv_cache.grow(sequence, len(sequence.token_ids) + 1):
                return None
        return Schedule(decodes=decodes) if decodes else None

    @property
    def _may_admit(self) -> bool:
        """Whether somebody who waits may start in the next step."""
        return self._num_free_seats > 0 and not all(s.is_held for s in self.waiting)

    def _make_room(self, sequence: Sequence) -> bool:
        """Preempt newer sequences until ``sequence`` can grow. ``False`` when it was itself the
        newest and has been preempted: then no running one is left behind it."""
        while not self.kv_cache.grow(sequence, len(sequence.token_ids)):
            if self._preempt_newest() is sequence:
                return False
        return True

    def _preempt_newest(self) -> Sequence:
        """Only ever the newest, so that the oldest always gets to its end."""
        sequence = self.running.pop()
        self.kv_cache.release(sequence)
        sequence.move_to(SequenceState.WAITING)
        insort(self.waiting, sequence, key=_arrival)
        self.num_preemptions += 1
        return sequence

    def _admit(self, sequence: Sequence) -> bool:
        if not self.kv_cache.admit(sequence):
            return False
        self.waiting.remove(sequence)
        sequence.move_to(SequenceState.PREFILLING)
        sequence.deadline_s = None
        sequence.same_prompt_as = None
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = sequence.num_computed_tokens
            self.prefix_hit_tokens += sequence.num_computed_tokens
        insort(self.running, sequence, key=_arrival)
        return True

    def _schedule_chunk(self, schedule: Schedule, sequence: Sequence, budget: int) -> int:
        """Returns how much of the budget is gone: all of it where the prompt goes on, even if an
        even share of it is less. What is left would only begin another prompt with a few rows."""
        start = sequence.num_computed_tokens
        if sequence.num_tokens_to_score:
            budget = min(budget, SCORED_TOKENS_PER_STEP - schedule.num_scored_tokens)
            if budget <= 0:
                return 0
        end = end_of_chunk(start, len(sequence.token_ids), budget)
        is_last = end == len(sequence.token_ids)
        schedule.prefills.append(PrefillChunk(sequence, start, end, is_last))
        return end - start if is_last else budget

    def commit(self, schedule: Schedule, token_ids: list[int]) -> None:
        """Record that the step ran: ``token_ids`` are what was sampled, in ``schedule.sampled``'s
        order. Filled blocks become known to the prefix cache."""
        block_tokens = self.kv_cache.block_tokens
        num_decodes = len(schedule.decodes)
        for sequence, token_id in zip(schedule.decodes, token_ids, strict=False):
            if sequence.state is SequenceState.ENDED:
                continue  # since the step was launched
            sequence.num_computed_tokens += 1
            if sequence.num_computed_tokens % block_tokens == 0:
                self.kv_cache.register_computed(sequence)
            sequence.token_ids.append(token_id)
        sampled = iter(token_ids[num_decodes:])
        for chunk in schedule.prefills:
            chunk.sequence.num_computed_tokens = chunk.end
            prefilled = min(chunk.end, chunk.sequence.num_prompt_tokens)
            if prefilled > chunk.sequence.num_prefilled_tokens:
                chunk.sequence.num_prefilled_tokens = prefilled
            if chunk.scored:
                chunk.sequence.num_scored_tokens = chunk.scored.stop
            self.kv_cache.register_computed(chunk.sequence)
            if chunk.is_last:
                chunk.sequence.move_to(SequenceState.DECODING)
                chunk.sequence.token_ids.append(next(sampled))

    def end(self, sequence: Sequence) -> None:
        """Take a sequence out, in whatever state, and free what it holds."""
        if sequence.state is SequenceState.WAITING:
            self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
            self.kv_cache.release(sequence)
        sequence.move_to(SequenceState.ENDED)

    def end_many(self, sequences: list[Sequence]) -> None:
        """``end`` for running sequences, in one pass over the queue."""
        if not sequences:
            return
        for sequence in sequences:
            self.kv_cache.release(sequence)
            sequence.move_to(SequenceState.ENDED)
        self.running = [s for s in self.running if s.state is not SequenceState.ENDED]

    def overdue(self, now_s: float) -> list[Sequence]:
        """Sequences that have waited in the queue for longer than allowed, oldest first."""
        late: list[Sequence] = []
        for sequence in self.waiting[self._num_free_seats :]:
            if sequence.deadline_s is None:
                continue
            if sequence.deadline_s > now_s:
                break
            late.append(sequence)
        return late

    def check_integrity(self) -> None:
        """Raises ``IntegrityError``."""
        for queue in (self.running, self.waiting):
            arrivals = [sequence.arrival for sequence in queue]
            if arrivals != sorted(set(arrivals)):
                raise IntegrityError("a queue is not in order of arrival")
        if any(sequence.block_ids for sequence in self.waiting):
            raise IntegrityError("a waiting sequence holds blocks")
        if any(sequence.is_held for sequence in self.running):
            raise IntegrityError("a sequence runs that was to be held")
        self.kv_cache.check_integrity(self.running)


def end_of_chunk(start: int, length: int, budget: int) -> int:
    """Where a chunk of at most ``budget`` tokens ends that begins at ``start`` of ``length``. What
    is left is shared out evenly over as many steps as it takes: a short one at the end, which
    serves few rows with all the weights, would take more time than they save."""
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


def _arrival(sequence: Sequence) -> int:
    return sequence.arrival
