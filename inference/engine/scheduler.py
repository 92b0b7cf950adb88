"""Checks new sequences, and schedules the next step. Plain Python over ints: no tensors, no clock
(times are arguments).

New sequences are admitted while blocks are free, by fair queueing over accounts
(``waiting_queue``). When a decoding sequence needs a block and none is free, the newest running
sequence is preempted; it is the first to run again, recomputed.

    running (oldest … newest)      waiting (preempted, oldest first; then the others in turns)

Age is the order of first admission. No sequence is admitted for the first time while a preempted
one waits, so running and preempted sequences are older than all others, and the oldest running
sequence always reaches its end.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Set
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType

from inference.engine.adapters import Adapters
from inference.engine.errors import IntegrityError
from inference.engine.kv_cache import KVCache
from inference.engine.pace import StepPacer
from inference.engine.sequence import Sequence, SequenceState
from inference.engine.speculation.speculator import Speculator
from inference.engine.step import AcceptedDrafts, PrefillChunk, Schedule, end_of_chunk
from inference.engine.waiting_queue import SchedulerLimits, WaitingQueue
from inference.models.vision_config import VisionConfig
from inference.protocol.engine import SubmitSequence


@dataclass(frozen=True, slots=True)
class EngineLimits:
    context_tokens: int
    vocab_size: int
    vision: VisionConfig | None = None


def command_problem(
    command: SubmitSequence, limits: EngineLimits, scheduler: Scheduler, adapters: Adapters
) -> tuple[str, str] | None:
    """Returns code and message for the client where the sequence is refused."""
    problem = _prompt_problem(command.token_ids, limits)
    problem = problem or _token_id_problem(command, limits.vocab_size)
    if problem is not None:
        return problem
    if command.images and limits.vision is None:
        return "vision_unsupported", "this model reads text only"
    if command.adapter is not None and (reason := adapters.problem()) is not None:
        return "model_load_failed", reason
    if scheduler.is_full:
        return "queue_full", f"{len(scheduler.waiting)} sequences are waiting, as many as may"
    if scheduler.is_full_for(command.account):
        queue = scheduler.limits
        return "rate_limit_exceeded", (
            f"{scheduler.waiting.num_of(command.account)} sequences of this account are waiting; "
            f"one account may have {queue.max_queue_depth_per_account} of the "
            f"{queue.max_queue_depth} places"
        )
    return None


def _prompt_problem(token_ids: list[int], limits: EngineLimits) -> tuple[str, str] | None:
    if not token_ids:
        return "bad_token_id", "the prompt has no tokens"
    # Two passes in C: a long prompt must not hold up the step.
    for token_id in (min(token_ids), max(token_ids)):
        if not 0 <= token_id < limits.vocab_size:
            outside = f"token id {token_id} is outside the vocabulary of {limits.vocab_size}"
            return "bad_token_id", outside
    if len(token_ids) + 1 > limits.context_tokens:
        return "context_length_exceeded", (
            f"the prompt has {len(token_ids)} tokens and at least one is to be generated, "
            f"but the context holds {limits.context_tokens} tokens"
        )
    return None


def _token_id_problem(command: SubmitSequence, vocab_size: int) -> tuple[str, str] | None:
    """An id out of range would index another row of scores, or beyond the embedding table."""
    params = command.params
    thinking = params.thinking_limit
    by_field = {
        "logit_bias": params.logit_bias,
        "stop_token_ids": params.stop_token_ids,
        "prediction": command.prediction,
        "thinking_limit": [] if thinking is None else [thinking.end_token_id],
    }
    for field, token_ids in by_field.items():
        for token_id in token_ids:
            if not 0 <= token_id < vocab_size:
                outside = f"token id {token_id} is outside the vocabulary of {vocab_size}"
                return "bad_token_id", f"{field}: {outside}"
    return None


SCORED_TOKENS_PER_STEP = 128
"""Each needs a row of logits, which other prompt tokens do not."""

NONE_ACCEPTED: Mapping[int, AcceptedDrafts] = MappingProxyType({})


class Scheduler:
    def __init__(
        self, kv_cache: KVCache, limits: SchedulerLimits, speculator: Speculator | None = None
    ) -> None:
        self.kv_cache = kv_cache
        self.limits = limits
        self.speculator = speculator
        self.running: list[Sequence] = []
        self.waiting = WaitingQueue()
        self._num_admitted = 0
        self.num_preemptions = 0
        self.prefix_hit_tokens = 0
        self.num_drafted_tokens = 0
        self.num_accepted_drafts = 0
        self._short_of_blocks = False
        """Whether the queue's head lacked blocks at the last try: then free slots do not help."""

    @property
    def is_full(self) -> bool:
        return len(self.waiting) - self._num_free_slots >= self.limits.max_queue_depth

    def is_full_for(self, account: str) -> bool:
        num_waiting = self.waiting.num_of(account) - self._num_free_slots
        return num_waiting >= self.limits.max_queue_depth_per_account

    @property
    def _num_free_slots(self) -> int:
        """Ignores the pace: a slow machine refuses no request that has a configured slot."""
        return 0 if self._short_of_blocks else self.limits.max_running - len(self.running)

    @property
    def has_prompts(self) -> bool:
        prefilling = SequenceState.PREFILLING
        return bool(self.waiting) or any(s.state is prefilling for s in self.running)

    def add(self, sequence: Sequence) -> None:
        self.waiting.add(sequence)

    def schedule(
        self, pace: StepPacer, busy: Set[Sequence] = frozenset(), num_groups: int = 1
    ) -> Schedule:
        """``busy``: sequences in steps under way, which are left as they are. The step takes at
        most one ``num_groups``-th of the decoding sequences."""
        schedule = Schedule()
        self._schedule_decodes(schedule, busy, num_groups)
        budget = pace.prefill_tokens(len(schedule.decodes))
        for sequence in self.running:
            if budget <= 0:
                break
            if sequence.state is SequenceState.PREFILLING and sequence not in busy:
                budget -= self._schedule_chunk(schedule, sequence, budget)
        self._short_of_blocks = False
        self.waiting.release_held()
        running_limit = self._running_limit(pace)
        while budget > 0 and len(self.running) < running_limit:
            if (first := self.waiting.next()) is None:
                break
            if not self._admit(first):
                self._short_of_blocks = True
                break
            budget -= self._schedule_chunk(schedule, first, budget)
        if self.speculator is not None and schedule.decodes and not schedule.prefills:
            schedule.drafts = self._with_slots(self.speculator.drafts(schedule.decodes))
        return schedule

    def _with_slots(self, drafts: dict[Sequence, list[int]]) -> dict[Sequence, list[int]]:
        """Cuts the drafts to the free blocks: no sequence is preempted for a draft."""
        fitting: dict[Sequence, list[int]] = {}
        for sequence, draft in drafts.items():
            num_tokens = len(sequence.token_ids)
            if not self.kv_cache.grow(sequence, num_tokens + len(draft)):
                num_slots = len(sequence.block_ids) * self.kv_cache.block_tokens
                draft = draft[: num_slots - num_tokens]
            if draft:
                fitting[sequence] = draft
        return fitting

    def _schedule_decodes(self, schedule: Schedule, busy: Set[Sequence], num_groups: int) -> None:
        block_tokens = self.kv_cache.block_tokens
        decoding = [s for s in self.running if s.state is SequenceState.DECODING]
        most = -(-len(decoding) // num_groups)
        for sequence in decoding:
            if len(schedule.decodes) == most:
                break
            if sequence in busy or sequence.state is not SequenceState.DECODING:
                continue  # in a step under way, or preempted just now
            # The common case, a slot in the last block, is decided here without a call.
            is_full = len(sequence.token_ids) > len(sequence.block_ids) * block_tokens
            if is_full and not self._make_room(sequence, busy):
                break
            schedule.decodes.append(sequence)

    def schedule_ahead(self, schedule: Schedule, pace: StepPacer) -> Schedule | None:
        """``schedule`` is running and not committed. ``None`` where other sequences take part in
        the next step or a block is missing."""
        if self.kv_cache.states is not None:
            return None  # a step that failed could not be run again after the next has begun
        if schedule.drafts:
            return None
        sampled = [s for s in schedule.sampled if s.state is not SequenceState.ENDED]
        if len(sampled) != len(self.running) or self._can_admit(pace):
            return None
        if self.speculator is not None and self.speculator.expects_drafts(sampled):
            return None
        decodes = [s for s in sampled if len(s.token_ids) + 1 < s.max_length]
        for sequence in decodes:
            if not self.kv_cache.grow(sequence, len(sequence.token_ids) + 1):
                return None
        return Schedule(decodes=decodes) if decodes else None

    def _running_limit(self, pace: StepPacer) -> int:
        return min(pace.running_limit, self.limits.max_running)

    def _can_admit(self, pace: StepPacer) -> bool:
        if len(self.running) >= self._running_limit(pace):
            return False
        self.waiting.release_held()
        first = self.waiting.next()
        self._short_of_blocks = first is not None and not self.kv_cache.has_room(first)
        return first is not None and not self._short_of_blocks

    def _make_room(self, sequence: Sequence, busy: Set[Sequence]) -> bool:
        """``False`` when it was preempted itself, or when the newest is in a step under way."""
        while not self.kv_cache.grow(sequence, len(sequence.token_ids)):
            if self.running[-1] in busy or self._preempt_newest() is sequence:
                return False
        return True

    def _preempt_newest(self) -> Sequence:
        """Never preempts another, so that the oldest always gets to its end."""
        sequence = self.running.pop()
        self.kv_cache.release(sequence)
        sequence.move_to(SequenceState.WAITING)
        self.waiting.put_back(sequence)
        self.num_preemptions += 1
        return sequence

    def _admit(self, sequence: Sequence) -> bool:
        if not self.kv_cache.admit(sequence):
            return False
        self.waiting.take()
        if not sequence.admission:
            self._num_admitted += 1
            sequence.admission = self._num_admitted
        sequence.move_to(SequenceState.PREFILLING)
        sequence.deadline_s = None
        sequence.same_prompt_as = None
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = sequence.num_computed_tokens
            self.prefix_hit_tokens += sequence.num_computed_tokens
        insort(self.running, sequence, key=attrgetter("admission"))
        return True

    def _schedule_chunk(self, schedule: Schedule, sequence: Sequence, budget: int) -> int:
        """A prompt that continues uses up the budget: the rest would be few rows of another."""
        start = sequence.num_computed_tokens
        if sequence.num_tokens_to_score:
            budget = min(budget, SCORED_TOKENS_PER_STEP - schedule.num_scored_tokens)
            if budget <= 0:
                return 0
        wanted = end_of_chunk(start, len(sequence.token_ids), budget)
        if sequence.images is not None:
            # A tower takes as long as many steps: decoding sequences wait for one image at a time.
            num_images = 0 if schedule.has_image_rows else 1
            wanted = sequence.images.end_with_images(start, wanted, num_images)
            if wanted > start:
                # An image of more tokens than a step may have takes a step for itself.
                is_alone = not schedule.prefills
                wanted = sequence.images.end_of_whole(start, wanted, may_exceed=is_alone)
            if wanted == start:
                return 0
        end = self.kv_cache.end_of_chunk(sequence, start, wanted)
        is_last = end == len(sequence.token_ids)
        schedule.prefills.append(PrefillChunk(sequence, start, end, is_last))
        return end - start if wanted == len(sequence.token_ids) else budget

    def commit(
        self,
        schedule: Schedule,
        token_ids: list[int],
        accepted: Mapping[int, AcceptedDrafts] = NONE_ACCEPTED,
    ) -> None:
        """``token_ids`` are in the order of ``schedule.sampled``; ``accepted`` is by index there.
        Filled blocks enter the prefix cache."""
        lagging: set[Sequence] = set()
        if self.speculator is not None and schedule.decodes:
            lagging = self._commit_drafts(schedule, token_ids, accepted)
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
        if self.kv_cache.states is not None:
            self.kv_cache.commit_states([s for s in schedule.sequences if s not in lagging])

    def _commit_drafts(
        self, schedule: Schedule, token_ids: list[int], accepted: Mapping[int, AcceptedDrafts]
    ) -> set[Sequence]:
        """Returns the sequences whose state lags, because it was computed with a wrong draft."""
        assert self.speculator is not None
        has_states = self.kv_cache.states is not None
        lagging: set[Sequence] = set()
        for row, sequence in enumerate(schedule.decodes):
            if sequence.state is SequenceState.ENDED:
                continue
            right = accepted[row].token_ids if row in accepted else []
            self.speculator.record(sequence, [*right, token_ids[row]])
            if (draft := schedule.drafts.get(sequence)) is None:
                continue
            self.num_drafted_tokens += len(draft)
            self.num_accepted_drafts += len(right)
            sequence.token_ids += right
            sequence.num_computed_tokens += len(right)
            self.kv_cache.register_computed(sequence)
            if has_states and len(right) < len(draft):
                sequence.num_lagging += len(right) + 1
                lagging.add(sequence)
        return lagging

    def end(self, *sequences: Sequence) -> None:
        if not sequences:
            return
        for sequence in sequences:
            if sequence.state is SequenceState.WAITING:
                self.waiting.remove(sequence)
            else:
                self.kv_cache.release(sequence)
            sequence.move_to(SequenceState.ENDED)
        self.running = [s for s in self.running if s.state is not SequenceState.ENDED]

    def overdue(self, now_s: float) -> list[Sequence]:
        return self.waiting.overdue(now_s, self._num_free_slots)

    def check_integrity(self) -> None:
        """Raises ``IntegrityError``."""
        admissions = [sequence.admission for sequence in self.running]
        if admissions != sorted(set(admissions)) or 0 in admissions:
            raise IntegrityError("running sequences are not in order of admission")
        self.waiting.check_integrity()
        if any(sequence.is_held for sequence in self.running):
            raise IntegrityError("a held sequence runs")
        self.kv_cache.check_integrity(self.running)
